//! What the sites of a host share, and how each piece is made.

use super::bus::HostBus;
use super::live::LiveConfig;
use super::recovery::RecoveryDesk;
use crate::config::{
    Config, ConfigError, EngineKind, FleetSecret, InstanceConfig, PublicPrefix, RuntimeQuotas, SimulatedWan,
    TenantConfig,
};
use portolan_base::{BitsPerSecond, Clock, ModelName, Moment, Random, SiteName};
use portolan_engine::{ComputeDevice, DeviceError, LoadError, LoadedModel, ModelFiles, load_model};
use portolan_fleet::{OpenControlError, Topology, TopologyError};
use portolan_gateway::PublicPrefixes;
use portolan_gateway::policies::{DeskError, PolicyDesk, PolicySlot};
use portolan_gateway::site::ExactKv;
use portolan_plugin::{ArtefactKey, Compilation, ComponentLoader, Limits, LoaderConfig};
use portolan_ports::{
    Admission, ChatMessage, ControlStream, EngineDescription, EngineError, MemoryState, Operation,
    PolicyState, PolicyStore, Principal, StateQuota, StoreError, TemplateValues, TenantRecord, TextError,
    TextModel,
};
use portolan_store::{PlatformSecret, SledState, SledStore};
use portolan_transport::ClusterSecret;
use portolan_transport::fault_proxy::{FaultPlan, FaultProxy};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Who the audit log names for what the configuration file asks for.
const CONFIGURATION: &str = "configuration";

/// Why a host did not start.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Sites and links do not fit together.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The policy runtime cannot be built.
    #[error("the policy runtime cannot be built: {0}")]
    Runtime(#[from] portolan_plugin::EngineError),
    /// The bindings cannot be read.
    #[error("the bound policies cannot be restored: {0}")]
    Policies(DeskError),
    /// A model cannot be loaded.
    #[error("model {model}: {source}")]
    Model {
        /// Which model.
        model: ModelName,
        /// Why.
        source: LoadError,
    },
    /// A model cannot be computed where an instance is to compute it.
    #[error("model {model} on `device: {device}`: {source}")]
    Device {
        /// Which model.
        model: ModelName,
        /// Where.
        device: ComputeDevice,
        /// Why.
        source: DeviceError,
    },
    /// An engine instance does not start.
    #[error("instance {instance} at {site} does not start: {source}")]
    Engine {
        /// Which instance.
        instance: String,
        /// Where.
        site: String,
        /// Why.
        source: EngineError,
    },
    /// An engine that is not ours cannot be watched.
    #[error("instance {instance} at {site} cannot be watched: {source}")]
    Foreign {
        /// Which instance.
        instance: String,
        /// Where.
        site: String,
        /// Why.
        source: portolan_engine::foreign::ForeignError,
    },
    /// An address cannot be used.
    #[error("{what} cannot listen on {address}: {detail}")]
    Listen {
        /// What was to listen.
        what: String,
        /// Where.
        address: SocketAddr,
        /// Why.
        detail: String,
    },
    /// A public prefix cannot be cut into tokens.
    #[error("kv.public_prefixes of model {model}: {source}")]
    PublicPrefix {
        /// Whose.
        model: ModelName,
        /// Why.
        source: TextError,
    },
    /// The control stream cannot be used.
    #[error(transparent)]
    Control(#[from] OpenControlError),
    /// KV cannot be kept on disk.
    #[error(transparent)]
    Disk(portolan_disk::DiskError),
    /// A site's certificate cannot be used.
    #[error("the certificate of site {site} cannot be used: {source}")]
    Tls {
        /// Which site.
        site: SiteName,
        /// Why.
        source: portolan_transport::TlsError,
    },
    /// The bus cannot be used as it is configured.
    #[error(transparent)]
    Bus(#[from] portolan_fleet::NatsError),
    /// The policies folder cannot be watched.
    #[error("the policies folder cannot be watched: {0}")]
    Watch(crate::watch::WatchError),
    /// What the configuration was cannot be kept.
    #[error("versions of the configuration cannot be kept: {0}")]
    Versions(#[from] portolan_ports::ConfigRefusal),
    /// A helper thread broke.
    #[error("start-up broke: {0}")]
    Broken(String),
}

/// Keys derived from the platform's secret, each for one purpose.
#[derive(Clone, Copy)]
pub(super) struct Secrets {
    pub(super) caches: [u8; 32],
    pub(super) artefacts: [u8; 32],
    pub(super) files: [u8; 32],
    pub(super) cluster: ClusterSecret,
    pub(super) summaries: [u8; 32],
    pub(super) bus: [u8; 32],
}

/// What every site of the process uses.
pub(super) struct Shared {
    pub(super) topology: Topology,
    pub(super) store: Arc<SledStore>,
    pub(super) state: Arc<SledState>,
    pub(super) desk: Arc<PolicyDesk>,
    pub(super) models: BTreeMap<ModelName, Model>,
    pub(super) bus: HostBus,
    /// The one order of invalidations; none where no stream reaches all sites.
    pub(super) control: Option<Arc<dyn ControlStream>>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) random: Arc<dyn Random>,
    pub(super) secrets: Secrets,
    pub(super) exact: ExactKv,
    pub(super) public: Arc<PublicPrefixes>,
    /// The configuration as it is at the moment; `config` is the one that the host started with.
    pub(super) live: Arc<LiveConfig>,
    pub(super) recovery: Arc<RecoveryDesk>,
    pub(super) config: Config,
}

/// A model with its version.
#[derive(Clone)]
pub(super) struct Model {
    source: ModelSource,
    pub(super) version: u64,
    /// The same weights wherever instances compute with them.
    on: BTreeMap<ComputeDevice, Arc<LoadedModel>>,
}

/// How much of a model is in memory.
#[derive(Clone)]
enum ModelSource {
    /// All of it: an instance of ours runs it.
    Loaded(Arc<LoadedModel>),
    /// Its tokenizer and its sizes: only engines that are not ours run it.
    Files(Arc<ModelFiles>),
}

impl Model {
    /// Its weights, where they are in memory.
    pub(super) fn loaded(&self) -> Option<Arc<LoadedModel>> {
        match &self.source {
            ModelSource::Loaded(loaded) => Some(Arc::clone(loaded)),
            ModelSource::Files(_) => None,
        }
    }

    /// Its weights where an instance is to compute with them.
    pub(super) fn on(&self, device: ComputeDevice) -> Option<Arc<LoadedModel>> {
        self.on.get(&device).cloned()
    }

    /// All places that its weights are in for instances, in a fixed order.
    pub(super) fn everywhere(&self) -> Vec<Arc<LoadedModel>> {
        self.on.values().cloned().collect()
    }

    /// Its tokenizer and chat template.
    pub(super) fn text(&self) -> Arc<dyn TextModel> {
        match &self.source {
            ModelSource::Loaded(loaded) => loaded.text(),
            ModelSource::Files(files) => files.text(),
        }
    }

    /// What an instance of another engine is.
    pub(super) fn described(&self, instance: &InstanceConfig) -> EngineDescription {
        let (layout, context_tokens, vocabulary) = match &self.source {
            ModelSource::Loaded(m) => (
                m.layout(instance.model.clone(), self.version),
                m.context_tokens(),
                m.vocabulary(),
            ),
            ModelSource::Files(m) => (
                m.layout(instance.model.clone(), self.version),
                m.context_tokens(),
                m.vocabulary(),
            ),
        };
        EngineDescription {
            instance: instance.name.clone(),
            model: instance.model.clone(),
            role: instance.role,
            layout: Arc::new(layout),
            context_tokens,
            vocabulary,
            decode_slots: instance.decode_slots,
        }
    }
}

/// What stays on this machine is derived from the store's own secret; what sites have to agree on from the fleet's, where
/// there is one.
pub(super) fn derive_secrets(own: &PlatformSecret, fleet: Option<FleetSecret>) -> Secrets {
    let fleet = fleet.map(|secret| PlatformSecret::shared(secret.bytes()));
    let shared = fleet.as_ref().unwrap_or(own);
    Secrets {
        caches: shared.derive("portolan tenant cache keys"),
        artefacts: own.derive("portolan compiled artefacts"),
        files: own.derive("portolan kv files"),
        cluster: ClusterSecret::from_bytes(shared.derive("portolan transport")),
        summaries: shared.derive("portolan prefix summaries"),
        bus: shared.derive("portolan bus"),
    }
}

/// The secret that the fleet's sites share.
pub(super) fn fleet_secret(config: &Config) -> Result<Option<FleetSecret>, ConfigError> {
    let secret = config.fleet.secret()?;
    if secret.is_none() && config.sites_here().count() < config.sites.len() {
        return Err(ConfigError::value(
            "fleet.secret_file",
            "sites of other processes have to share a secret with these: name its file, or set PORTOLAN_FLEET_SECRET",
        ));
    }
    Ok(secret)
}

/// The policy runtime of a tool: the default limits, state that ends with the process, and compiling in this process.
pub fn component_loader(
    key: ArtefactKey,
    clock: Arc<dyn Clock>,
) -> Result<ComponentLoader, portolan_plugin::EngineError> {
    component_loader_with(Limits::default(), key, clock)
}

/// The same with other limits.
pub fn component_loader_with(
    limits: Limits,
    key: ArtefactKey,
    clock: Arc<dyn Clock>,
) -> Result<ComponentLoader, portolan_plugin::EngineError> {
    let config = LoaderConfig {
        limits,
        key,
        state: Arc::new(MemoryState::new(StateQuota::default())),
        compilation: Compilation::InProcess,
    };
    ComponentLoader::new(config, clock)
}

/// The policy runtime of a host.
pub(super) fn host_loader(
    quotas: RuntimeQuotas,
    secrets: &Secrets,
    state: Arc<dyn PolicyState>,
    compilation: Compilation,
    clock: Arc<dyn Clock>,
) -> Result<ComponentLoader, portolan_plugin::EngineError> {
    let config = LoaderConfig {
        limits: Limits::default(),
        key: ArtefactKey::from_bytes(secrets.artefacts),
        state,
        compilation,
    };
    let loader = ComponentLoader::new(config, clock)?;
    Ok(loader.with_tenant_limits(quotas.usual, quotas.tenants))
}

/// What policies keep between calls, beside the store.
pub(super) fn open_state(config: &Config, clock: &Arc<dyn Clock>) -> Result<Arc<SledState>, StoreError> {
    let folder = config.data_dir.join("state");
    SledState::open(&folder, config.quotas(), Arc::clone(clock)).map(Arc::new)
}

/// Brings the store's tenants and keys in line with the configuration; what is there already is left alone, so that a
/// restart adds no audit lines. A key that the configuration once named and does not name is revoked; a tenant that it
/// does not name keeps its data and has no key.
pub(super) fn record_tenants(
    config: &Config,
    store: &SledStore,
    clock: &dyn Clock,
) -> Result<(), StoreError> {
    admit(config, store, clock.now(), None)
}

/// As [`record_tenants`], with what an operator did as the first line in the audit log: all of it is written, or nothing.
pub(super) fn admit(
    config: &Config,
    store: &SledStore,
    at: Moment,
    note: Option<Operation>,
) -> Result<(), StoreError> {
    let revoked = store.admit(admission(config), note, CONFIGURATION, at)?;
    if revoked > 0 {
        tracing::info!(revoked, "keys that the configuration does not name were revoked");
    }
    Ok(())
}

/// Whom the file lets in.
fn admission(config: &Config) -> Admission<'_> {
    let lowest = config.user_classes.first().cloned().unwrap_or_default();
    let record = |tenant: &TenantConfig| TenantRecord {
        name: tenant.name.clone(),
        jurisdiction: match tenant.jurisdiction.as_str() {
            "any" => String::new(),
            jurisdiction => jurisdiction.to_owned(),
        },
        user_class: match tenant.user_class.as_str() {
            "" => lowest.clone(),
            class => class.to_owned(),
        },
    };
    let operators = config.operator_keys.iter();
    let operators = operators.map(|key| (key.key(), Principal::Operator, key.holder().cloned()));
    let of_tenants = config.tenants.iter().flat_map(|tenant| {
        let keys = tenant.keys.iter().map(String::as_str);
        keys.map(|key| (key, Principal::Tenant(tenant.name.clone()), None))
    });
    Admission {
        label: CONFIGURATION,
        tenants: config.tenants.iter().map(record).collect(),
        keys: operators.chain(of_tenants).collect(),
    }
}

/// Compiles what the store holds for another release, on a thread of its own: requests are answered meanwhile. It ends
/// with the host, after the component it is at.
pub(super) fn finish_restoring(desk: &Arc<PolicyDesk>, pending: Vec<PolicySlot>) -> Result<(), HostError> {
    if pending.is_empty() {
        return Ok(());
    }
    let desk = Arc::downgrade(desk);
    std::thread::Builder::new()
        .name("policy-restore".into())
        .spawn(move || PolicyDesk::finish_restoring(&desk, pending))
        .map(drop)
        .map_err(|error| HostError::Broken(error.to_string()))
}

/// Loads every model that a site of this process serves, each once however many instances share it. A host that runs
/// all sites loads all models, so that a mistake in one shows at once.
pub(super) async fn load_models(config: &Config) -> Result<BTreeMap<ModelName, Model>, HostError> {
    let mut models = BTreeMap::new();
    let served = |model: &ModelName| {
        let mut instances = config.sites_here().flat_map(|site| &site.instances);
        config.run.is_empty() || instances.any(|instance| instance.model == *model)
    };
    for model in config.models.iter().filter(|model| served(&model.name)).cloned() {
        let (name, version) = (model.name.clone(), model.version);
        let instances = config.sites_here().flat_map(|site| &site.instances);
        let of_it: Vec<_> = instances.filter(|instance| instance.model == name).collect();
        let native = of_it
            .iter()
            .filter(|instance| instance.engine == EngineKind::Native);
        let devices: BTreeSet<ComputeDevice> = native.map(|instance| instance.device).collect();
        let ours = of_it.is_empty() || !devices.is_empty();
        let load = move || -> Result<Model, HostError> {
            let failed = |source| HostError::Model {
                model: model.name.clone(),
                source,
            };
            if !ours {
                let files = ModelFiles::read(&model.path).map_err(failed)?;
                return Ok(Model {
                    source: ModelSource::Files(Arc::new(files)),
                    version,
                    on: BTreeMap::new(),
                });
            }
            let loaded = load_model(&model.path).map_err(failed)?;
            let loaded = Arc::new(match model.window {
                Some(window) => loaded.with_window(window),
                None => loaded,
            });
            let brought = devices.into_iter().map(|device| match loaded.on(device) {
                Ok(there) => Ok((device, there)),
                Err(source) => {
                    let model = model.name.clone();
                    Err(HostError::Device {
                        model,
                        device,
                        source,
                    })
                }
            });
            Ok(Model {
                on: brought.collect::<Result<_, _>>()?,
                source: ModelSource::Loaded(loaded),
                version,
            })
        };
        let model = tokio::task::spawn_blocking(load)
            .await
            .map_err(|e| HostError::Broken(e.to_string()))??;
        models.insert(name, model);
    }
    Ok(models)
}

/// Cuts the public prefixes into the tokens that prompts begin with.
pub(super) fn public_prefixes(
    config: &Config,
    models: &BTreeMap<ModelName, Model>,
    at: Moment,
) -> Result<PublicPrefixes, HostError> {
    let mut public = PublicPrefixes::default();
    for prefix in &config.kv.public_prefixes {
        let Some(model) = models.get(&prefix.model) else {
            continue;
        };
        let tokens = prefix_tokens(prefix, model.text().as_ref(), at);
        let tokens = tokens.map_err(|source| HostError::PublicPrefix {
            model: prefix.model.clone(),
            source,
        })?;
        public.add(prefix.model.clone(), tokens.into());
    }
    Ok(public)
}

fn prefix_tokens(prefix: &PublicPrefix, text: &dyn TextModel, at: Moment) -> Result<Vec<u32>, TextError> {
    let Some(system) = &prefix.system else {
        return text.encode(prefix.text.as_deref().unwrap_or_default(), true);
    };
    // What comes after the system message is the template's own until a user's words begin.
    let message = |role: &str, content: &str| ChatMessage {
        role: role.to_owned(),
        content: content.to_owned(),
        rest: serde_json::Map::new(),
    };
    let rendered = text.render_chat(
        &[message("system", system), message("user", "")],
        &TemplateValues::new(),
        at,
    )?;
    text.encode(&rendered, false)
}

/// Puts a simulated wide-area link in front of `upstream`.
pub(super) async fn simulate(upstream: SocketAddr, wan: SimulatedWan) -> Result<FaultProxy, HostError> {
    let mut plan = FaultPlan::clear(upstream);
    plan.one_way_delay = Duration::from_millis(wan.one_way_delay_ms);
    plan.rate = wan
        .rate_mbps
        .map(|mbps| BitsPerSecond(mbps.saturating_mul(1_000_000)));
    FaultProxy::start(plan).await.map_err(|e| HostError::Listen {
        what: "the simulated link".to_owned(),
        address: upstream,
        detail: e.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::{OsRandom, SystemClock};
    use portolan_base::TenantName;
    use std::path::Path;

    const KEYS: [&str; 4] = ["op-1", "op-2", "sk-acme", "sk-globex"];
    const ACME: &str = "{name: acme, keys: [sk-acme]}";
    const BOTH: &str = "{name: acme, keys: [sk-acme]}, {name: globex, keys: [sk-globex]}";

    /// A host starts with this configuration and ends; gives which of [`KEYS`] its store lets in, and the actions of
    /// the audit log, newest first.
    fn started(folder: &Path, operator_keys: &str, tenants: &str) -> ([bool; 4], Vec<String>) {
        let text = format!(
            "{{data_dir: data, operator_keys: [{operator_keys}], models: [], tenants: [{tenants}],
               sites: [{{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: []}}]}}"
        );
        let config = Config::parse(&text).unwrap();
        let store = SledStore::open(folder, &OsRandom).unwrap();
        record_tenants(&config, &store, &SystemClock::start()).unwrap();
        let let_in = KEYS.map(|key| store.authenticate(key).unwrap().is_some());
        let log = store.audit(usize::MAX).unwrap();
        (let_in, log.into_iter().map(|line| line.action).collect())
    }

    #[test]
    fn a_key_taken_out_of_the_file_is_refused_after_the_restart() {
        let folder = tempfile::tempdir().unwrap();
        let (let_in, log) = started(folder.path(), "op-1, op-2", BOTH);
        assert_eq!((let_in, log.len()), ([true; 4], 6));
        let (let_in, log) = started(folder.path(), "op-1, op-2", BOTH);
        assert_eq!((let_in, log.len()), ([true; 4], 6), "a restart writes nothing");

        let (let_in, log) = started(folder.path(), "op-2", ACME);
        assert_eq!(let_in, [false, true, true, false]);
        assert_eq!(log.len(), 8);
        assert_eq!(log[..2], ["key.revoke", "key.revoke"]);
        let store = SledStore::open(folder.path(), &OsRandom).unwrap();
        let globex = TenantName::new("globex").unwrap();
        assert!(store.tenant(&globex).unwrap().is_some(), "the tenant stays");
        drop(store);

        let (let_in, log) = started(folder.path(), "op-2", BOTH);
        assert_eq!(let_in, [false, true, true, true], "named again, let in again");
        assert_eq!(log[..2], ["key.put", "key.revoke"]);
    }

    #[test]
    fn a_key_that_came_by_other_means_is_left_alone() {
        use portolan_ports::KeyRecord;
        let folder = tempfile::tempdir().unwrap();
        let record = KeyRecord {
            principal: Principal::Operator,
            label: "console".to_owned(),
            holder: None,
        };
        let store = SledStore::open(folder.path(), &OsRandom).unwrap();
        let now = SystemClock::start().now();
        store.put_key("op-1", record, "op", now).unwrap();
        drop(store);
        let (let_in, _) = started(folder.path(), "op-2", ACME);
        assert_eq!(let_in, [true, true, true, false]);
    }
}
