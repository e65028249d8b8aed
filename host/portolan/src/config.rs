//! The configuration file: one YAML document, checked before any port is bound.

mod book;
mod changing;
mod common;
mod compression;
mod device;
mod engine;
mod fleet;
mod invalidation;
mod kv;
mod limits;
mod link;
mod nixl;
mod observability;
mod patience;
mod pool;
mod quotas;
mod reading;
mod recovery;
mod routing;
mod scaling;
mod schema;
mod secrets;
mod site;
mod transfer;
mod tree;
mod trust;
mod unknown;
mod wording;

pub use book::{fill, tables};
pub use changing::{ChangingConfig, Takes, takes_of};
pub use common::{COMMON, tellable_common_of, with_common};
pub use compression::LinkCompression;
pub use engine::{EngineKind, HandOverConfig, KvEventsConfig, ServerConfig};
pub use fleet::{FleetConfig, FleetSecret, NatsSettings, NatsTlsSettings};
pub use invalidation::{InvalidationConfig, PressureConfig};
pub use kv::{KvConfig, PrewarmConfig, PublicPrefix, ReplicateConfig, TiersConfig};
pub use limits::LimitsConfig;
pub use link::{LinkConfig, PathConfig, SimulatedWan};
pub use nixl::{LinkBackend, NixlSettings};
pub use observability::ObservabilityConfig;
pub use patience::{RetriesConfig, TimeoutsConfig};
pub use pool::ResourceClass;
pub use quotas::{QuotaConfig, RuntimeQuotas};
pub use recovery::{ProbeConfig, RecoveryConfig};
pub use routing::{Mode, RoutingConfig};
pub use scaling::{NoWebhook, ScalingConfig, WebhookUrl};
pub use schema::schema;
pub use secrets::{mask, without_credentials};
pub use site::{InstanceConfig, SiteConfig, TlsConfig};
pub use transfer::TransferConfig;
pub use tree::Change;
pub use trust::{OperatorKey, PoliciesConfig, SigningKey};

use link::link_spec;
use portolan_base::kv::KvWindow;
use portolan_base::{ModelName, SiteName, TenantName};
use portolan_fleet::{Topology, TopologyError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use site::site_spec;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Everything an operator says about a host.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Folder of the store; made if there is none.
    pub data_dir: PathBuf,
    /// Watched folder for `TENANT/QUESTION.wasm`; without it that door stays shut.
    #[serde(default)]
    pub policies_dir: Option<PathBuf>,
    /// Keys of the platform's operators; at least one that is not empty; the audit log names `name`.
    pub operator_keys: Vec<OperatorKey>,
    /// Rules for the platform's policies.
    #[serde(default)]
    pub policies: PoliciesConfig,
    /// Rules for KV kept for reuse.
    #[serde(default)]
    pub kv: KvConfig,
    /// How long what is cached is trusted.
    #[serde(default)]
    pub invalidation: InvalidationConfig,
    /// How long a stage may take before the next route is tried.
    #[serde(default)]
    pub timeouts: TimeoutsConfig,
    /// How much is tried again.
    #[serde(default)]
    pub retries: RetriesConfig,
    /// The lowest class first; a request may claim its tenant's class or a later one.
    #[serde(default = "default_classes")]
    pub user_classes: Vec<String>,
    /// Models and where their files are.
    pub models: Vec<ModelConfig>,
    /// All sites of the fleet; at least one.
    pub sites: Vec<SiteConfig>,
    /// Those of them that this process runs; none named: all.
    #[serde(default)]
    #[schemars(with = "Vec<schema::Name>")]
    pub run: Vec<SiteName>,
    /// What the processes of a fleet share.
    #[serde(default)]
    pub fleet: FleetConfig,
    /// Links between them. KV flows along a link from the prefill site to the decode site.
    #[serde(default)]
    pub links: Vec<LinkConfig>,
    /// Tenants and their keys.
    #[serde(default)]
    pub tenants: Vec<TenantConfig>,
    /// User classes, each one of `user_classes`, whose KV never crosses quantised.
    #[serde(default)]
    pub exact_kv_classes: Vec<String>,
    /// Whom to tell how many instances the load asks for ([scheduling.md](scheduling.md#scaling)).
    #[serde(default)]
    pub scaling: ScalingConfig,
    /// `cross_site`, or `local`: no KV crosses between sites, as if there were no links.
    #[serde(default)]
    pub mode: Mode,
    /// Where prompts may be computed.
    #[serde(default)]
    pub routing: RoutingConfig,
    /// How KV crosses between sites.
    #[serde(default)]
    pub transfer: TransferConfig,
    /// What each site lets in at once.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// What the host tells of itself.
    #[serde(default)]
    pub observability: ObservabilityConfig,
    /// What instances of one kind of machine have in common, by a name that `resource_class` gives.
    #[serde(default)]
    pub resource_classes: BTreeMap<String, ResourceClass>,
    /// How this file is changed while the host runs.
    #[serde(default)]
    pub changing: ChangingConfig,
    /// Backups and drills.
    #[serde(default)]
    pub recovery: RecoveryConfig,
    /// Where it was read, if it was.
    #[serde(skip)]
    pub source: Option<Source>,
}

/// Where a configuration was read.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// What stood there.
    pub text: String,
}

/// A model.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Its public name; no two alike.
    #[schemars(with = "schema::Name")]
    pub name: ModelName,
    /// A Hugging Face folder (`Qwen3ForCausalLM`, `Qwen3_5ForCausalLM`) or a `.gguf` file (`llama`).
    pub path: PathBuf,
    /// Raise it whenever the files change: KV of one version never meets another.
    #[serde(default = "one")]
    pub version: u64,
    /// Attention looks at the latest tokens only: [kv-quality.md](kv-quality.md#windows). Another window is another
    /// model: give it a name or a `version` of its own.
    #[serde(default)]
    #[schemars(with = "Option<schema::WindowKeys>")]
    pub window: Option<KvWindow>,
}

/// A tenant.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantConfig {
    /// Its name.
    #[schemars(with = "schema::Name")]
    pub name: TenantName,
    /// Keys that let it in; a key lets in one tenant only.
    pub keys: Vec<String>,
    /// Where its data may be processed: a jurisdiction of some site; empty or `any`: no restriction.
    #[serde(default)]
    pub jurisdiction: String,
    /// Its class, one of `user_classes`; empty: the lowest.
    #[serde(default)]
    pub user_class: String,
    /// Whether its policies must be signed by one of `signing_keys`.
    #[serde(default)]
    pub require_signature: bool,
    /// Whose signatures count for its policies; several while keys are rotated.
    #[serde(default)]
    pub signing_keys: Vec<SigningKey>,
    /// The tenant's KV never crosses quantised.
    #[serde(default)]
    pub exact_kv: bool,
    /// What it may use, where that is not as usual.
    #[serde(default)]
    pub quotas: QuotaConfig,
    /// Thousandths of each KV pool that it is promised; at most 1000 together.
    #[serde(default)]
    pub kv_share_permille: Option<u32>,
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not the YAML that is expected; the text names line, column and key.
    #[error("{path}: {detail}")]
    Parse {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// The values contradict each other.
    #[error("{key}: {problem}")]
    Value {
        /// The key at fault.
        key: String,
        /// What is wrong, and what would be accepted.
        problem: String,
    },
    /// Sites and links do not fit together.
    #[error("sites and links: {0}")]
    Topology(#[from] TopologyError),
}

impl ConfigError {
    pub(crate) fn value(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Value {
            key: key.into(),
            problem: problem.into(),
        }
    }
}

impl Config {
    /// The fleet it describes.
    pub fn topology(&self) -> Result<Topology, ConfigError> {
        let sites = self.sites.iter().map(site_spec).collect();
        let links = self.links_in_use().iter().map(link_spec).collect();
        Ok(Topology::new(sites, links, self.user_classes.clone())?)
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.operator_keys.iter().all(|key| key.key().is_empty()) {
            return Err(ConfigError::value(
                "operator_keys",
                "name at least one key, or nobody can administer the host",
            ));
        }
        let topology = self.topology()?;
        self.check_instances()?;
        self.check_devices()?;
        self.check_encryption()?;
        self.check_addresses()?;
        self.check_links()?;
        self.check_nixl()?;
        self.check_fleet()?;
        self.check_tenants(&topology)?;
        self.check_trust()?;
        self.check_scaling()?;
        self.check_kv()?;
        self.invalidation.check()?;
        self.check_patience()?;
        self.check_routing()?;
        self.check_transfer()?;
        self.check_limits()?;
        self.check_observability()?;
        self.check_changing()?;
        self.check_recovery()?;
        self.check_quotas()
    }

    fn check_instances(&self) -> Result<(), ConfigError> {
        let models: BTreeSet<&str> = self.models.iter().map(|m| m.name.as_str()).collect();
        if models.len() != self.models.len() {
            return Err(ConfigError::value("models", "two models have the same name"));
        }
        for model in &self.models {
            if model.window.is_some_and(|window| window.tokens == 0) {
                let key = format!("models.{}.window.tokens", model.name);
                return Err(ConfigError::value(
                    key,
                    "at least 1 is needed: a token sees itself",
                ));
            }
        }
        for site in &self.sites {
            for instance in &site.instances {
                let key = |field: &str| format!("sites.{}.instances.{}.{field}", site.name, instance.name);
                if !models.contains(instance.model.as_str()) {
                    let known = models.iter().copied().collect::<Vec<_>>().join(", ");
                    let problem = format!("there is no model {}; defined are: {known}", instance.model);
                    return Err(ConfigError::value(key("model"), problem));
                }
                engine::check(&|field| key(field), instance, self.tenants.len())?;
                if instance.decode_slots == 0 {
                    return Err(ConfigError::value(key("decode_slots"), "at least 1 is needed"));
                }
            }
        }
        Ok(())
    }

    /// Two doors of this process are two addresses.
    fn check_addresses(&self) -> Result<(), ConfigError> {
        let mut known = BTreeSet::new();
        for site in self.sites_here() {
            for (field, address) in [("listen", site.listen), ("transport", site.transport)] {
                // The system chooses a free one for 0.
                if address.port() != 0 && !known.insert(address) {
                    let key = format!("sites.{}.{field}", site.name);
                    return Err(ConfigError::value(
                        key,
                        format!("{address} is taken in this file already"),
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_links(&self) -> Result<(), ConfigError> {
        let mut known = BTreeSet::new();
        for link in &self.links {
            let key = |field| format!("links.{}-{}.{field}", link.from, link.to);
            if link.from == link.to {
                return Err(ConfigError::value(key("to"), "a link joins two different sites"));
            }
            if !known.insert((&link.from, &link.to)) {
                let problem = "the link stands there twice; several ways of one link are its `paths`";
                return Err(ConfigError::value(key("to"), problem));
            }
            if link.capacity_mbps == 0 {
                return Err(ConfigError::value(key("capacity_mbps"), "at least 1 is needed"));
            }
            if link.budget_mbps == Some(0) {
                return Err(ConfigError::value(
                    key("budget_mbps"),
                    "at least 1 is needed, or KV never moves",
                ));
            }
            if link
                .min_bandwidth_mbps
                .is_some_and(|least| least > link.capacity_mbps)
            {
                let problem = "the link's `capacity_mbps` is less: KV would never cross";
                return Err(ConfigError::value(key("min_bandwidth_mbps"), problem));
            }
            if link.max_latency_ms == Some(0) {
                let problem = "at least 1 is needed, or KV never crosses";
                return Err(ConfigError::value(key("max_latency_ms"), problem));
            }
            if link.lanes == Some(0) {
                return Err(ConfigError::value(key("lanes"), "at least 1 is needed"));
            }
            if link.simulate.is_some() && !link.paths.is_empty() {
                let problem =
                    "a simulated link has one way, through the simulation: take `paths` or `simulate` out";
                return Err(ConfigError::value(key("paths"), problem));
            }
        }
        Ok(())
    }

    fn check_encryption(&self) -> Result<(), ConfigError> {
        for site in &self.sites {
            let key = |field| format!("sites.{}.{field}", site.name);
            let leaves = !site.transport.ip().is_loopback();
            if site.tls.is_none() && leaves && !site.plaintext {
                let problem = "KV would leave this machine unencrypted: name certificate, key and authority \
                               (`portolan tls init` makes them), or say `plaintext: true` if the network is trusted";
                return Err(ConfigError::value(key("tls"), problem));
            }
            if site.tls.is_some() && site.plaintext {
                return Err(ConfigError::value(
                    key("plaintext"),
                    "the site has `tls`: take one of the two out",
                ));
            }
        }
        Ok(())
    }

    fn check_tenants(&self, topology: &Topology) -> Result<(), ConfigError> {
        let names = topology.names();
        let mut keys: BTreeSet<&str> = self.operator_keys.iter().map(OperatorKey::key).collect();
        if keys.len() != self.operator_keys.len() {
            return Err(ConfigError::value("operator_keys", "a key stands there twice"));
        }
        self.check_exact_classes()?;
        let mut known = BTreeSet::new();
        for tenant in &self.tenants {
            let key = |field| format!("tenants.{}.{field}", tenant.name);
            if !known.insert(&tenant.name) {
                let problem =
                    "the tenant stands there twice; write its keys and everything else in one place";
                return Err(ConfigError::value(key("name"), problem));
            }
            for (i, own) in tenant.keys.iter().enumerate() {
                let problem = match own.as_str() {
                    "" => "a key is empty",
                    own if tenant.keys[..i].iter().any(|known| known == own) => "a key stands there twice",
                    own if !keys.insert(own) => "a key lets someone else in as well",
                    _ => continue,
                };
                return Err(ConfigError::value(key("keys"), problem));
            }
            if !tenant.jurisdiction.is_empty() && names.jurisdiction(&tenant.jurisdiction).is_none() {
                let problem = format!(
                    "no site lies in {:?}; known are: {}",
                    tenant.jurisdiction,
                    names.jurisdictions.join(", ")
                );
                return Err(ConfigError::value(key("jurisdiction"), problem));
            }
            if !tenant.user_class.is_empty() && !names.user_classes.contains(&tenant.user_class) {
                let problem = format!(
                    "{:?} is not among user_classes: {}",
                    tenant.user_class,
                    names.user_classes.join(", ")
                );
                return Err(ConfigError::value(key("user_class"), problem));
            }
        }
        Ok(())
    }
}

fn default_classes() -> Vec<String> {
    vec!["standard".to_owned()]
}

fn one() -> u64 {
    1
}

#[cfg(test)]
mod tutorial;

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::BitsPerSecond;
    use std::net::SocketAddr;
    use std::path::Path;

    const GOOD: &str = "
data_dir: data
operator_keys: [op]
models: [{name: m, path: m.gguf}]
sites:
  - {name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: [{name: p1, model: m}]}
  - {name: virginia, jurisdiction: us, listen: '127.0.0.1:0', instances: [{name: v1, model: m, role: prefill}]}
links: [{from: virginia, to: paris, capacity_mbps: 1000, rtt_ms: 80, simulate: {one_way_delay_ms: 40}}]
tenants: [{name: acme, keys: [k1]}, {name: globex, keys: [k2], jurisdiction: eu}]
";

    #[test]
    fn a_good_file_is_taken() {
        let mut config = Config::parse(GOOD).unwrap();
        config.resolve_paths(Path::new("/etc/portolan"));
        assert_eq!(config.data_dir, Path::new("/etc/portolan/data"));
        let topology = config.topology().unwrap();
        assert_eq!(topology.names().jurisdictions, ["any", "eu", "us"]);
    }

    #[test]
    fn a_link_says_how_its_site_is_reached_and_what_it_may_take() {
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        let link = |text: &str| {
            let text = GOOD.replacen("simulate: {one_way_delay_ms: 40}", text, 1);
            Config::parse(&text).unwrap().links[0].clone()
        };
        let plain = link("lanes: 2");
        assert_eq!(plain.egress().budget, None);
        assert_eq!(plain.way(address).paths, [address.into()]);
        let two =
            link("budget_mbps: 5, paths: [{to: '10.0.0.1:7', from: 10.0.0.9}, {to: '[2001:db8::1]:7'}]");
        assert_eq!(two.egress().budget, Some(BitsPerSecond(5_000_000)));
        let ways = two.way(address).paths;
        assert_eq!(
            (ways.len(), ways[0].from, ways[1].to.is_ipv6()),
            (2, Some([10, 0, 0, 9].into()), true)
        );
    }

    #[test]
    fn kv_leaves_the_machine_under_tls_or_when_plaintext_was_asked_for() {
        for safe in ["tls: {ca: a, certificate: b, key: c}", "plaintext: true"] {
            let text = format!("jurisdiction: us, transport: '[::]:7000', {safe},");
            let mut config = Config::parse(&GOOD.replacen("jurisdiction: us,", &text, 1)).unwrap();
            config.resolve_paths(Path::new("/etc/portolan"));
            let tls = config.sites[1].tls.as_ref().map(|tls| tls.key.clone());
            assert!(tls.is_none_or(|key| key == Path::new("/etc/portolan/c")));
        }
    }

    #[test]
    fn each_mistake_is_named_with_its_place() {
        for (from, to, expected) in [
            ("data_dir: data", "datadir: data", "datadir"),
            (
                "model: m}",
                "model: x}",
                "sites.paris.instances.p1.model: there is no model x; defined are: m",
            ),
            ("role: prefill", "role: cook", "cook"),
            ("keys: [k2]", "keys: [k1]", "tenants.globex.keys"),
            (
                "jurisdiction: eu}]",
                "jurisdiction: mars}]",
                "known are: any, eu, us",
            ),
            ("operator_keys: [op]", "operator_keys: []", "operator_keys"),
            ("to: paris", "to: mars", "names a site that is not defined"),
            ("name: virginia", "name: paris", "site paris is defined twice"),
            ("listen: '127.0.0.1:0'", "listen: 'here'", "listen"),
            ("rtt_ms: 80", "lanes: 0", "links.virginia-paris.lanes: at least 1"),
            ("rtt_ms: 80", "budget_mbps: 0", "links.virginia-paris.budget_mbps"),
            (
                "rtt_ms: 80",
                "paths: [{to: '[::1]:7'}]",
                "links.virginia-paris.paths",
            ),
            (
                "jurisdiction: us,",
                "jurisdiction: us, transport: '0.0.0.0:7000',",
                "sites.virginia.tls: KV would leave this machine unencrypted",
            ),
            (
                "jurisdiction: us,",
                "jurisdiction: us, plaintext: true, tls: {ca: a, certificate: b, key: c},",
                "sites.virginia.plaintext",
            ),
            ("name: acme", "name: ../acme", "'.'"),
            (
                "name: globex",
                "name: acme",
                "tenants.acme.name: the tenant stands there twice",
            ),
            ("to: paris", "to: virginia", "a link joins two different sites"),
            (
                "links: [",
                "links: [{from: virginia, to: paris, capacity_mbps: 9}, ",
                "links.virginia-paris.to: the link stands there twice",
            ),
            (
                "capacity_mbps: 1000",
                "capacity_mbps: 0",
                "capacity_mbps: at least 1",
            ),
            (
                "listen: '127.0.0.1:0'",
                "listen: '127.0.0.1:7', transport: '127.0.0.1:7'",
                "sites.paris.transport: 127.0.0.1:7 is taken in this file already",
            ),
            (
                "data_dir: data",
                "data_dir: data\nobservability: {log_level: loud}",
                "observability.log_level: \"loud\" is no level",
            ),
            ("rtt_ms: 80", "compression: int2", "int2"),
            (
                "path: m.gguf",
                "path: m.gguf, window: {tokens: 0}",
                "models.m.window.tokens: at least 1",
            ),
            (
                "data_dir: data",
                "data_dir: data\nexact_kv_classes: [vip]",
                "exact_kv_classes: \"vip\" is not among user_classes: standard",
            ),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = Config::parse(&GOOD.replacen(from, to, 1))
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{to}: {error}");
        }
    }
}
