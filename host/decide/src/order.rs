//! From scores to an order of routes: the one rule by which a live decision, a replay and a test of a policy turn a
//! router's answer into "this one first".

use portolan_policy::NEVER;

/// Scores within one hundredth of the best count as equal: they share the load by the request's seed. A strict
/// minimum sends every request of a burst to the same instance until the next load report.
const NEAR_TIE_DIVISOR: u32 = 100;

/// Positions by score, the smallest first and equals in their given order, without those ruled out; near-equals at
/// the top are rotated by the request's seed.
pub fn order_by_score(scores: &[u32], seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).filter(|&i| scores[i] != NEVER).collect();
    order.sort_by_key(|&i| (scores[i], i));
    if let Some(&best) = order.first() {
        let limit = scores[best].saturating_add(scores[best] / NEAR_TIE_DIVISOR);
        let near = order.iter().take_while(|&&i| scores[i] <= limit).count();
        let turn = seed % near as u64;
        order[..near].rotate_left(usize::try_from(turn).unwrap_or(0));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_first_and_what_is_ruled_out_nowhere() {
        assert_eq!(order_by_score(&[300, NEVER, 100, 200], 0), [2, 3, 0]);
        assert!(order_by_score(&[NEVER, NEVER], 1).is_empty());
        assert!(order_by_score(&[], 1).is_empty());
    }

    #[test]
    fn scores_within_a_hundredth_take_turns_by_the_seed() {
        assert_eq!(order_by_score(&[1000, 1010, 1011], 1), [1, 0, 2]);
        assert_eq!(order_by_score(&[1000, 1010, 1011], 2), [0, 1, 2]);
    }
}
