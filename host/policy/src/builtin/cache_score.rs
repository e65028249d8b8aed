//! How the cache-aware policies compare routes: by what is left to compute, then by load.

use super::arithmetic::finite;
use super::contract::Candidate;
use crate::column::RequestView;

/// Steps of the tie-break inside one uncached token.
const STEPS: u32 = 64;

/// Uncached tokens first; among equals the shorter prefill queue, then the less busy instance.
///
/// 64 steps a token leave room for prompts of 67 million tokens: 32 for the queue (longer ones are alike), and under
/// a half of the range for utilisation.
pub(super) fn cache_score(request: RequestView<'_>, candidate: &Candidate<'_>) -> u32 {
    let queue = candidate.route.prefill_queued_requests().min(STEPS / 2 - 1) * 2;
    let busy = u32::from(candidate.route.prefill_busy_permille() >= 500);
    finite(u64::from(candidate.uncached_tokens(request)) * u64::from(STEPS) + u64::from(queue + busy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::{CostView, RequestRow, RouteRow, RouteView};

    #[test]
    fn a_token_less_to_compute_beats_any_queue_and_the_queue_breaks_ties() {
        let request = RequestRow {
            prompt_tokens: 100,
            ..Default::default()
        }
        .to_cells();
        let score = |row: RouteRow| {
            let cells = row.to_cells();
            let candidate = Candidate {
                route: RouteView(&cells),
                cost: CostView(&[]),
            };
            cache_score(RequestView(&request), &candidate)
        };
        let row = |cached_tokens, prefill_queued_requests, prefill_busy_permille| RouteRow {
            cached_tokens,
            prefill_queued_requests,
            prefill_busy_permille,
            ..Default::default()
        };
        assert!(score(row(11, 999, 1000)) < score(row(10, 0, 0)));
        assert!(score(row(10, 1, 1000)) < score(row(10, 2, 0)));
        assert!(score(row(10, 1, 100)) < score(row(10, 1, 900)));
    }
}
