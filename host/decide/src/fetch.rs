//! Whether to fetch the beginning of a prompt from another site: when that is cheaper than computing it.

use crate::fleet::{FleetView, InstanceIndex, InstanceView, SiteIndex};
use portolan_base::kv::KvSize;
use portolan_base::{Bytes, Tokens};
use std::time::Duration;

/// How often the estimate a fetch may take before its tokens are computed instead. An estimate knows the mean of half a
/// minute: three times as long covers two other transfers that begin beside it and share the link.
const PATIENCE: u32 = 3;

/// The shortest deadline. A connection that has to be made anew takes three round trips, a quarter of a second between
/// the most distant sites.
const SHORTEST_DEADLINE: Duration = Duration::from_millis(250);

/// What a fetch is decided from.
#[derive(Clone, Copy)]
pub struct FetchInput<'a> {
    /// The fleet.
    pub fleet: &'a FleetView,
    /// How large the model's KV is.
    pub kv: KvSize,
    /// Tokens in a pool block: what is fetched is a whole number of blocks.
    pub block: Tokens,
    /// Prompt tokens each instance is thought to hold KV for, by instance index.
    pub held: &'a [u32],
    /// The instance that is to compute the prompt.
    pub at: InstanceIndex,
    /// Tokens whose KV it has already.
    pub has: Tokens,
    /// Tokens whose KV is wanted.
    pub wanted: Tokens,
}

/// A fetch that pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchPlan {
    /// Who holds it.
    pub from: InstanceIndex,
    /// Where.
    pub site: SiteIndex,
    /// Tokens of the prompt whose KV is there afterwards, a whole number of blocks.
    pub tokens: Tokens,
    /// What crosses.
    pub bytes: Bytes,
    /// How long that is thought to take.
    pub takes: Duration,
    /// How long computing the same tokens is thought to take.
    pub computing: Duration,
}

impl FetchPlan {
    /// The fetch that saves most time, of those from a site that `allowed` is true of; none when computing is as fast as
    /// any. A fetch takes a round trip and the time of its bytes on what is free of the link.
    pub fn best(input: &FetchInput<'_>, allowed: impl Fn(SiteIndex) -> bool) -> Option<Self> {
        let here = input.fleet.instance(input.at)?;
        let plans = input
            .fleet
            .indexed()
            .filter(|(_, holder)| holder.site != here.site && allowed(holder.site))
            .filter(|(_, holder)| holder.standing.is_ready() && holder.model == here.model)
            .filter(|(_, holder)| holder.serving.copies_to(here.serving))
            .filter_map(|(index, holder)| Self::from_holder(input, here, (index, holder)));
        let saving = |plan: &Self| plan.computing.saturating_sub(plan.takes);
        // Of equals the first, so that the same facts give the same plan.
        plans
            .filter(|plan| !saving(plan).is_zero())
            .min_by_key(|plan| (std::cmp::Reverse(saving(plan)), plan.from))
    }

    fn from_holder(
        input: &FetchInput<'_>,
        here: &InstanceView,
        holder: (InstanceIndex, &InstanceView),
    ) -> Option<Self> {
        let (from, holder) = holder;
        let held = input.held.get(from.0 as usize).copied().unwrap_or(0);
        let usable = held.min(input.wanted.0) / input.block.0.max(1) * input.block.0;
        let missing = usable.saturating_sub(input.has.0);
        if missing == 0 {
            return None;
        }
        let link = input.fleet.link(holder.site, here.site)?;
        if !link.up {
            return None;
        }
        let bytes = Bytes(u64::from(missing).saturating_mul(input.kv.per_token.0)) + input.kv.fixed;
        Some(Self {
            from,
            site: holder.site,
            tokens: Tokens(usable),
            bytes,
            takes: link.rtt.saturating_add(bytes.time_at(link.free())),
            computing: Duration::from_nanos(here.prefill_ns_per_token.saturating_mul(u64::from(missing))),
        })
    }

    /// When to give up and compute.
    pub fn deadline(&self) -> Duration {
        self.takes.saturating_mul(PATIENCE).max(SHORTEST_DEADLINE)
    }
}

#[cfg(test)]
mod tests;
