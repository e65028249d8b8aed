//! Links between sites, and the paths they take.

use super::{LinkBackend, LinkCompression};
use portolan_base::{BitsPerSecond, SiteName};
use portolan_fleet::{LinkFloor, LinkSpec};
use portolan_transport::{Egress, LinkPath, PeerLink, StoreAndForward};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// A link.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// Where KV comes from.
    #[schemars(with = "super::schema::Name")]
    pub from: SiteName,
    /// Where it goes.
    #[schemars(with = "super::schema::Name")]
    pub to: SiteName,
    /// What the link can carry, in Mbit/s.
    pub capacity_mbps: u64,
    /// Round-trip time until the first measurement, in ms.
    #[serde(default)]
    pub rtt_ms: u64,
    /// Price of a GiB, in millionths of the operator's unit.
    #[serde(default)]
    pub price_micros_per_gib: u32,
    /// Most that KV may take of the link, in Mbit/s; the rest is for requests.
    #[serde(default)]
    pub budget_mbps: Option<u64>,
    /// TCP connections.
    #[serde(default)]
    pub lanes: Option<u16>,
    /// How KV is made smaller; `int8` and `int4` change values: [transport.md](transport.md#compression).
    #[serde(default)]
    pub compression: LinkCompression,
    /// When what comes is kept on the receiver's disk tier, so that a transfer that breaks goes on later:
    /// [transport.md](transport.md#store-and-forward).
    #[serde(default)]
    pub store_and_forward: LinkLanding,
    /// What carries KV; `nixl` needs a build with that feature: [transport.md](transport.md#nixl).
    #[serde(default)]
    pub backend: LinkBackend,
    /// Ways to the other site, each `{to: ADDRESS:PORT, from: LOCAL_ADDRESS}`; `from` may be left out.
    #[serde(default)]
    pub paths: Vec<PathConfig>,
    /// Puts a simulated wide-area link in front of the real sockets, for demos and drills.
    #[serde(default)]
    pub simulate: Option<SimulatedWan>,
    /// What it has to deliver for KV to cross, in Mbit/s: a link that was measured below is left alone until that
    /// measurement is ten seconds old.
    #[serde(default)]
    pub min_bandwidth_mbps: Option<u64>,
    /// The longest round trip at which KV crosses, in ms.
    #[serde(default)]
    pub max_latency_ms: Option<u64>,
}

/// When what a transfer brings is kept, so that another one of the same KV goes on from there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LinkLanding {
    /// When the link is too poor for what crosses it, as it was measured.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl From<LinkLanding> for StoreAndForward {
    fn from(landing: LinkLanding) -> Self {
        match landing {
            LinkLanding::Auto => Self::WhenPoor,
            LinkLanding::Always => Self::Always,
            LinkLanding::Never => Self::Never,
        }
    }
}

/// One way to a site.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathConfig {
    /// Where the site listens for KV.
    #[schemars(with = "super::schema::Address")]
    pub to: SocketAddr,
    /// The local address to leave from.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub from: Option<IpAddr>,
}

/// A wide-area link put in front of real sockets.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimulatedWan {
    /// Delay in each direction, in ms.
    pub one_way_delay_ms: u64,
    /// What the simulated link really carries, in Mbit/s.
    #[serde(default)]
    pub rate_mbps: Option<u64>,
}

impl LinkConfig {
    /// What the link has to be like for KV to cross.
    pub fn floor(&self) -> LinkFloor {
        LinkFloor {
            least: self.min_bandwidth_mbps.map(megabits),
            longest: self.max_latency_ms.map(Duration::from_millis),
        }
    }

    /// What the site that KV comes from lets out over the link.
    pub fn egress(&self) -> Egress {
        Egress {
            budget: self.budget_mbps.map(megabits),
            compression: Some(self.compression.into()),
        }
    }

    /// How the site that KV goes to reaches the other, which listens at `address`.
    pub fn way(&self, address: SocketAddr) -> PeerLink {
        let listed = self.paths.iter().map(|path| LinkPath {
            to: path.to,
            from: path.from,
        });
        let mut paths: Vec<_> = listed.collect();
        if paths.is_empty() {
            paths.push(address.into());
        }
        PeerLink {
            paths,
            capacity: Some(megabits(self.capacity_mbps)),
            rtt: Duration::from_millis(self.rtt_ms),
            lanes: self.lanes,
            quantised: self.compression.quant(),
            landing: self.store_and_forward.into(),
            backend: self.backend.into(),
        }
    }
}

/// What the fleet knows of a link.
pub(super) fn link_spec(link: &LinkConfig) -> LinkSpec {
    LinkSpec {
        from: link.from.clone(),
        to: link.to.clone(),
        capacity: megabits(link.capacity_mbps),
        rtt: Duration::from_millis(link.rtt_ms),
        price_micros_per_gib: link.price_micros_per_gib,
    }
}

fn megabits(mbps: u64) -> BitsPerSecond {
    BitsPerSecond(mbps.saturating_mul(1_000_000))
}
