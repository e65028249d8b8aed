//! Routing `lowest-cost`: takes the cost policy at its word. The host's fallback router.

use super::config::{self, ConfigError, Nothing};
use super::contract::{Candidates, Routing};
use crate::answer::RoutingDecision;
use crate::column::{NEVER, RequestView};
use crate::names::NameTables;

/// Routes that cost less than this more than the best are as good: half a scheduler's tick, and less than any estimate
/// can know. Without it the best of a fast fleet is always the same one, and a burst goes there whole.
const NEAR_US: u32 = 1000;

/// A route's score is its `total-us`, or the least of all where it is within a millisecond of that.
#[derive(Clone, Copy, Debug, Default)]
pub struct LowestCost;

impl Routing for LowestCost {
    fn configure(text: &str, _names: &NameTables) -> Result<Self, ConfigError> {
        config::parse::<Nothing>(text)?;
        Ok(Self)
    }

    fn decide(&self, request: RequestView<'_>, candidates: Candidates<'_>) -> RoutingDecision {
        let open = candidates
            .iter()
            .filter(|candidate| Candidates::is_open(request, candidate));
        let best = open.map(|candidate| candidate.cost.total_us()).min();
        candidates.scores(request, |candidate| match (candidate.cost.total_us(), best) {
            (total, Some(best)) if total != NEVER && total - best <= NEAR_US => best,
            (total, _) => total,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CostMatrix, CostRow, RequestRow, RouteMatrix, RouteRow};

    fn scores(totals: &[u32]) -> Vec<u32> {
        let (mut routes, mut costs) = (RouteMatrix::default(), CostMatrix::default());
        for &total_us in totals {
            routes.push(&RouteRow::default());
            costs.push(&CostRow {
                total_us,
                ..CostRow::default()
            });
        }
        let request = RequestRow::default().to_cells();
        let candidates = Candidates::new(routes.as_matrix(), costs.as_matrix());
        match LowestCost.decide(RequestView(&request), candidates) {
            RoutingDecision::Scores(scores) => scores,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_within_a_millisecond_of_the_best_is_as_good() {
        assert_eq!(
            scores(&[5_000, 6_000, 6_001, 90_000]),
            [5_000, 5_000, 6_001, 90_000]
        );
        assert_eq!(scores(&[NEVER, 300, 1_500]), [NEVER, 300, 1_500]);
        assert_eq!(scores(&[NEVER]), [NEVER]);
    }
}
