//! The configuration file: one YAML document, checked before any port is bound.

mod trust;

pub use trust::{OperatorKey, PoliciesConfig, SigningKey};

use portolan_base::{BitsPerSecond, Bytes, InstanceName, ModelName, Role, SiteName, TenantName};
use portolan_fleet::{InstanceSpec, LinkSpec, SiteSpec, Topology, TopologyError};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Everything an operator says about a host.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Folder of the store: policies, bindings, tenants, keys, audit.
    pub data_dir: PathBuf,
    /// Folder watched for `TENANT/QUESTION.wasm`; none: that door stays shut.
    #[serde(default)]
    pub policies_dir: Option<PathBuf>,
    /// Keys of the platform's operator.
    pub operator_keys: Vec<OperatorKey>,
    /// Rules for the platform's policies.
    #[serde(default)]
    pub policies: PoliciesConfig,
    /// User classes, the lowest first.
    #[serde(default = "default_classes")]
    pub user_classes: Vec<String>,
    /// Models and where their files are.
    pub models: Vec<ModelConfig>,
    /// Sites run by this process.
    pub sites: Vec<SiteConfig>,
    /// Links between them. KV flows along a link from the prefill site to the decode site.
    #[serde(default)]
    pub links: Vec<LinkConfig>,
    /// Tenants and their keys.
    #[serde(default)]
    pub tenants: Vec<TenantConfig>,
}

/// A model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Its public name.
    pub name: ModelName,
    /// A Hugging Face folder or a `.gguf` file.
    pub path: PathBuf,
    /// Raise it whenever the files change: KV of one version never meets another.
    #[serde(default = "one")]
    pub version: u64,
}

/// A site.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteConfig {
    /// Its name.
    pub name: SiteName,
    /// Its region, free text.
    #[serde(default)]
    pub region: String,
    /// Its jurisdiction.
    pub jurisdiction: String,
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Where other sites connect for KV; port 0 takes any free one.
    #[serde(default = "any_port")]
    pub transport: SocketAddr,
    /// Engine instances.
    pub instances: Vec<InstanceConfig>,
}

/// An engine instance.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceConfig {
    /// Its name, unique within the site.
    pub name: InstanceName,
    /// The model it serves.
    pub model: ModelName,
    /// `prefill`, `decode` or `both`.
    #[serde(default = "both")]
    pub role: Role,
    /// Sequences decoded at once.
    #[serde(default = "eight")]
    pub decode_slots: u32,
    /// Memory for KV kept for reuse, in MiB.
    #[serde(default = "default_pool")]
    pub kv_pool_mib: u64,
    /// Price of a thousand computed tokens, in millionths of the operator's unit.
    #[serde(default)]
    pub price_micros_per_kilotoken: u32,
}

/// A link.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// Where KV comes from.
    pub from: SiteName,
    /// Where it goes.
    pub to: SiteName,
    /// What the link can carry, in Mbit/s.
    pub capacity_mbps: u64,
    /// Round-trip time until the first measurement, in ms.
    #[serde(default)]
    pub rtt_ms: u64,
    /// Price of a GiB, in millionths of the operator's unit.
    #[serde(default)]
    pub price_micros_per_gib: u32,
    /// Makes the real sockets behave like a wide-area link, for demos and drills.
    #[serde(default)]
    pub simulate: Option<SimulatedWan>,
}

/// A wide-area link put in front of real sockets.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedWan {
    /// Delay in each direction, in ms.
    pub one_way_delay_ms: u64,
    /// What the link really carries, in Mbit/s; none: as fast as the machine.
    #[serde(default)]
    pub rate_mbps: Option<u64>,
}

/// A tenant.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantConfig {
    /// Its name.
    pub name: TenantName,
    /// Keys that let it in.
    pub keys: Vec<String>,
    /// Where its data may be processed; empty or `any`: no restriction.
    #[serde(default)]
    pub jurisdiction: String,
    /// Its class; empty: the lowest.
    #[serde(default)]
    pub user_class: String,
    /// Whether its policies must be signed by one of `signing_keys`.
    #[serde(default)]
    pub require_signature: bool,
    /// Whose signatures count for its policies; several while keys are rotated.
    #[serde(default)]
    pub signing_keys: Vec<SigningKey>,
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
    fn value(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Value {
            key: key.into(),
            problem: problem.into(),
        }
    }
}

impl Config {
    /// Reads and checks a file. Relative paths in it are relative to the file's own folder.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        let mut config = Self::parse(&text).map_err(|error| match error {
            ConfigError::Parse { detail, .. } => ConfigError::Parse {
                path: path.to_owned(),
                detail,
            },
            other => other,
        })?;
        config.resolve_paths(path.parent().unwrap_or(Path::new(".")));
        Ok(config)
    }

    /// Parses and checks a document.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = serde_saphyr::from_str(text).map_err(|e| ConfigError::Parse {
            path: PathBuf::from("configuration"),
            detail: e.to_string(),
        })?;
        config.check()?;
        Ok(config)
    }

    /// Makes relative paths relative to `base`.
    pub fn resolve_paths(&mut self, base: &Path) {
        let models = self.models.iter_mut().map(|m| &mut m.path);
        for path in models
            .chain([&mut self.data_dir])
            .chain(self.policies_dir.as_mut())
        {
            if path.is_relative() {
                *path = base.join(&*path);
            }
        }
    }

    /// The fleet it describes.
    pub fn topology(&self) -> Result<Topology, ConfigError> {
        let sites = self.sites.iter().map(site_spec).collect();
        let links = self.links.iter().map(link_spec).collect();
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
        self.check_tenants(&topology)?;
        self.check_trust()
    }

    fn check_instances(&self) -> Result<(), ConfigError> {
        let models: BTreeSet<&str> = self.models.iter().map(|m| m.name.as_str()).collect();
        if models.len() != self.models.len() {
            return Err(ConfigError::value("models", "two models have the same name"));
        }
        for site in &self.sites {
            for instance in &site.instances {
                let key = |field| format!("sites.{}.instances.{}.{field}", site.name, instance.name);
                if !models.contains(instance.model.as_str()) {
                    let known = models.iter().copied().collect::<Vec<_>>().join(", ");
                    let problem = format!("there is no model {}; defined are: {known}", instance.model);
                    return Err(ConfigError::value(key("model"), problem));
                }
                if instance.decode_slots == 0 {
                    return Err(ConfigError::value(key("decode_slots"), "at least 1 is needed"));
                }
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
        for tenant in &self.tenants {
            let key = |field| format!("tenants.{}.{field}", tenant.name);
            if tenant.keys.iter().any(|k| k.is_empty() || !keys.insert(k)) {
                return Err(ConfigError::value(
                    key("keys"),
                    "a key is empty, or lets someone else in as well",
                ));
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

impl InstanceConfig {
    /// Memory for KV kept for reuse.
    pub fn pool(&self) -> Bytes {
        Bytes(self.kv_pool_mib << 20)
    }
}

fn site_spec(site: &SiteConfig) -> SiteSpec {
    let instance = |i: &InstanceConfig| InstanceSpec {
        name: i.name.clone(),
        model: i.model.clone(),
        role: i.role,
        decode_slots: i.decode_slots,
        price_micros_per_kilotoken: i.price_micros_per_kilotoken,
    };
    SiteSpec {
        name: site.name.clone(),
        region: site.region.clone(),
        jurisdiction: site.jurisdiction.clone(),
        instances: site.instances.iter().map(instance).collect(),
    }
}

fn link_spec(link: &LinkConfig) -> LinkSpec {
    LinkSpec {
        from: link.from.clone(),
        to: link.to.clone(),
        capacity: BitsPerSecond(link.capacity_mbps.saturating_mul(1_000_000)),
        rtt: Duration::from_millis(link.rtt_ms),
        price_micros_per_gib: link.price_micros_per_gib,
    }
}

fn default_classes() -> Vec<String> {
    vec!["standard".to_owned()]
}

fn one() -> u64 {
    1
}

fn eight() -> u32 {
    8
}

/// 256 MiB hold some 5,000 tokens of a small model's KV in 32-bit floats.
fn default_pool() -> u64 {
    256
}

fn both() -> Role {
    Role::Both
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("name: acme", "name: ../acme", "'.'"),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = Config::parse(&GOOD.replacen(from, to, 1))
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{to}: {error}");
        }
    }
}
