//! Sites and their engine instances.

use super::{NixlSettings, TiersConfig};
use portolan_base::{Bytes, InstanceName, ModelName, Role, SiteName};
use portolan_engine::CacheConfig;
use portolan_fleet::{InstanceSpec, SiteSpec};
use serde::Deserialize;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

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
    /// Where other processes reach it for KV, where that is not `transport`.
    #[serde(default)]
    pub advertise: Option<SocketAddr>,
    /// Certificate, key and authority for KV between sites; none: KV crosses unencrypted.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
    /// Lets KV leave this machine unencrypted.
    #[serde(default)]
    pub plaintext: bool,
    /// NIXL, where a link uses it.
    #[serde(default)]
    pub nixl: NixlSettings,
    /// Tiers below the instances' own pools.
    #[serde(default)]
    pub kv_tiers: TiersConfig,
    /// Engine instances.
    pub instances: Vec<InstanceConfig>,
}

/// PEM files that prove a site's name to the others.
#[derive(Clone, Debug, Deserialize)]
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
    /// A hybrid model's state is kept after every so many blocks of 64 tokens.
    #[serde(default = "every_512_tokens")]
    pub kv_snapshot_blocks: NonZeroU32,
    /// Price of a thousand computed tokens, in millionths of the operator's unit.
    #[serde(default)]
    pub price_micros_per_kilotoken: u32,
    /// Whether it computes a short prompt before it serves.
    #[serde(default = "yes")]
    pub warmup_before_serving: bool,
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
