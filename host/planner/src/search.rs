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

/// A threshold above every length: nothing is offloaded.
pub const NOTHING_OFFLOADED: Tokens = Tokens(u32::MAX);

/// The plan with the largest Λ_max: over all thresholds of `grid`, and without offloading, with all splits of `instances`
/// local instances that leave at least one for prefill and one for decode; and with everything offloaded, all of them
/// decoding. Of equals the first: thresholds of the grid before the two ends, then the fewest prefill instances, then the
/// lowest threshold. `None` when there are fewer than two instances or no thresholds.
///
/// A grid may leave both ends out, and there they may be best: with next to no link, or with no remote pool.
pub fn best_plan(
    fleet: &Fleet,
    lengths: &dyn LengthDistribution,
    instances: u32,
    grid: &SearchGrid,
) -> Option<Plan> {
    let splits = || {
        (1..instances).map(|prefill| Split {
            prefill,
            decode: instances - prefill,
        })
    };
    let thresholds = || {
        let tokens = (grid.from.0..=grid.to.0).step_by(grid.step.0.max(1) as usize);
        tokens.map(Tokens)
    };
    let on_grid = splits().flat_map(|split| thresholds().map(move |threshold| (threshold, split)));
    let best = best_of(None, fleet, lengths, on_grid)?;
    let at_home = splits().map(|split| (NOTHING_OFFLOADED, split));
    let away = Split {
        prefill: 0,
        decode: instances,
    };
    best_of(Some(best), fleet, lengths, at_home.chain([(Tokens(0), away)]))
}

/// The best of `best` and of what is tried; of equals the first.
fn best_of(
    best: Option<Plan>,
    fleet: &Fleet,
    lengths: &dyn LengthDistribution,
    tried: impl Iterator<Item = (Tokens, Split)>,
) -> Option<Plan> {
    // Differences below this are rounding.
    const TIE: f64 = 1e-12;
    tried.fold(best, |best, (threshold, split)| {
        let plan = evaluate(fleet, lengths, threshold, split);
        match best {
            Some(best) if plan.lambda_max <= best.lambda_max + TIE => Some(best),
            _ => Some(plan),
        }
    })
}
