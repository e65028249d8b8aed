//! Routing `offload`: Prefill-as-a-Service (arXiv 2604.15039), bandwidth- and cache-aware.
//!
//! A request whose uncached length is over the planner's threshold prefills at a remote pool, any other at home.
//! While bandwidth is scarce only the KV at home counts as cached, since none can be fetched; while it is ample the
//! longest prefix anywhere does, fetched ones too.
//!
//! The threshold is the host's: it rises smoothly while a link is past its mark, so that this policy needs no mark of
//! its own. One may be set as a last resort.

use super::config::{self, ConfigError};
use super::contract::{Candidates, Routing};
use super::rank::{Rank, Tier};
use crate::answer::RoutingDecision;
use crate::column::RequestView;
use crate::names::NameTables;
use serde::Deserialize;

/// What `offload` can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OffloadConfig {
    /// The threshold in force while the planner has none. 16,384: the customary long-context mark, which reaches
    /// 1.45 × the homogeneous throughput on the paper's fleet, against 1.54 × for the planned 19,400.
    pub threshold_tokens: u32,
    /// Link utilisation from which a route comes last, in thousandths. 1001, never: a link that the planner means to
    /// fill would otherwise stand idle a third of the time while both ends queue.
    pub congested_permille: u32,
}

impl Default for OffloadConfig {
    fn default() -> Self {
        Self {
            threshold_tokens: 16_384,
            congested_permille: 1001,
        }
    }
}

/// Selective offload by uncached length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offload {
    config: OffloadConfig,
}

/// Bit 0 of `condition-bits`: some cross-site link is past its congestion mark.
const BANDWIDTH_IS_SCARCE: u32 = 1;

impl Offload {
    /// With this configuration.
    pub fn new(config: OffloadConfig) -> Self {
        Self { config }
    }

    fn threshold(&self, request: RequestView<'_>) -> u32 {
        match request.offload_threshold_tokens() {
            0 => self.config.threshold_tokens,
            planned => planned,
        }
    }

    fn tier(&self, offload: bool, candidate: &super::Candidate<'_>) -> Tier {
        let local = candidate.route.is_local();
        if !local && candidate.route.link_busy_permille() >= self.config.congested_permille {
            Tier::Last
        } else if local != offload {
            Tier::Preferred
        } else {
            Tier::Second
        }
    }
}

impl Routing for Offload {
    fn configure(text: &str, _names: &NameTables) -> Result<Self, ConfigError> {
        config::parse(text).map(Self::new)
    }

    fn decide(&self, request: RequestView<'_>, candidates: Candidates<'_>) -> RoutingDecision {
        let offload = uncached_tokens(request, candidates) > self.threshold(request);
        candidates.ranks(request, |c| Rank::new(self.tier(offload, c), c.cost.total_us()))
    }
}

/// What would be left to compute, counting the KV that the present bandwidth lets count.
fn uncached_tokens(request: RequestView<'_>, candidates: Candidates<'_>) -> u32 {
    let scarce = request.condition_bits() & BANDWIDTH_IS_SCARCE != 0;
    let usable = candidates.iter().map(|c| match (scarce, c.route.is_local()) {
        (true, true) => c.route.cached_tokens(),
        (true, false) => 0,
        (false, _) => c.route.cached_tokens().saturating_add(c.route.fetchable_tokens()),
    });
    request.prompt_tokens().saturating_sub(usable.max().unwrap_or(0))
}
