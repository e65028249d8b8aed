//! Routing `global-cache-aware`: a baseline that takes the best prefix hit anywhere, whatever the network costs.

use super::cache_score::cache_score;
use super::config::{self, ConfigError, Nothing};
use super::contract::{Candidates, Routing};
use crate::answer::RoutingDecision;
use crate::column::RequestView;
use crate::names::NameTables;

/// Score = uncached tokens; ties go to the shorter prefill queue, then to the less busy instance.
#[derive(Clone, Copy, Debug, Default)]
pub struct GlobalCacheAware;

impl Routing for GlobalCacheAware {
    fn configure(text: &str, _names: &NameTables) -> Result<Self, ConfigError> {
        config::parse::<Nothing>(text)?;
        Ok(Self)
    }

    fn decide(&self, request: RequestView<'_>, candidates: Candidates<'_>) -> RoutingDecision {
        candidates.scores(request, |candidate| cache_score(request, candidate))
    }
}
