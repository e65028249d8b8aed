//! The demo's processes: a server, and this program once for each site of the example's file.

use crate::command::nats;
use crate::command::output::Failure;
use crate::config::Config;
use crate::system::OsRandom;
use portolan_base::Random;
use portolan_fleet::NatsServer;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The demo runs the very files that are shipped as an example, on ports that are free.
const CONFIG: &str = include_str!("../../../../../examples/08-fleet/portolan.yaml");
const CLUSTER: &str = include_str!("../../../../../examples/08-fleet/cluster.yaml");
const SERVERS: [&str; 3] = [
    include_str!("../../../../../examples/08-fleet/n1.conf"),
    include_str!("../../../../../examples/08-fleet/n2.conf"),
    include_str!("../../../../../examples/08-fleet/n3.conf"),
];

/// What the file says of this machine's ports, sites in order, and of its server and model.
const TRANSPORTS: [&str; 3] = ["127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7402"];
const LISTENS: [&str; 3] = ["127.0.0.1:8080", "127.0.0.1:8081", "127.0.0.1:8082"];
const NATS: [&str; 3] = [
    "nats://127.0.0.1:4222",
    "nats://127.0.0.1:4223",
    "nats://127.0.0.1:4224",
];
const ROUTES: [&str; 3] = ["127.0.0.1:6222", "127.0.0.1:6223", "127.0.0.1:6224"];
const MODEL: &str = "../../.models/SmolLM2-135M-Instruct.Q4_1.gguf";

/// What carries messages between the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carriers {
    /// One server.
    One,
    /// Three that keep what must survive together.
    Cluster,
}

/// Servers and a process for each site. Dropping it ends them.
pub(super) struct Fleet {
    pub(super) nats: Vec<NatsServer>,
    folder: PathBuf,
    running: BTreeMap<String, Running>,
}

struct Running {
    child: Child,
    http: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        // A process that has ended cannot be killed, which is as well.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Fleet {
    /// Starts everything in `folder`.
    pub(super) fn start(folder: &Path, model: &Path, carriers: Carriers) -> Result<Self, Failure> {
        let text = match carriers {
            Carriers::One => CONFIG,
            Carriers::Cluster => CLUSTER,
        };
        let example = Config::parse(text).map_err(Failure::new)?;
        secret(&folder.join("fleet.secret"), 32)?;
        for site in &example.sites {
            secret(&folder.join(format!("{}.password", site.name)), 16)?;
        }
        let users = nats::authorization(&nats::of_sites(&example)?, |site| {
            let file = folder.join(format!("{site}.password"));
            format!("{:?}", fs::read_to_string(file).unwrap_or_default())
        });
        let nats = servers(folder, &users, carriers)?;
        let addresses: Vec<String> = nats.iter().map(NatsServer::address).collect();
        let text = configuration(text, &addresses, model)?;
        fs::write(folder.join("portolan.yaml"), text).map_err(Failure::new)?;
        let mut fleet = Self {
            nats,
            folder: folder.to_owned(),
            running: BTreeMap::new(),
        };
        for site in &example.sites {
            fleet.launch(site.name.as_str())?;
        }
        for site in &example.sites {
            fleet.opens(site.name.as_str())?;
        }
        Ok(fleet)
    }

    /// Each site with its process and address.
    pub(super) fn sites(&self) -> impl Iterator<Item = (&str, u32, &str)> {
        let running = self.running.iter();
        running.map(|(site, running)| (site.as_str(), running.child.id(), running.http.as_str()))
    }

    /// Where clients reach a site.
    pub(super) fn http(&self, site: &str) -> String {
        self.running
            .get(site)
            .map(|running| running.http.clone())
            .unwrap_or_default()
    }

    /// Kills a site's process as a power cut would.
    pub(super) fn kill(&mut self, site: &str) {
        self.running.remove(site);
    }

    /// Starts a site's process again.
    pub(super) fn start_site(&mut self, site: &str) -> Result<(), Failure> {
        self.launch(site)?;
        self.opens(site)
    }

    fn launch(&mut self, site: &str) -> Result<(), Failure> {
        let log = File::options().create(true).append(true).open(self.log_of(site));
        let child = Command::new(std::env::current_exe().map_err(Failure::new)?)
            .args(["--json", "serve", "--site", site, "--config"])
            .arg(self.folder.join("portolan.yaml"))
            .arg("--data-dir")
            .arg(self.folder.join("data").join(site))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.map_err(Failure::new)?)
            .spawn()
            .map_err(Failure::new)?;
        let http = String::new();
        self.running.insert(site.to_owned(), Running { child, http });
        Ok(())
    }

    /// Waits until the process says that its site is open.
    fn opens(&mut self, site: &str) -> Result<(), Failure> {
        let log = self.log_of(site);
        let running = self.running.get_mut(site);
        let running = running.ok_or_else(|| Failure::new(format!("{site} was not started")))?;
        let mut line = String::new();
        if let Some(out) = running.child.stdout.take() {
            BufReader::new(out).read_line(&mut line).map_err(Failure::new)?;
        }
        let said: Value = serde_json::from_str(&line).unwrap_or_default();
        let listen = said["listen"].as_str().ok_or_else(|| {
            let log = fs::read_to_string(log).unwrap_or_default();
            Failure::new(format!("{site} did not open: {line}{log}"))
        })?;
        running.http = format!("http://{listen}");
        Ok(())
    }

    fn log_of(&self, site: &str) -> PathBuf {
        self.folder.join(format!("{site}.log"))
    }
}

/// Starts one server, or the three of the example's files on ports that are free.
fn servers(folder: &Path, users: &str, carriers: Carriers) -> Result<Vec<NatsServer>, Failure> {
    let start = |name: &str, more: &str| {
        let own = folder.join(name);
        fs::create_dir(&own).map_err(Failure::new)?;
        NatsServer::start(&own, &format!("{more}\n{users}")).map_err(Failure::new)
    };
    if carriers == Carriers::One {
        return Ok(vec![start("nats", "")?]);
    }
    let free = free_addresses(ROUTES.len())?;
    let mut servers = Vec::new();
    for (number, text) in (1..).zip(SERVERS) {
        let mut text = of_cluster(text);
        for (route, free) in ROUTES.iter().zip(&free) {
            text = text.replace(route, free);
        }
        servers.push(start(&format!("n{number}"), &text)?);
    }
    Ok(servers)
}

/// What a server's file says of its cluster: address, folder and users are the demo's own.
fn of_cluster(text: &str) -> String {
    let own = ["server_name:", "cluster "];
    let lines = text
        .lines()
        .filter(|line| own.iter().any(|key| line.starts_with(key)));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Addresses of this machine that nobody listens on, no two alike.
fn free_addresses(count: usize) -> Result<Vec<String>, Failure> {
    // Held together until all are chosen.
    let held: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()
        .map_err(Failure::new)?;
    let address = |held: &TcpListener| held.local_addr().map(|address| address.to_string());
    held.iter()
        .map(address)
        .collect::<Result<_, _>>()
        .map_err(Failure::new)
}

/// The example's file, on ports that are free.
fn configuration(text: &str, nats: &[String], model: &Path) -> Result<String, Failure> {
    let model = fs::canonicalize(model).map_err(Failure::new)?;
    let mut text = text.replace(MODEL, &model.display().to_string());
    for (example, server) in NATS.iter().zip(nats) {
        text = text.replace(example, server);
    }
    for listen in LISTENS {
        text = text.replace(listen, "127.0.0.1:0");
    }
    for (transport, free) in TRANSPORTS.iter().zip(free_addresses(TRANSPORTS.len())?) {
        text = text.replace(transport, &free);
    }
    Ok(text)
}

/// Writes so many random bytes in hex, for the owner's eyes only.
fn secret(file: &Path, bytes: usize) -> Result<(), Failure> {
    let drawn: Vec<u8> = std::iter::repeat_with(|| OsRandom.next_u64().to_le_bytes())
        .flatten()
        .take(bytes)
        .collect();
    let mut options = File::options();
    let file = options.create_new(true).write(true).mode(0o600).open(file);
    let mut file = file.map_err(Failure::new)?;
    file.write_all(hex::encode(drawn).as_bytes())
        .map_err(Failure::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_ports_servers_and_model_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model.gguf");
        fs::write(&model, "").unwrap();
        for part in TRANSPORTS.iter().chain(&LISTENS).chain(&[NATS[0], MODEL]) {
            assert!(CONFIG.contains(part) && CLUSTER.contains(part), "{part}");
        }
        assert!(NATS.iter().all(|part| CLUSTER.contains(part)));
        for text in SERVERS {
            let own = of_cluster(text);
            assert!(
                own.starts_with("server_name: n") && !own.contains("include"),
                "{own}"
            );
            assert!(ROUTES.iter().all(|route| own.contains(route)), "{own}");
        }
        // The two files differ in what carries messages alone.
        let of = |text: &str| {
            let mut config = Config::parse(text).unwrap().to_value();
            let nats = config["fleet"]["nats"].take();
            (config.to_string(), nats["servers"].as_array().unwrap().len())
        };
        let (one, cluster) = (of(CONFIG), of(CLUSTER));
        assert_eq!((one.1, cluster.1, one.0 == cluster.0), (1, 3, true));
        let servers: Vec<String> = (7..10).map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let text = configuration(CLUSTER, &servers, &model).unwrap();
        let nats = Config::parse(&text).unwrap().fleet.nats.unwrap();
        assert_eq!((nats.servers, nats.replicas), (servers.clone(), 3));
        let config = Config::parse(&configuration(CONFIG, &servers[..1], &model).unwrap()).unwrap();
        assert!(config.models[0].path.ends_with("model.gguf"));
        assert_eq!(config.fleet.nats.as_ref().unwrap().servers, servers[..1]);
        let mut ports: Vec<u16> = config.sites.iter().map(|site| site.transport.port()).collect();
        ports.dedup();
        assert_eq!(ports.len(), 3, "{ports:?}");
        assert!(config.sites.iter().all(|site| site.listen.port() == 0));
        for site in config.sites.iter().map(|site| site.name.clone()) {
            assert!(config.clone().running(vec![site]).is_ok());
        }
    }
}
