//! Engines that are not ours, as instances of a site.

use super::{ConfigError, InstanceConfig, SiteConfig};
use portolan_base::INDEX_BLOCK_TOKENS;
use portolan_base::kv::KvDtype;
use portolan_decide::Serving;
use portolan_engine::foreign::{
    CommandConfig, Connector, EngineUrl, EventsConfig, KvPlace, KvStoreConfig, Make,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a process may take until it answers, unless told otherwise: vLLM loads weights and compiles for minutes.
const READY_WITHIN: Duration = Duration::from_secs(600);

/// Which engine an instance is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// The host's own, in this process.
    #[default]
    Native,
    /// vLLM, or what speaks as it does.
    Vllm,
    /// llama.cpp's server.
    LlamaCpp,
    /// SGLang.
    Sglang,
}

impl EngineKind {
    /// The make of an engine that is not ours.
    pub fn make(self) -> Option<Make> {
        match self {
            Self::Native => None,
            Self::Vllm => Some(Make::Vllm),
            Self::LlamaCpp => Some(Make::LlamaCpp),
            Self::Sglang => Some(Make::Sglang),
        }
    }
}

/// What there is to say of an engine that is not ours.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Where its server is: `http://HOST:PORT`.
    pub url: String,
    /// How to start it there, program and arguments; empty: it is found.
    pub command: Vec<String>,
    /// Variables for the process.
    pub env: BTreeMap<String, String>,
    /// Where what it prints goes; none: a file under `data_dir`.
    pub log: Option<PathBuf>,
    /// Seconds it may take until it answers.
    pub ready_within_s: Option<u64>,
    /// The key it asks for.
    pub api_key: Option<String>,
    /// The name it knows the model by, where that is not the public one.
    pub served_name: Option<String>,
    /// Its cache events.
    pub kv_events: Option<KvEventsConfig>,
    /// How it hands KV to other instances.
    pub hand_over: Option<HandOverConfig>,
    /// Where it hands KV to the host and takes it from there: vLLM with Portolan's connector, llama.cpp by saved slots.
    pub kv_store: Option<StoreConfig>,
}

/// Where an engine publishes its cache events.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KvEventsConfig {
    /// Rank 0's publisher: `tcp://HOST:PORT`.
    pub endpoint: String,
    /// Rank 0's replays.
    #[serde(default)]
    pub replay: Option<String>,
    /// Data-parallel ranks, each on the next port.
    #[serde(default = "one_rank")]
    pub ranks: u16,
}

/// KV of an engine that lies with the host.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StoreConfig {
    /// vLLM: the local socket that the host listens at and the connector is given.
    #[serde(default)]
    pub socket: Option<PathBuf>,
    /// llama.cpp: the folder that the server saves slots in, its `--slot-save-path`.
    #[serde(default)]
    pub folder: Option<PathBuf>,
    /// Most memory of it.
    #[serde(default = "default_store_mib")]
    pub mib: u64,
    /// Tokens in a block: of vLLM its `--block-size`, of llama.cpp any. Sites that copy KV to each other need the same.
    #[serde(default = "default_block_tokens")]
    pub block_tokens: u32,
    /// Number format of its KV, where that is not the one the model's files are in; llama.cpp's is `f16` unless said.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub dtype: Option<KvDtype>,
}

/// How an engine hands KV to others.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HandOverConfig {
    /// `nixl` or `mooncake` (vLLM), `bootstrap` (SGLang), `slots` (llama.cpp).
    pub connector: ConnectorName,
    /// Instances of a site with the same word work together.
    #[serde(default = "default_group")]
    pub group: String,
    /// Mooncake's or SGLang's bootstrap server; none: port 8998 of the engine's host.
    #[serde(default)]
    pub bootstrap: Option<String>,
    /// For `slots`: the folder that the server saves slots in, its `--slot-save-path`.
    #[serde(default)]
    pub folder: Option<PathBuf>,
}

/// A connector, as vLLM calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectorName {
    /// NixlConnector.
    Nixl,
    /// MooncakeConnector.
    Mooncake,
    /// SGLang's.
    Bootstrap,
    /// llama.cpp's saved slots.
    Slots,
}

impl ServerConfig {
    /// Where its server is.
    pub fn address(&self) -> Option<EngineUrl> {
        EngineUrl::parse(&self.url).ok()
    }

    /// How it is started.
    pub fn process(&self, default_log: PathBuf) -> Option<CommandConfig> {
        (!self.command.is_empty()).then(|| CommandConfig {
            command: self.command.clone(),
            env: self.env.clone().into_iter().collect(),
            log: self.log.clone().unwrap_or(default_log),
            ready_within: self.ready_within_s.map_or(READY_WITHIN, Duration::from_secs),
        })
    }

    /// Its cache events.
    pub fn events(&self) -> Option<EventsConfig> {
        self.kv_events.as_ref().map(|events| EventsConfig {
            endpoint: events.endpoint.clone(),
            replay: events.replay.clone(),
            ranks: events.ranks,
        })
    }

    /// Where its KV lies with the host.
    pub fn store(&self) -> Option<KvStoreConfig> {
        let store = self.kv_store.as_ref()?;
        let place = match (&store.socket, &store.folder) {
            (Some(socket), _) => KvPlace::Socket(socket.clone()),
            (None, folder) => KvPlace::Slots(folder.clone()?),
        };
        Some(KvStoreConfig {
            place,
            most: store.mib.saturating_mul(1 << 20),
        })
    }

    /// How it hands KV over.
    pub fn connector(&self) -> Option<Connector> {
        let hand_over = self.hand_over.as_ref()?;
        let bootstrap = || {
            hand_over
                .bootstrap
                .as_deref()
                .and_then(|url| EngineUrl::parse(url).ok())
        };
        Some(match hand_over.connector {
            ConnectorName::Nixl => Connector::Nixl,
            ConnectorName::Bootstrap => Connector::Bootstrap { server: bootstrap() },
            ConnectorName::Slots => Connector::Slots {
                folder: hand_over.folder.clone()?,
            },
            ConnectorName::Mooncake => Connector::Mooncake {
                bootstrap: bootstrap(),
            },
        })
    }
}

/// How an instance takes part in requests.
pub(super) fn serving(site: &SiteConfig, instance: &InstanceConfig) -> Serving {
    if instance.engine == EngineKind::Native {
        return Serving::Pieces;
    }
    let group = |instance: &InstanceConfig| Some(instance.server.as_ref()?.hand_over.as_ref()?.group.clone());
    let Some(own) = group(instance) else {
        let stored = instance
            .server
            .as_ref()
            .is_some_and(|server| server.kv_store.is_some());
        return match (stored, instance.engine) {
            (false, _) => Serving::Whole,
            (true, EngineKind::LlamaCpp) => Serving::Slotted,
            (true, _) => Serving::Stored,
        };
    };
    let first = site
        .instances
        .iter()
        .position(|other| group(other).as_ref() == Some(&own));
    Serving::Handing(first.and_then(|at| u16::try_from(at).ok()).unwrap_or(u16::MAX))
}

/// Makes relative paths relative to `base`.
pub(super) fn resolve(instance: &mut InstanceConfig, base: &Path) {
    if let Some(log) = instance.server.as_mut().and_then(|server| server.log.as_mut())
        && log.is_relative()
    {
        *log = base.join(&*log);
    }
    let store = instance
        .server
        .as_mut()
        .and_then(|server| server.kv_store.as_mut());
    for path in store
        .into_iter()
        .flat_map(|store| [&mut store.socket, &mut store.folder])
    {
        if let Some(path) = path
            && path.is_relative()
        {
            *path = base.join(&*path);
        }
    }
    let hand_over = instance
        .server
        .as_mut()
        .and_then(|server| server.hand_over.as_mut());
    if let Some(folder) = hand_over.and_then(|hand_over| hand_over.folder.as_mut())
        && folder.is_relative()
    {
        *folder = base.join(&*folder);
    }
}

/// What is wrong with an instance's engine.
pub(super) fn check(
    key: &dyn Fn(&str) -> String,
    instance: &InstanceConfig,
    tenants: usize,
) -> Result<(), ConfigError> {
    let wrong = |field: &str, problem: &str| Err(ConfigError::value(key(field), problem));
    let server = match (instance.engine, &instance.server) {
        (EngineKind::Native, None) => return Ok(()),
        (EngineKind::Native, Some(_)) => {
            return wrong(
                "server",
                "the native engine has none: say which engine it is with `engine`",
            );
        }
        (_, None) => return wrong("server", "an engine that is not ours needs `server: {url: ...}`"),
        (_, Some(server)) => server,
    };
    if let Err(bad) = EngineUrl::parse(&server.url) {
        return wrong("server.url", &bad.to_string());
    }
    let bootstrap = server
        .hand_over
        .as_ref()
        .and_then(|hand_over| hand_over.bootstrap.as_deref());
    if let Some(Err(bad)) = bootstrap.map(EngineUrl::parse) {
        return wrong("server.hand_over.bootstrap", &bad.to_string());
    }
    if instance.engine == EngineKind::LlamaCpp && tenants > 1 {
        let problem = "llama.cpp cannot keep the caches of several tenants apart: serve one tenant, or use another engine";
        return wrong("engine", problem);
    }
    if instance.engine == EngineKind::LlamaCpp && server.kv_events.is_some() {
        return wrong("server.kv_events", "llama.cpp has no cache events");
    }
    if let Some(store) = &server.kv_store {
        match (instance.engine, &store.socket, &store.folder) {
            (EngineKind::Vllm, Some(_), None) | (EngineKind::LlamaCpp, None, Some(_)) => {}
            (EngineKind::Vllm, ..) => {
                return wrong(
                    "server.kv_store.socket",
                    "say where vLLM's connector finds the host, and no folder",
                );
            }
            (EngineKind::LlamaCpp, ..) => {
                let problem = "say where the server saves slots, its `--slot-save-path`, and no socket";
                return wrong("server.kv_store.folder", problem);
            }
            _ => return wrong("server.kv_store", "only vLLM and llama.cpp hand KV to the host"),
        }
        if server.hand_over.is_some() {
            return wrong(
                "server.kv_store",
                "an engine has one connector: `kv_store` or `hand_over`",
            );
        }
        if store.block_tokens == 0 || !store.block_tokens.is_multiple_of(INDEX_BLOCK_TOKENS as u32) {
            return wrong(
                "server.kv_store.block_tokens",
                "blocks have a multiple of 16 tokens",
            );
        }
    }
    check_hand_over(&wrong, instance.engine, server)
}

fn check_hand_over(
    wrong: &dyn Fn(&str, &str) -> Result<(), ConfigError>,
    engine: EngineKind,
    server: &ServerConfig,
) -> Result<(), ConfigError> {
    let Some(hand_over) = &server.hand_over else {
        return Ok(());
    };
    let by_slots = hand_over.connector == ConnectorName::Slots;
    let problem = match (engine, hand_over.connector) {
        (EngineKind::LlamaCpp, ConnectorName::Slots) => None,
        (EngineKind::Sglang, ConnectorName::Bootstrap) => None,
        (EngineKind::Vllm, ConnectorName::Nixl | ConnectorName::Mooncake) => None,
        (EngineKind::LlamaCpp, _) => Some("llama.cpp hands its KV over by `slots` only"),
        (EngineKind::Sglang, _) => Some("SGLang hands its KV over by `bootstrap` only"),
        (EngineKind::Vllm | EngineKind::Native, _) => Some("vLLM hands its KV over by `nixl` or `mooncake`"),
    };
    match (problem, by_slots, &hand_over.folder) {
        (Some(problem), ..) => wrong("server.hand_over.connector", problem),
        (None, true, None) => wrong(
            "server.hand_over.folder",
            "say where the server saves slots, its `--slot-save-path`",
        ),
        (None, false, Some(_)) => wrong("server.hand_over.folder", "only `slots` are saved in a folder"),
        _ => Ok(()),
    }
}

fn default_store_mib() -> u64 {
    1024
}

/// What vLLM takes on GPUs unless told otherwise.
fn default_block_tokens() -> u32 {
    16
}

fn one_rank() -> u16 {
    1
}

fn default_group() -> String {
    "default".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn parse(instances: &str, tenants: &str) -> Result<Config, ConfigError> {
        Config::parse(&format!(
            "data_dir: data\noperator_keys: [op]\nmodels: [{{name: m, path: m.gguf}}]\nsites:\n  - {{name: paris, \
             jurisdiction: eu, listen: '127.0.0.1:0', instances: [{instances}]}}\ntenants: [{tenants}]\n"
        ))
    }

    #[test]
    fn an_engine_is_found_or_started_and_those_of_a_group_work_together() {
        let text = "{name: n, model: m}, \
            {name: v, model: m, engine: vllm, server: {url: 'http://h:8000'}}, \
            {name: p, model: m, role: prefill, engine: vllm, server: {url: 'http://h:8001', hand_over: {connector: nixl}}}, \
            {name: d, model: m, role: decode, engine: vllm, server: {url: 'http://h:8002', command: [vllm, serve], \
             env: {A: b}, kv_events: {endpoint: 'tcp://h:5557', ranks: 2}, hand_over: {connector: mooncake}}}, \
            {name: s, model: m, engine: vllm, server: {url: 'http://h:8003', kv_store: {socket: /run/s.sock, mib: 2}}}, \
            {name: l, model: m, engine: llama-cpp, server: {url: 'http://h:8004', kv_store: {folder: /run/slots}}}";
        let config = parse(text, "{name: t, keys: [k]}").unwrap();
        let site = &config.sites[0];
        let all: Vec<Serving> = site.instances.iter().map(|i| serving(site, i)).collect();
        assert_eq!(
            all,
            [
                Serving::Pieces,
                Serving::Whole,
                Serving::Handing(2),
                Serving::Handing(2),
                Serving::Stored,
                Serving::Slotted
            ]
        );
        let server = site.instances[3].server.as_ref().unwrap();
        let process = server.process("default.log".into()).unwrap();
        assert_eq!(
            (process.command.len(), process.log.as_path()),
            (2, Path::new("default.log"))
        );
        assert_eq!(server.events().unwrap().ranks, 2);
        assert_eq!(server.connector(), Some(Connector::Mooncake { bootstrap: None }));
        let store = site.instances[4].server.as_ref().unwrap().store().unwrap();
        assert_eq!(
            (store.place, store.most),
            (KvPlace::Socket("/run/s.sock".into()), 2 << 20)
        );
        let store = site.instances[5].server.as_ref().unwrap().store().unwrap();
        assert_eq!(store.place, KvPlace::Slots("/run/slots".into()));
    }

    #[test]
    fn each_mistake_is_named() {
        let two = "{name: a, keys: [k]}, {name: b, keys: [l]}";
        for (instance, tenants, expected) in [
            (
                "{name: v, model: m, engine: vllm}",
                "",
                "sites.paris.instances.v.server",
            ),
            ("{name: v, model: m, server: {url: 'http://h:1'}}", "", "server"),
            (
                "{name: v, model: m, engine: vllm, server: {url: 'https://h:1'}}",
                "",
                "say http://HOST:PORT",
            ),
            (
                "{name: v, model: m, engine: llama-cpp, server: {url: 'http://h:1'}}",
                two,
                "several tenants",
            ),
            (
                "{name: v, model: m, engine: llama-cpp, server: {url: 'http://h:1', hand_over: {connector: nixl}}}",
                "",
                "by `slots` only",
            ),
            (
                "{name: v, model: m, engine: llama-cpp, server: {url: 'http://h:1', kv_store: {socket: s}}}",
                "",
                "--slot-save-path",
            ),
            (
                "{name: v, model: m, engine: vllm, server: {url: 'http://h:1', kv_store: {folder: f}}}",
                "",
                "vLLM's connector",
            ),
            (
                "{name: v, model: m, engine: sglang, server: {url: 'http://h:1', kv_store: {socket: s}}}",
                "",
                "only vLLM and llama.cpp",
            ),
            (
                "{name: v, model: m, engine: vllm, server: {url: 'http://h:1', kv_store: {socket: s, block_tokens: 24}}}",
                "",
                "a multiple of 16",
            ),
            (
                "{name: v, model: m, engine: vllm, server: {url: 'http://h:1', kv_store: {socket: s}, hand_over: {connector: nixl}}}",
                "",
                "one connector",
            ),
            (
                "{name: v, model: m, engine: llama-cpp, server: {url: 'http://h:1', hand_over: {connector: slots}}}",
                "",
                "--slot-save-path",
            ),
            (
                "{name: v, model: m, engine: vllm, server: {url: 'http://h:1', hand_over: {connector: slots, folder: f}}}",
                "",
                "by `nixl` or `mooncake`",
            ),
            (
                "{name: v, model: m, engine: sglang, server: {url: 'http://h:1', hand_over: {connector: nixl}}}",
                "",
                "by `bootstrap` only",
            ),
            (
                "{name: v, model: m, engine: tgi, server: {url: 'http://h:1'}}",
                "",
                "tgi",
            ),
        ] {
            let error = parse(instance, tenants).unwrap_err().to_string();
            assert!(error.contains(expected), "{instance}: {error}");
        }
    }
}
