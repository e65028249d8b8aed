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

/// The demo runs the very file that is shipped as an example, on ports that are free.
const CONFIG: &str = include_str!("../../../../../examples/08-fleet/portolan.yaml");

/// What the file says of this machine's ports, sites in order, and of its server and model.
const TRANSPORTS: [&str; 3] = ["127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7402"];
const LISTENS: [&str; 3] = ["127.0.0.1:8080", "127.0.0.1:8081", "127.0.0.1:8082"];
const NATS: &str = "nats://127.0.0.1:4222";
const MODEL: &str = "../../.models/SmolLM2-135M-Instruct.Q4_1.gguf";

/// A server and a process for each site. Dropping it ends them.
pub(super) struct Fleet {
    pub(super) nats: NatsServer,
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
    pub(super) fn start(folder: &Path, model: &Path) -> Result<Self, Failure> {
        let example = Config::parse(CONFIG).map_err(Failure::new)?;
        secret(&folder.join("fleet.secret"), 32)?;
        for site in &example.sites {
            secret(&folder.join(format!("{}.password", site.name)), 16)?;
        }
        let users = nats::authorization(&nats::of_sites(&example)?, |site| {
            let file = folder.join(format!("{site}.password"));
            format!("{:?}", fs::read_to_string(file).unwrap_or_default())
        });
        let bus = folder.join("nats");
        fs::create_dir(&bus).map_err(Failure::new)?;
        let nats = NatsServer::start(&bus, &users).map_err(Failure::new)?;
        let text = configuration(&nats.address(), model)?;
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

/// The example's file, on ports that are free.
fn configuration(nats: &str, model: &Path) -> Result<String, Failure> {
    let model = fs::canonicalize(model).map_err(Failure::new)?;
    let mut text = CONFIG
        .replace(NATS, nats)
        .replace(MODEL, &model.display().to_string());
    for listen in LISTENS {
        text = text.replace(listen, "127.0.0.1:0");
    }
    // Held together until all are chosen, so that no two are alike.
    let held: Vec<TcpListener> = TRANSPORTS
        .iter()
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()
        .map_err(Failure::new)?;
    for (transport, free) in TRANSPORTS.iter().zip(&held) {
        let free = free.local_addr().map_err(Failure::new)?;
        text = text.replace(transport, &free.to_string());
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
    fn the_examples_ports_server_and_model_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model.gguf");
        fs::write(&model, "").unwrap();
        for part in TRANSPORTS.iter().chain(&LISTENS).chain(&[NATS, MODEL]) {
            assert!(CONFIG.contains(part), "{part}");
        }
        let config = Config::parse(&configuration("nats://127.0.0.1:9", &model).unwrap()).unwrap();
        assert!(config.models[0].path.ends_with("model.gguf"));
        assert_eq!(
            config.fleet.nats.as_ref().unwrap().servers,
            ["nats://127.0.0.1:9"]
        );
        let mut ports: Vec<u16> = config.sites.iter().map(|site| site.transport.port()).collect();
        ports.dedup();
        assert_eq!(ports.len(), 3, "{ports:?}");
        assert!(config.sites.iter().all(|site| site.listen.port() == 0));
        for site in config.sites.iter().map(|site| site.name.clone()) {
            assert!(config.clone().running(vec![site]).is_ok());
        }
    }
}
