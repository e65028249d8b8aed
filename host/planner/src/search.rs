//! The search for the best threshold and split.

use crate::lengths::LengthDistribution;
use crate::model::{Fleet, Plan, Split, evaluate};
use portolan_base::Tokens;

/// The thresholds tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchGrid {
    /// The first.
    pub from: Tokens,
    /// The last, if the steps meet it.
    pub to: Tokens,
    /// The distance between them; 0 is taken as 1.
    pub step: Tokens,
}

impl Default for SearchGrid {
    /// The grid of the paper's case study: 1,000 to 100,000 tokens by 100.
    fn default() -> Self {
        Self {
            from: Tokens(1_000),
            to: Tokens(100_000),
            step: Tokens(100),
        }
    }
}

/// The plan with the largest Λ_max over all thresholds of `grid` and all splits of `instances` local instances that
/// leave at least one for prefill and one for decode. Of equals the first: the fewest prefill instances, then the
/// lowest threshold. `None` when there is nothing to try.
pub fn best_plan(
    fleet: &Fleet,
    lengths: &dyn LengthDistribution,
    instances: u32,
    grid: &SearchGrid,
) -> Option<Plan> {
    // Differences below this are rounding.
    const TIE: f64 = 1e-12;
    let mut best: Option<Plan> = None;
    for prefill in 1..instances {
        let split = Split {
            prefill,
            decode: instances - prefill,
        };
        for threshold in (grid.from.0..=grid.to.0).step_by(grid.step.0.max(1) as usize) {
            let plan = evaluate(fleet, lengths, Tokens(threshold), split);
            if best.is_none_or(|best| plan.lambda_max > best.lambda_max + TIE) {
                best = Some(plan);
            }
        }
    }
    best
}
