//! Routing `lowest-cost`: takes the cost policy at its word. The host's fallback router.

use super::config::{self, ConfigError, Nothing};
use super::contract::{Candidates, Routing};
use crate::answer::RoutingDecision;
use crate::column::RequestView;
use crate::names::NameTables;

/// A route's score is its `total-us`.
#[derive(Clone, Copy, Debug, Default)]
pub struct LowestCost;

impl Routing for LowestCost {
    fn configure(text: &str, _names: &NameTables) -> Result<Self, ConfigError> {
        config::parse::<Nothing>(text)?;
        Ok(Self)
    }

    fn decide(&self, request: RequestView<'_>, candidates: Candidates<'_>) -> RoutingDecision {
        candidates.scores(request, |candidate| candidate.cost.total_us())
    }
}
