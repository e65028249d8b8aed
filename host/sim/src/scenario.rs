//! What is simulated.

use portolan_base::kv::KvSize;
use portolan_base::{BitsPerSecond, InstanceName, Moment, Permille, Role, SiteName, Tokens};
use portolan_decide::{RequestPolicies, SiteIndex};
use portolan_planner::PrefillProfile;
use std::collections::BTreeMap;
use std::time::Duration;

/// A site.
#[derive(Clone, Debug)]
pub struct SimSite {
    /// Its name.
    pub name: SiteName,
    /// Index into the policies' jurisdictions.
    pub jurisdiction: u32,
}

/// An instance: one prefill at a time, first come first served, and a number of decode slots.
#[derive(Clone, Debug)]
pub struct SimInstance {
    /// Its name.
    pub name: InstanceName,
    /// Where it runs.
    pub site: SiteIndex,
    /// What it is for.
    pub role: Role,
    /// How fast it prefills.
    pub prefill: PrefillProfile,
    /// One decode step, whatever the batch.
    pub decode_step: Duration,
    /// Sequences it decodes at once.
    pub decode_slots: u32,
    /// Tokens whose KV its cache holds.
    pub cache: Tokens,
    /// Price of a thousand computed tokens, in millionths of the operator's unit.
    pub price_micros_per_kilotoken: u32,
}

/// A directed link between two sites. Transfers go one after the other.
#[derive(Clone, Copy, Debug)]
pub struct SimLink {
    /// What it carries.
    pub capacity: BitsPerSecond,
    /// Round-trip time.
    pub rtt: Duration,
    /// Price of a GiB, in millionths of the operator's unit.
    pub price_micros_per_gib: u32,
}

/// Where requests come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The site.
    pub site: SiteIndex,
    /// The jurisdiction that their data states, an index into the policies' table; 0: none.
    pub jurisdiction: u32,
}

/// Everything but the traffic.
#[derive(Clone)]
pub struct Scenario {
    /// Sites, in the order of the policies' name table.
    pub sites: Vec<SimSite>,
    /// Instances of one model.
    pub instances: Vec<SimInstance>,
    /// Links by (from, to); KV flows from the prefill to the decode site.
    pub links: BTreeMap<(SiteIndex, SiteIndex), SimLink>,
    /// Where requests come in: each conversation at one of these.
    pub origins: Vec<Origin>,
    /// Tokens in a block of the traffic.
    pub block_tokens: Tokens,
    /// How large KV is.
    pub kv: KvSize,
    /// Share of a transfer that runs while prefill does, as far as prefill lasts.
    pub overlap: Permille,
    /// Where the uncached length from which on offloading pays comes from.
    pub threshold: ThresholdSource,
    /// Link utilisation from which a link counts as congested.
    pub congestion_mark: Permille,
    /// What decides.
    pub policies: RequestPolicies,
    /// Seed of every choice.
    pub seed: u64,
    /// Who takes a prompt off a queue.
    pub queueing: Queueing,
    /// What makes the first token.
    pub first_token: FirstToken,
    /// What happens on the way, in order of time.
    pub changes: Vec<Change>,
    /// Re-plans the division into prefill and decode while it runs; roles stay as they are when there is none.
    pub slow_loop: Option<SlowLoop>,
    /// Time to first token that is aimed at.
    pub ttft_slo: Option<Duration>,
    /// Requests that come in before this are played and not counted.
    pub warm_up: Duration,
}

/// Where the threshold in force comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThresholdSource {
    /// It is this, whatever happens.
    Static(Tokens),
    /// The production control keeps it, as on a live host.
    Adaptive,
}

/// Who takes a prompt off a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Queueing {
    /// Each instance has its own: a decision names the instance, as on a live host.
    #[default]
    PerInstance,
    /// Prefill instances of a site share one: whichever is free takes the first, and a decision names the site alone.
    PerPool,
}

/// What makes the first token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstToken {
    /// The first decode step, as the native engine does.
    #[default]
    Decode,
    /// Prefill: it reaches the client with the KV, and waiting for a decode slot delays the second one.
    Prefill,
}

/// Something that happens at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// When.
    pub at: Moment,
    /// What.
    pub what: Happening,
}

/// What may happen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Happening {
    /// A link is as this from then on.
    Link {
        /// Its ends, from and to.
        ends: (SiteIndex, SiteIndex),
        /// What it carries.
        capacity: BitsPerSecond,
        /// Its round-trip time.
        rtt: Duration,
        /// Its loss.
        loss: Permille,
    },
    /// A site is gone with everything on it.
    SiteLost(SiteIndex),
    /// A site is back, with empty caches.
    SiteBack(SiteIndex),
}

/// Re-planning at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowLoop {
    /// How often.
    pub period: Duration,
    /// How long an instance that has drained takes to come back in its new role.
    pub conversion: Duration,
}

/// Why a scenario cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// Requests have nowhere to come in.
    #[error("no origin site is given")]
    NoOrigin,
    /// Something names a site that is not there.
    #[error("{what} names site {site}, but there are {sites} sites")]
    NoSuchSite {
        /// What names it.
        what: String,
        /// The index.
        site: u32,
        /// How many there are.
        sites: usize,
    },
    /// A block holds no token.
    #[error("blocks of 0 tokens hold nothing; use the block size of the trace, such as 512")]
    EmptyBlocks,
    /// An instance that decodes has no slot.
    #[error("instance {0} decodes but has no decode slot")]
    NoSlots(InstanceName),
}

impl Scenario {
    /// Checks what [`crate::simulate`] relies on.
    pub fn check(&self) -> Result<(), ScenarioError> {
        if self.origins.is_empty() {
            return Err(ScenarioError::NoOrigin);
        }
        if self.block_tokens.0 == 0 {
            return Err(ScenarioError::EmptyBlocks);
        }
        let named = self
            .origins
            .iter()
            .map(|origin| ("an origin".to_owned(), origin.site));
        let named = named.chain(
            self.instances
                .iter()
                .map(|i| (format!("instance {}", i.name), i.site)),
        );
        let happens = self.changes.iter().flat_map(|change| match change.what {
            Happening::Link { ends, .. } => vec![ends.0, ends.1],
            Happening::SiteLost(site) | Happening::SiteBack(site) => vec![site],
        });
        let named = named.chain(happens.map(|site| ("a change".to_owned(), site)));
        let ends = self.links.keys().flat_map(|(from, to)| [*from, *to]);
        for (what, site) in named.chain(ends.map(|site| ("a link".to_owned(), site))) {
            if site.0 as usize >= self.sites.len() {
                return Err(ScenarioError::NoSuchSite {
                    what,
                    site: site.0,
                    sites: self.sites.len(),
                });
            }
        }
        match self
            .instances
            .iter()
            .find(|i| i.role.decodes() && i.decode_slots == 0)
        {
            Some(instance) => Err(ScenarioError::NoSlots(instance.name.clone())),
            None => Ok(()),
        }
    }
}
