//! Routing `random`: a baseline that draws from the seed.

use super::arithmetic::mix;
use super::config::{self, ConfigError, Nothing};
use super::contract::{Candidates, Routing};
use crate::answer::RoutingDecision;
use crate::column::RequestView;
use crate::names::NameTables;

/// Orders the open routes at random; the same seed gives the same order.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomRoute;

impl Routing for RandomRoute {
    fn configure(text: &str, _names: &NameTables) -> Result<Self, ConfigError> {
        config::parse::<Nothing>(text)?;
        Ok(Self)
    }

    fn decide(&self, request: RequestView<'_>, candidates: Candidates<'_>) -> RoutingDecision {
        let mut index = 0;
        candidates.scores(request, |_| {
            index += 1;
            // 26 bits: room for six tiers without capping.
            (mix(request.seed() ^ mix(index)) >> 38) as u32
        })
    }
}
