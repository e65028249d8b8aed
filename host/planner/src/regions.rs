//! A set-up of several regions: who may serve whom, what that takes, and what it costs.
//!
//! Residency comes first and partitions the sites, before anything is optimised; then the sites that answer within the
//! objective are found, nearest first; then instances are counted so that they hold the load and the objective; then
//! the bill. Latency is additive: round trips, waiting, prefill.
//!
//! | file | holds |
//! |---|---|
//! | [`design`] | the steps above |
//! | [`queue`] | how long requests wait for one of several instances |
//! | [`distance`] | from what length on a prefix elsewhere is worth the way |

mod design;
mod distance;
mod queue;

pub use design::design;
pub use distance::{break_even, fetch_break_even};

use crate::profile::{DecodeProfile, PrefillProfile};
use portolan_base::kv::KvSize;
use portolan_base::{BitsPerSecond, Bytes, Tokens};
use std::collections::BTreeMap;
use std::time::Duration;

/// A region, by its position in [`RegionsCase::regions`].
pub type RegionIndex = usize;

/// What a set-up is designed from.
#[derive(Clone, Debug, PartialEq)]
pub struct RegionsCase {
    /// Where requests come from, and where sites can be.
    pub regions: Vec<Region>,
    /// Ways between them, each once, the lower index first.
    pub links: BTreeMap<(RegionIndex, RegionIndex), RegionLink>,
    /// What requests are like.
    pub work: RegionalWork,
    /// What they are promised.
    pub objective: Objective,
    /// How fast an instance prefills.
    pub prefill: PrefillProfile,
    /// How fast it decodes.
    pub decode: DecodeProfile,
    /// Size of the model's KV.
    pub kv: KvSize,
    /// Whether each region must have somewhere else to go.
    pub failover: Failover,
}

/// A region.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// The law its site is under.
    pub jurisdiction: String,
    /// Jurisdictions that may process the data of its requests; none: any may.
    pub data_may_go: Option<Vec<String>>,
    /// Requests a second that come in here.
    pub load_rps: f64,
    /// What a site here can be; none when there can be none.
    pub site: Option<SiteOffer>,
}

/// What a site can be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SiteOffer {
    /// Price of an instance for an hour, in the operator's unit.
    pub price_per_hour: f64,
    /// Most instances.
    pub room: u32,
}

/// The way between two regions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegionLink {
    /// Round-trip time.
    pub rtt: Duration,
    /// What it carries.
    pub capacity: BitsPerSecond,
    /// Price of a GiB that crosses.
    pub price_per_gib: f64,
}

/// What requests are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegionalWork {
    /// Mean uncached length.
    pub mean_tokens: f64,
    /// Mean of the squared uncached lengths.
    pub mean_square_tokens: f64,
    /// Uncached length that the objective is kept for.
    pub objective_tokens: Tokens,
    /// Whole length of a mean prompt, cached part included: what crosses as text.
    pub prompt_tokens: f64,
    /// Share of the requests for which KV is fetched from another site of the partition.
    pub fetched_share: f64,
    /// Tokens whose KV is fetched then.
    pub fetched_tokens: f64,
}

/// What requests are promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// Time to first token.
    pub ttft: Duration,
    /// The share of requests that it is kept for, 0 to 1.
    pub quantile: f64,
    /// Round trips before the first token arrives: 1 on a connection that stands, 2 with a handshake.
    pub round_trips: u32,
    /// Most of an instance's time that load may take, 0 to 1.
    pub utilisation: f64,
}

/// Whether a region must have a second site to go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failover {
    /// Each must; there is no design otherwise.
    Required,
    /// Where there is one it has room for the other's load.
    WherePossible,
    /// Instances are counted for undisturbed days.
    None,
}

/// A set-up.
#[derive(Clone, Debug, PartialEq)]
pub struct Design {
    /// Region by region.
    pub regions: Vec<Served>,
    /// Sets of regions whose data may be at the same sites: their caches may be one.
    pub partitions: Vec<Partition>,
    /// Site by site, those that have instances.
    pub sites: Vec<Site>,
    /// Link by link.
    pub links: Vec<Crossing>,
    /// What it costs.
    pub bill: Bill,
}

/// How a region is served.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// Sites that may and can, the best first: the first serves, the others follow in failover.
    pub by: Vec<Way>,
    /// Sites that may not or cannot, and why.
    pub not_by: Vec<(RegionIndex, Obstacle)>,
}

/// One way to serve a region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// The site.
    pub site: RegionIndex,
    /// Round-trip time to it.
    pub rtt: Duration,
    /// Time to first token of a prompt that the objective is kept for, when nothing waits.
    pub ttft: Duration,
}

/// What keeps a site from serving a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Its jurisdiction may not process the region's data.
    Residency,
    /// There is no link between them.
    NoLink,
    /// The first token comes too late, even when nothing waits.
    TooFar {
        /// When it comes.
        ttft: Duration,
    },
}

/// Regions whose data may be at the same sites.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The regions.
    pub data_of: Vec<RegionIndex>,
    /// The sites.
    pub at: Vec<RegionIndex>,
}

/// A site with instances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Site {
    /// Where.
    pub region: RegionIndex,
    /// How many instances.
    pub instances: u32,
    /// Requests a second on an undisturbed day.
    pub load_rps: f64,
    /// Requests a second when the site whose loss hits it hardest is gone.
    pub worst_rps: f64,
    /// Share of the instances' time that the worst load takes.
    pub utilisation: f64,
    /// What the objective's share of requests waits at most, at the worst load.
    pub wait: Duration,
}

/// What a link is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// Its ends.
    pub between: (RegionIndex, RegionIndex),
    /// Its round-trip time.
    pub rtt: Duration,
    /// Cached tokens from which on a request gains by crossing, with one round trip and with two.
    pub request: [Tokens; 2],
    /// Tokens from which on fetching their KV beats computing them; none when it never does.
    pub fetch: Option<Tokens>,
}

/// A month's cost, in the currency of the prices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bill {
    /// Instances.
    pub instances: f64,
    /// Requests and answers that cross to another region's site.
    pub requests: f64,
    /// KV that is fetched within partitions.
    pub fetches: f64,
    /// Bytes a month that cross in all.
    pub crossing: Bytes,
}

impl Bill {
    /// All of it.
    pub fn total(&self) -> f64 {
        self.instances + self.requests + self.fetches
    }
}

/// Why there is no design.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NoDesign {
    /// Residency leaves no site for a region.
    #[error(
        "requests of {region} cannot be served: their data may be processed {}; allow another jurisdiction or put a \
         site there",
        match may_go.is_empty() {
            true => "nowhere".to_owned(),
            false => format!("in {} only, and no site is there", may_go.join(", ")),
        }
    )]
    Residency {
        /// Which region.
        region: String,
        /// Where its data may go.
        may_go: Vec<String>,
    },
    /// No site that may serve a region answers in time.
    #[error(
        "requests of {region} miss {} ms: the nearest site they may use is {site}, {} ms of round trips and {} ms of \
         prefill away{}",
        objective.as_millis(), trips.as_millis(), prefill.as_millis(),
        if prefill >= objective { "; prefill alone takes as long, so that no place helps: faster instances would" }
        else { "; a nearer site would help" }
    )]
    TooFar {
        /// Which region.
        region: String,
        /// The nearest site that residency allows.
        site: String,
        /// Its round trips together.
        trips: Duration,
        /// Prefill of a prompt that the objective is kept for.
        prefill: Duration,
        /// What was promised.
        objective: Duration,
    },
    /// No site that may serve a region is linked to it.
    #[error("requests of {region} cannot be served: no site they may use is linked to it")]
    NoLink {
        /// Which region.
        region: String,
    },
    /// A region has one site only, and needs another.
    #[error(
        "requests of {region} have nowhere to go when {site} is lost: {why}; say `failover: where-possible` to accept that"
    )]
    NoFailover {
        /// Which region.
        region: String,
        /// The only site that serves it.
        site: String,
        /// What keeps the others from it.
        why: String,
    },
    /// A site cannot hold what it must.
    #[error("{site} needs {needed} instances for {load_rps:.1} requests a second and has room for {room}")]
    NoRoom {
        /// Which site.
        site: String,
        /// Instances it needs; at least so many.
        needed: u32,
        /// Instances it can have.
        room: u32,
        /// Its load in the worst case.
        load_rps: f64,
    },
    /// A link is too narrow for what is to cross it on an undisturbed day.
    #[error(
        "{needed_gbps:.3} Gbit/s of requests and of KV that is fetched are to cross between {} and {}, and the link carries \
         {gbps}; widen it, or have less fetched",
        between[0], between[1]
    )]
    NarrowLink {
        /// Its ends.
        between: [String; 2],
        /// What is to cross.
        needed_gbps: f64,
        /// What it carries.
        gbps: f64,
    },
    /// KV is to be fetched that is computed sooner.
    #[error(
        "KV of {tokens} tokens is to be fetched between {} and {}, and is computed sooner than it comes{}; widen the link, \
         or leave `workload.fetched` out",
        between[0], between[1],
        from.map_or_else(String::new, |from| format!(": that pays from {} tokens on", from.0))
    )]
    IdleFetch {
        /// The link's ends.
        between: [String; 2],
        /// What is to be fetched.
        tokens: f64,
        /// From how many tokens on fetching pays; none when it never does.
        from: Option<Tokens>,
    },
}
