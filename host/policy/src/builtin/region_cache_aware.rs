//! Routing `region-cache-aware`: the best prefix hit inside the origin's region; other regions only when none is
//! left.

use super::cache_score::cache_score;
use super::config::{self, ConfigError, Nothing};
use super::contract::{Candidates, Routing};
use super::rank::{Rank, Tier};
use crate::answer::RoutingDecision;
use crate::column::RequestView;
use crate::names::NameTables;

/// Routes whose prefill runs in the origin's region come first; inside a region as `global-cache-aware`.
#[derive(Clone, Debug, Default)]
pub struct RegionCacheAware {
    /// A number for each site's region, in the order of the site table.
    regions: Vec<usize>,
}

impl RegionCacheAware {
    fn same_region(&self, a: u32, b: u32) -> bool {
        a == b
            || self
                .region(a)
                .is_some_and(|region| self.region(b) == Some(region))
    }

    fn region(&self, site: u32) -> Option<usize> {
        self.regions.get(usize::try_from(site).ok()?).copied()
    }
}

impl Routing for RegionCacheAware {
    fn configure(text: &str, names: &NameTables) -> Result<Self, ConfigError> {
        config::parse::<Nothing>(text)?;
        // A region is known by the first site that names it.
        let first_with = |region: &str| {
            names
                .sites
                .iter()
                .position(|s| s.region == region)
                .unwrap_or_default()
        };
        Ok(Self {
            regions: names.sites.iter().map(|site| first_with(&site.region)).collect(),
        })
    }

    fn decide(&self, request: RequestView<'_>, candidates: Candidates<'_>) -> RoutingDecision {
        candidates.ranks(request, |candidate| {
            let home = self.same_region(request.origin_site(), candidate.route.prefill_site());
            let tier = if home { Tier::Preferred } else { Tier::Second };
            Rank::new(tier, cache_score(request, candidate))
        })
    }
}
