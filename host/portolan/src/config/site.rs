//! Sites and their engine instances.

use super::engine::serving;
use super::{EngineKind, NixlSettings, ServerConfig, TiersConfig};
use portolan_base::{Bytes, InstanceName, ModelName, Role, SiteName};
use portolan_engine::{CacheConfig, ComputeDevice};
use portolan_fleet::{InstanceSpec, SiteSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// A site.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SiteConfig {
    /// No two alike.
    #[schemars(with = "super::schema::Name")]
    pub name: SiteName,
    /// Free text; `region-cache-aware` compares it.
    #[serde(default)]
    pub region: String,
    /// Where the site lies, in the law's eyes.
    pub jurisdiction: String,
    /// Where clients connect; port 0 takes any free one.
    #[schemars(with = "super::schema::Address")]
    pub listen: SocketAddr,
    /// Where other sites connect for KV; port 0 takes any free one.
    #[serde(default = "any_port")]
    #[schemars(with = "super::schema::Address")]
    pub transport: SocketAddr,
    /// Where other processes reach it for KV, where that is not `transport`.
    #[serde(default)]
    #[schemars(with = "Option<super::schema::Address>")]
    pub advertise: Option<SocketAddr>,
    /// Certificate for KV between sites: `ca`, `certificate`, `key`, PEM files; made by `portolan tls init`.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
    /// Lets KV leave this machine unencrypted; without it and without `tls`, `transport` has to be a loopback address.
    #[serde(default)]
    pub plaintext: bool,
    /// NIXL, where a link uses it.
    #[serde(default)]
    pub nixl: NixlSettings,
    /// Where KV goes that an instance's pool has no room for ([kv-pool.md](kv-pool.md#tiers)).
    #[serde(default)]
    pub kv_tiers: TiersConfig,
    /// May be empty.
    pub instances: Vec<InstanceConfig>,
}

/// PEM files that prove a site's name to the others.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The authority that signed every site's certificate.
    pub ca: PathBuf,
    /// The site's certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// An engine instance.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InstanceConfig {
    /// No two alike within a site.
    #[schemars(with = "super::schema::Name")]
    pub name: InstanceName,
    /// One of `models`.
    #[schemars(with = "super::schema::Name")]
    pub model: ModelName,
    /// Which engine it is ([engines.md](engines.md)).
    #[serde(default)]
    pub engine: EngineKind,
    /// Where an engine that is not ours is, and how it is started.
    #[serde(default)]
    pub server: Option<ServerConfig>,
    /// What the native engine computes with: `cpu`, `cuda` (the first GPU) or `cuda:N`, or `cpu-tensors`
    /// ([native-engine.md](native-engine.md#on-gpus)).
    #[serde(default)]
    #[schemars(with = "super::schema::DeviceKey")]
    pub device: ComputeDevice,
    /// What it is for.
    #[serde(default = "both")]
    #[schemars(with = "super::schema::RoleKey")]
    pub role: Role,
    /// Sequences decoded at once; further ones wait.
    #[serde(default = "eight")]
    pub decode_slots: u32,
    /// Memory for KV kept for reuse, in MiB.
    #[serde(default = "default_pool")]
    pub kv_pool_mib: u64,
    /// A hybrid model's state is kept after every so many blocks of 64 tokens ([kv-pool.md](kv-pool.md)).
    #[serde(default = "every_512_tokens")]
    pub kv_snapshot_blocks: NonZeroU32,
    /// Price of a thousand computed tokens, in millionths of the operator's unit.
    #[serde(default)]
    pub price_micros_per_kilotoken: u32,
    /// Computes a prompt of 65 tokens and 3 tokens of an answer before it serves; a site opens without an instance that
    /// is not warm after 30 s.
    #[serde(default = "yes")]
    pub warmup_before_serving: bool,
    /// Instances that this entry stands for: `NAME-1` to `NAME-N` when there are several.
    #[serde(default = "one")]
    pub replicas: u32,
    /// One of `resource_classes`, whose values stand in for keys that are left out here.
    #[serde(default)]
    pub resource_class: Option<String>,
    /// Prompts that may wait for prefill; a further one takes the next route, or 503 when there is none. None: no bound.
    #[serde(default)]
    pub max_queue_depth: Option<u32>,
}

impl InstanceConfig {
    /// Memory for KV kept for reuse.
    pub fn pool(&self) -> Bytes {
        Bytes(self.kv_pool_mib << 20)
    }
}

/// What the fleet knows of a site.
pub(super) fn site_spec(site: &SiteConfig) -> SiteSpec {
    let instance = |i: &InstanceConfig| InstanceSpec {
        name: i.name.clone(),
        model: i.model.clone(),
        role: i.role,
        serving: serving(site, i),
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

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

fn eight() -> u32 {
    8
}

/// 256 MiB hold some 5,000 tokens of a small model's KV in 32-bit floats.
fn default_pool() -> u64 {
    256
}

fn every_512_tokens() -> NonZeroU32 {
    CacheConfig::default().snapshot_blocks
}

fn both() -> Role {
    Role::Both
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}
