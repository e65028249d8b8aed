//! Sites as processes of their own: the real binary, one process a site, and a NATS server between them.

use crate::world::{ADMIN, Answer, Ask, MODEL, record_of};
use portolan::client::{Client, ClientError};
use portolan_fleet::NatsServer;
use portolan_fleet::nats::NatsServerError;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long the harness waits for what must come: a process loads a model and compiles nothing.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a fleet is made of.
pub struct FleetPlan<'a> {
    /// The model every site runs.
    pub model: &'a Path,
    /// The sites, each with its jurisdiction; KV may cross between any two.
    pub sites: &'a [(&'a str, &'a str)],
    /// Added to the configuration's top level.
    pub more: &'a str,
}

/// One process a site.
pub struct Processes {
    /// What they talk over.
    pub nats: NatsServer,
    /// Where everything lies.
    pub folder: TempDir,
    running: BTreeMap<String, Running>,
}

struct Running {
    child: Child,
    http: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Processes {
    /// Starts a server and one process a site, and waits until each sees every other. None, said aloud, where there is no
    /// `nats-server` on this machine and it was not insisted on.
    pub fn start(plan: &FleetPlan<'_>) -> Option<Self> {
        Self::start_edited(plan, |_, text, _| text.to_owned())
    }

    /// The same, where `edit` makes each site's file from the one that serves all, and the server's address.
    pub fn start_edited(
        plan: &FleetPlan<'_>,
        mut edit: impl FnMut(&str, &str, &str) -> String,
    ) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let bus = folder.path().join("nats");
        fs::create_dir(&bus).unwrap();
        let nats = match NatsServer::start(&bus, "") {
            Ok(server) => server,
            Err(NatsServerError::Missing) if std::env::var_os("PORTOLAN_TEST_NATS").is_none() => {
                skipped("nats-server is not installed (Debian's package of that name)");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        fs::write(folder.path().join("fleet.secret"), "5a".repeat(32)).unwrap();
        let text = plan.text(&nats);
        for (site, _) in plan.sites {
            let text = edit(site, &text, &nats.address());
            fs::write(folder.path().join(format!("{site}.yaml")), text).unwrap();
        }
        let mut fleet = Self {
            nats,
            folder,
            running: BTreeMap::new(),
        };
        for (site, _) in plan.sites {
            fleet.launch(site, None);
        }
        for (site, _) in plan.sites {
            fleet.opens(site);
        }
        for (site, _) in plan.sites {
            fleet.wait(&format!("{site} sees everyone"), |fleet| {
                fleet
                    .states(site)
                    .values()
                    .all(|state| state == "here" || state == "up")
                    && fleet.ready(site) == plan.sites.len()
            });
        }
        Some(fleet)
    }

    /// Starts a site's process again after [`Processes::kill`]; with another fleet secret where one is given.
    pub fn start_site(&mut self, site: &str, secret: Option<&str>) {
        self.launch(site, secret);
        self.opens(site);
    }

    fn launch(&mut self, site: &str, secret: Option<&str>) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_of(site))
            .unwrap();
        let mut command = Command::new(binary());
        command
            .args(["--json", "serve", "--site", site, "--config"])
            .arg(self.folder.path().join(format!("{site}.yaml")))
            .arg("--data-dir")
            .arg(self.folder.path().join(site))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        if let Some(secret) = secret {
            command.env("PORTOLAN_FLEET_SECRET", secret);
        }
        let child = command.spawn().unwrap();
        let http = String::new();
        self.running.insert(site.to_owned(), Running { child, http });
    }

    /// Waits until the process says that its site is open.
    fn opens(&mut self, site: &str) {
        let log = self.log_of(site);
        let running = self.running.get_mut(site).unwrap();
        let out = running.child.stdout.take().unwrap();
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|_| {
            panic!(
                "{site} did not open: {line}{}",
                fs::read_to_string(&log).unwrap_or_default()
            )
        });
        running.http = format!("http://{}", said["listen"].as_str().unwrap());
    }

    /// Ends a site's process as a power cut would.
    pub fn kill(&mut self, site: &str) {
        self.running.remove(site);
    }

    /// Asks a site's process to end in order, and waits for it.
    pub fn stop(&mut self, site: &str) {
        let mut running = self.running.remove(site).unwrap();
        let process = running.child.id().to_string();
        Command::new("kill").arg(process).status().unwrap();
        running.child.wait().unwrap();
    }

    /// Whether a site's process runs.
    pub fn is_running(&mut self, site: &str) -> bool {
        let running = self.running.get_mut(site);
        running.is_some_and(|running| matches!(running.child.try_wait(), Ok(None)))
    }

    /// An HTTP client of a site.
    pub fn client(&self, site: &str, key: &str) -> Client {
        Client::new(&self.running[site].http, key)
    }

    /// Asks a site.
    pub fn ask(&self, site: &str, key: &str, ask: &Ask) -> Answer {
        self.try_ask(site, key, ask)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Asks a site; the answer may be an error.
    pub fn try_ask(&self, site: &str, key: &str, ask: &Ask) -> Result<Answer, ClientError> {
        let client = self.client(site, key);
        let reply = client.post("/v1/completions", &ask.body(false))?;
        let choice = &reply.body["choices"][0];
        let tokens = serde_json::from_value(choice["token_ids"].clone()).unwrap();
        let text = choice["text"].as_str().unwrap().to_owned();
        let record = record_of(&client, &reply.request_id.unwrap());
        Ok(Answer { tokens, text, record })
    }

    /// What a site says of the fleet.
    pub fn fleet(&self, site: &str) -> Value {
        self.client(site, ADMIN).get("/v1/portolan/fleet").unwrap().body
    }

    /// Whether each site is there, as `site` sees it.
    pub fn states(&self, site: &str) -> BTreeMap<String, String> {
        let fleet = self.fleet(site);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let sites = fleet["sites"].as_array().unwrap().iter();
        sites.map(|s| (text(&s["name"]), text(&s["state"]))).collect()
    }

    /// Instances that `site` would route to.
    pub fn ready(&self, site: &str) -> usize {
        let fleet = self.fleet(site);
        let instances = fleet["instances"].as_array().unwrap().iter();
        instances.filter(|i| i["ready"] == true).count()
    }

    /// Waits until something is so.
    pub fn wait(&self, what: &str, so: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !so(self) {
            assert!(
                began.elapsed() < PATIENCE,
                "waited {PATIENCE:?} in vain: {what}\n{}",
                self.logs()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What a site's process has logged.
    pub fn log(&self, site: &str) -> String {
        fs::read_to_string(self.log_of(site)).unwrap_or_default()
    }

    fn log_of(&self, site: &str) -> PathBuf {
        self.folder.path().join(format!("{site}.log"))
    }

    fn logs(&self) -> String {
        let sites = self.running.keys();
        sites
            .map(|site| format!("--- {site}\n{}", self.log(site)))
            .collect()
    }
}

impl FleetPlan<'_> {
    /// One file for all processes.
    fn text(&self, nats: &NatsServer) -> String {
        let site = |(name, jurisdiction): &(&str, &str)| {
            format!(
                "  - {{name: {name}, jurisdiction: {jurisdiction}, listen: '127.0.0.1:0', transport: '127.0.0.1:{}', \
                 instances: [{{name: {name}-1, model: {MODEL}, kv_pool_mib: 64}}]}}\n",
                free_port()
            )
        };
        let link = |from: &str, to: &str| {
            // So fast, it says, that no model is too small for a fetch to pay.
            format!("  - {{from: {from}, to: {to}, capacity_mbps: 100000, rtt_ms: 1}}\n")
        };
        let names = || self.sites.iter().map(|(name, _)| *name);
        let pairs = names().flat_map(|from| {
            names()
                .filter(move |to| *to != from)
                .map(move |to| link(from, to))
        });
        format!(
            "data_dir: data\noperator_keys: [{ADMIN}]\nmodels: [{{name: {MODEL}, path: '{}'}}]\nsites:\n{}links:\n{}\
             tenants: [{{name: acme, keys: [{}]}}, {{name: globex, keys: [{}], jurisdiction: eu}}]\n\
             fleet: {{secret_file: fleet.secret, lease_ms: 2000, nats: {{servers: ['{}']}}}}\n{}\n",
            self.model.display(),
            self.sites.iter().map(site).collect::<String>(),
            pairs.collect::<String>(),
            crate::world::ACME,
            crate::world::GLOBEX,
            nats.address(),
            self.more,
        )
    }
}

/// A port that nobody listens on at this moment.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// The program, built beside the tests.
pub fn binary() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let built = here.parent().and_then(Path::parent).unwrap().join("portolan");
    assert!(
        built.exists(),
        "{} is missing: cargo build --bin portolan",
        built.display()
    );
    built
}

/// Says visibly that a test did not run.
#[expect(
    clippy::print_stderr,
    reason = "a test that is skipped in silence counts as one that passed"
)]
fn skipped(why: &str) {
    eprintln!("SKIPPED: {why}");
}
