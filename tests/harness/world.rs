//! Two sites in this process over real sockets, driven through their HTTP doors.

use portolan::client::{Client, ClientError};
use portolan::config::Config;
use portolan::host::Host;
use portolan_base::SiteName;
use portolan_decide::PathRecord;
use portolan_ports::Transport;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The model's name in every world.
pub const MODEL: &str = "test-model";

/// Keys of the two tenants and of the operator.
pub const ACME: &str = "key-acme";
/// Its data must stay in the EU.
pub const GLOBEX: &str = "key-globex";
/// The operator.
pub const ADMIN: &str = "key-admin";

/// How long the harness waits for what must come.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the link between the sites is like.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Delay of each direction in ms.
    pub delay_ms: u64,
    /// What it carries in Mbit/s; 0: as fast as the machine.
    pub rate_mbps: u64,
}

/// Two running sites: `paris`, where clients ask, and `virginia`.
pub struct World {
    /// The host.
    pub host: Host,
    /// What it runs on.
    pub runtime: Runtime,
    /// What it was started with.
    pub config: Config,
    /// Where its data lies.
    pub folder: TempDir,
}

/// An answer with its path record.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The text.
    pub text: String,
    /// Why it went where it went.
    pub record: PathRecord,
}

/// A completion to ask for.
#[derive(Clone, Debug)]
pub struct Ask {
    key: String,
    prompt: Value,
    max_tokens: u32,
    prefill_policy: &'static str,
}

impl Ask {
    /// acme asks for what follows `prompt`.
    pub fn tokens(prompt: &[u32]) -> Self {
        Self {
            key: ACME.into(),
            prompt: json!(prompt),
            max_tokens: 32,
            prefill_policy: "auto",
        }
    }

    /// Another tenant asks.
    #[must_use]
    pub fn by(mut self, key: &str) -> Self {
        self.key = key.into();
        self
    }

    /// So many tokens.
    #[must_use]
    pub fn max(mut self, tokens: u32) -> Self {
        self.max_tokens = tokens;
        self
    }

    /// At the site it came in.
    #[must_use]
    pub fn local(mut self) -> Self {
        self.prefill_policy = "local_only";
        self
    }

    /// At the other site.
    #[must_use]
    pub fn remote(mut self) -> Self {
        self.prefill_policy = "remote_required";
        self
    }

    /// At the other site if it works.
    #[must_use]
    pub fn remote_preferred(mut self) -> Self {
        self.prefill_policy = "remote_preferred";
        self
    }

    /// The request's body.
    pub fn body(&self, stream: bool) -> Value {
        json!({
            "model": MODEL, "prompt": self.prompt, "max_tokens": self.max_tokens, "temperature": 0,
            "ignore_eos": true, "return_token_ids": true, "prefill_policy": self.prefill_policy, "stream": stream,
        })
    }
}

impl World {
    /// Starts both sites with the model at `model`.
    pub fn start(model: &Path, link: Link) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = config(model, link, folder.path(), "{}");
        Self::run(config, folder)
    }

    /// The same, where acme has `quotas` of its own.
    pub fn start_with_quotas(model: &Path, link: Link, quotas: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = config(model, link, folder.path(), quotas);
        Self::run(config, folder)
    }

    /// The same, with what `change` makes of the configuration.
    pub fn start_changed(model: &Path, link: Link, change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(model, link, folder.path(), "{}");
        change(&mut config);
        Self::run(config, folder)
    }

    fn run(config: Config, folder: TempDir) -> Self {
        let runtime = Runtime::new().unwrap();
        let host = runtime
            .block_on(Host::start(config.clone()))
            .unwrap_or_else(|e| panic!("{e}"));
        let world = Self {
            host,
            runtime,
            config,
            folder,
        };
        world.wait("virginia reported its load", || world.sees_virginia());
        world
    }

    /// Stops everything and starts it again on the same folder.
    #[must_use]
    pub fn restart(self) -> Self {
        let Self {
            host,
            runtime,
            config,
            folder,
        } = self;
        runtime.block_on(host.stop());
        drop(runtime);
        Self::run(config, folder)
    }

    /// The watched folder.
    pub fn policies_dir(&self) -> PathBuf {
        self.folder.path().join("policies")
    }

    /// An HTTP client of paris.
    pub fn client(&self, key: &str) -> Client {
        let site = self.host.site("paris").expect("paris runs");
        Client::new(&format!("http://{}", site.http()), key)
    }

    /// Asks without streaming.
    pub fn ask(&self, ask: &Ask) -> Answer {
        self.try_ask(ask).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Asks without streaming; the answer may be an error.
    pub fn try_ask(&self, ask: &Ask) -> Result<Answer, ClientError> {
        let client = self.client(&ask.key);
        let reply = client.post("/v1/completions", &ask.body(false))?;
        let tokens = serde_json::from_value(reply.body["choices"][0]["token_ids"].clone()).unwrap();
        let text = reply.body["choices"][0]["text"].as_str().unwrap().to_owned();
        let record = record_of(
            &client,
            reply
                .request_id
                .as_deref()
                .expect("every response names its request"),
        );
        Ok(Answer { tokens, text, record })
    }

    /// Uploads a component for a tenant and makes it active.
    pub fn push(
        &self,
        key: &str,
        slot: (&str, &str),
        component: &[u8],
        config: &str,
    ) -> Result<Value, ClientError> {
        let (tenant, question) = slot;
        let path = format!("/v1/portolan/tenants/{tenant}/policies/{question}");
        let pushed = self
            .client(key)
            .put(&path, &[("name", "tested"), ("config", config)], component);
        pushed.map(|reply| reply.body)
    }

    /// The versions and bindings of a tenant.
    pub fn policies(&self, key: &str, tenant: &str) -> Value {
        self.client(key)
            .get(&format!("/v1/portolan/tenants/{tenant}/policies"))
            .unwrap()
            .body
    }

    /// Bytes that paris received from virginia.
    pub fn arrived(&self) -> u64 {
        let site = self.host.site("paris").expect("paris runs");
        let virginia = SiteName::new("virginia").unwrap();
        site.transport()
            .link(&virginia)
            .map_or(0, |reading| reading.received.0)
    }

    /// Waits until something is so.
    pub fn wait(&self, what: &str, so: impl Fn() -> bool) {
        let began = Instant::now();
        while !so() {
            assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn sees_virginia(&self) -> bool {
        let fleet = self.client(ADMIN).get("/v1/portolan/fleet").unwrap().body;
        let instances = fleet["instances"]
            .as_array()
            .expect("the fleet lists instances")
            .iter();
        let ready = |i: &&Value| i["ready"] == true && i["site"] == "virginia";
        instances.filter(ready).count() == 1
    }
}

/// A shipped component, built by `make plugins`.
pub fn shipped(name: &str) -> Vec<u8> {
    let folder = std::env::var_os("PORTOLAN_PLUGINS").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../plugins/dist"));
    let file = folder.join(format!("{name}.wasm"));
    std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}; run `make plugins`", file.display()))
}

/// The path record of a request, once it is settled.
pub fn record_of(client: &Client, id: &str) -> PathRecord {
    let began = Instant::now();
    loop {
        let reply = client.get(&format!("/v1/portolan/requests/{id}")).unwrap();
        let record: PathRecord = serde_json::from_value(reply.body).unwrap();
        if record.status != "running" || began.elapsed() > PATIENCE {
            return record;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn config(model: &Path, link: Link, folder: &Path, acme_quotas: &str) -> Config {
    let rate = if link.rate_mbps == 0 {
        String::new()
    } else {
        format!(", rate_mbps: {}", link.rate_mbps)
    };
    let wan = format!("{{one_way_delay_ms: {}{rate}}}", link.delay_ms);
    let text = format!(
        "
data_dir: '{data}'
policies_dir: '{policies}'
policies:
  quotas: {{uploads_per_hour: 100000}}
operator_keys: [{ADMIN}]
user_classes: [standard, premium]
models: [{{name: {MODEL}, path: '{model}'}}]
sites:
  - {{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: [{{name: p1, model: {MODEL}, kv_pool_mib: 8}}]}}
  - {{name: virginia, jurisdiction: us, listen: '127.0.0.1:0', instances: [{{name: v1, model: {MODEL}, kv_pool_mib: 8}}]}}
links:
  - {{from: virginia, to: paris, capacity_mbps: 1000, rtt_ms: 1, simulate: {wan}}}
  - {{from: paris, to: virginia, capacity_mbps: 1000, rtt_ms: 1, simulate: {wan}}}
tenants:
  - {{name: acme, keys: [{ACME}], user_class: premium, quotas: {acme_quotas}}}
  - {{name: globex, keys: [{GLOBEX}], jurisdiction: eu}}
",
        data = folder.join("data").display(),
        policies = folder.join("policies").display(),
        model = model.display(),
    );
    Config::parse(&text).unwrap_or_else(|e| panic!("{e}"))
}
