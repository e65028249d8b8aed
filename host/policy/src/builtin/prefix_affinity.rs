//! Routing `prefix-affinity`: requests that share a prefix, or a conversation, meet on the same instance.

use super::arithmetic::mix;
use super::cache_score::cache_score;
use super::config::{self, ConfigError};
use super::contract::{Candidate, Candidates, Routing};
use super::rank::{Rank, Tier};
use crate::answer::RoutingDecision;
use crate::column::RequestView;
use crate::names::NameTables;
use serde::Deserialize;

/// What `prefix-affinity` can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PrefixAffinityConfig {
    /// An instance with this many more queued tokens than the least queued one is only taken when no other is left.
    /// 32,768: over two seconds of an H100's prefill at 0.07 ms a token, which no usual prefix hit wins back.
    pub balance_tokens: u32,
}

impl Default for PrefixAffinityConfig {
    fn default() -> Self {
        Self {
            balance_tokens: 32_768,
        }
    }
}

/// The longest cached prefix first. Where nothing is cached anywhere, a conversation goes to the instance that its
/// hash and the instance's number pick together (rendezvous hashing), so that its next turn finds the KV there even
/// before the index knows; without a conversation the shorter queue decides.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrefixAffinity {
    config: PrefixAffinityConfig,
}

impl PrefixAffinity {
    /// With this configuration.
    pub fn new(config: PrefixAffinityConfig) -> Self {
        Self { config }
    }
}

impl Routing for PrefixAffinity {
    fn configure(text: &str, _names: &NameTables) -> Result<Self, ConfigError> {
        config::parse(text).map(Self::new)
    }

    fn decide(&self, request: RequestView<'_>, candidates: Candidates<'_>) -> RoutingDecision {
        let queued = |c: Candidate<'_>| c.route.prefill_queued_tokens();
        let shortest = candidates.iter().map(queued).min().unwrap_or(0);
        let cold = candidates.iter().all(|c| c.route.cached_tokens() == 0);
        candidates.ranks(request, |candidate| {
            let overloaded = queued(*candidate) - shortest >= self.config.balance_tokens.max(1);
            let tier = if overloaded { Tier::Second } else { Tier::Preferred };
            let score = if cold && request.session() != 0 {
                rendezvous(request.session(), candidate)
            } else {
                cache_score(request, candidate)
            };
            Rank::new(tier, score)
        })
    }
}

/// 26 bits that depend on the conversation and the prefill instance alone.
fn rendezvous(session: u64, candidate: &Candidate<'_>) -> u32 {
    let site = u64::from(candidate.route.prefill_site());
    let instance = (site << 32) | u64::from(candidate.route.prefill_instance());
    (mix(session ^ mix(instance)) >> 38) as u32
}
