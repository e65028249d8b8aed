//! Routing `round-robin`: a baseline that looks at nothing but the list of routes.

use super::config::{self, ConfigError, Nothing};
use super::contract::{Candidates, Routing};
use crate::answer::RoutingDecision;
use crate::column::RequestView;
use crate::names::NameTables;

/// Starts at the open route number `seed` modulo their count and goes round from there.
///
/// A policy has no memory, so the turn comes from the seed: a counter as seed gives strict turns, a random one gives
/// them on average.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin;

/// Between two turns, in µs: far enough apart that the host does not take neighbours for a near-tie.
const TURN: u32 = 1_000_000;

impl Routing for RoundRobin {
    fn configure(text: &str, _names: &NameTables) -> Result<Self, ConfigError> {
        config::parse::<Nothing>(text)?;
        Ok(Self)
    }

    fn decide(&self, request: RequestView<'_>, candidates: Candidates<'_>) -> RoutingDecision {
        let open = candidates
            .iter()
            .filter(|c| Candidates::is_open(request, c))
            .count() as u64;
        let first = request.seed() % open.max(1);
        let mut index = 0;
        candidates.scores(request, |_| {
            let turn = (index + open - first) % open;
            index += 1;
            u32::try_from(turn)
                .unwrap_or(u32::MAX)
                .saturating_mul(TURN)
                .min(super::arithmetic::finite(u64::MAX))
        })
    }
}
