//! Routing `threshold`: two bands over the uncached length.
//!
//! | uncached tokens | link not congested | congested |
//! |---|---|---|
//! | under `local_below_tokens` | local, then remote | local, then remote |
//! | in between | whichever costs less | local, then remote |
//! | over `remote_above_tokens` | remote, the larger pool favoured, then local | local, then remote |

use super::arithmetic::{finite, scaled};
use super::config::{self, ConfigError};
use super::contract::{Candidate, Candidates, Routing};
use super::rank::{Rank, Tier};
use crate::answer::RoutingDecision;
use crate::column::RequestView;
use crate::names::NameTables;
use serde::Deserialize;

/// What `threshold` can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ThresholdConfig {
    /// Shorter prompts stay local. 512: under it a round trip between regions costs more than computing.
    pub local_below_tokens: u32,
    /// Longer prompts go to a remote pool. 4096 is the customary figure; the planner's threshold, which `offload`
    /// follows, is better on most fleets (1.19 × the homogeneous throughput against 1.54 × on the paper's).
    pub remote_above_tokens: u32,
    /// Link utilisation from which a route counts as congested, in thousandths. 700: the link monitor's own mark.
    pub congested_permille: u32,
    /// What routes into the largest remote pool are discounted, in thousandths of their cost. 200: a larger pool
    /// absorbs a burst better, and one already a fifth dearer does not.
    pub larger_pool_discount_permille: u32,
}

impl Default for ThresholdConfig {
    fn default() -> Self {
        Self {
            local_below_tokens: 512,
            remote_above_tokens: 4096,
            congested_permille: 700,
            larger_pool_discount_permille: 200,
        }
    }
}

/// Two bands over the uncached length: what is left to compute where most of the prompt is cached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Threshold {
    config: ThresholdConfig,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Band {
    Short,
    Middle,
    Long,
}

impl Threshold {
    /// With this configuration.
    pub fn new(config: ThresholdConfig) -> Result<Self, ConfigError> {
        if config.local_below_tokens > config.remote_above_tokens {
            let problem = format!(
                "at most remote_above_tokens, which is {}",
                config.remote_above_tokens
            );
            return Err(ConfigError::invalid("local_below_tokens", problem));
        }
        if config.larger_pool_discount_permille > 1000 {
            return Err(ConfigError::invalid(
                "larger_pool_discount_permille",
                "at most 1000",
            ));
        }
        Ok(Self { config })
    }

    fn band(&self, uncached: u32) -> Band {
        if uncached < self.config.local_below_tokens {
            Band::Short
        } else if uncached <= self.config.remote_above_tokens {
            Band::Middle
        } else {
            Band::Long
        }
    }

    fn tier(&self, band: Band, candidate: &Candidate<'_>) -> Tier {
        if !candidate.route.is_local()
            && candidate.route.link_busy_permille() >= self.config.congested_permille
        {
            return Tier::Last;
        }
        match (band, candidate.route.is_local()) {
            (Band::Short, true) | (Band::Middle, _) | (Band::Long, false) => Tier::Preferred,
            (Band::Short, false) | (Band::Long, true) => Tier::Second,
        }
    }

    fn discounted(&self, total_us: u32) -> u32 {
        let kept = 1000 - self.config.larger_pool_discount_permille;
        finite(scaled(u64::from(total_us), kept))
    }
}

impl Routing for Threshold {
    fn configure(text: &str, _names: &NameTables) -> Result<Self, ConfigError> {
        Self::new(config::parse(text)?)
    }

    fn decide(&self, request: RequestView<'_>, candidates: Candidates<'_>) -> RoutingDecision {
        let uncached = candidates
            .iter()
            .map(|c| c.uncached_tokens(request))
            .min()
            .unwrap_or(request.prompt_tokens());
        let band = self.band(uncached);
        let largest = if band == Band::Long {
            largest_remote_pool(candidates)
        } else {
            None
        };
        candidates.ranks(request, |candidate| {
            let in_largest = !candidate.route.is_local() && largest == Some(candidate.route.prefill_site());
            let total = candidate.cost.total_us();
            Rank::new(
                self.tier(band, candidate),
                if in_largest { self.discounted(total) } else { total },
            )
        })
    }
}

/// The remote site with the most prefill instances among the candidates, if one has more than every other.
fn largest_remote_pool(candidates: Candidates<'_>) -> Option<u32> {
    let mut instances = Vec::new();
    let mut pools = Vec::<(u32, u32)>::new();
    for route in candidates
        .iter()
        .map(|c| c.route)
        .filter(|route| !route.is_local())
    {
        let instance = (route.prefill_site(), route.prefill_instance());
        if instances.contains(&instance) {
            continue;
        }
        instances.push(instance);
        match pools.iter_mut().find(|(site, _)| *site == instance.0) {
            Some((_, size)) => *size += 1,
            None => pools.push((instance.0, 1)),
        }
    }
    let most = pools.iter().map(|(_, size)| *size).max()?;
    let mut largest = pools.iter().filter(|(_, size)| *size == most);
    let (site, _) = largest.next()?;
    largest.next().is_none().then_some(*site)
}
