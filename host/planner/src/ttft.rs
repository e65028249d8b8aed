//! Time to first token on an idle fleet: its quantiles.

use crate::lengths::LengthDistribution;
use crate::model::{Fleet, Plan};
use crate::quadratic::Quadratic;
use portolan_base::Tokens;
use std::time::Duration;

/// The time within which a share of the requests, `quantile` of 0 to 1, has its first token when nothing waits: prefill,
/// and for the offloaded the transfer of the whole KV after it.
pub fn unloaded_ttft_quantile(
    fleet: &Fleet,
    lengths: &dyn LengthDistribution,
    plan: &Plan,
    quantile: f64,
) -> Duration {
    // Doubles until every request is within, then halves the interval until it is a tenth of a millisecond.
    let within = |seconds: f64| share_within(fleet, lengths, plan.threshold, seconds);
    // The shares of both sides add up to one only up to rounding.
    let quantile = quantile - 1e-9;
    let mut to = 1.0;
    while within(to) < quantile && to < 1e6 {
        to *= 2.0;
    }
    let mut from = 0.0;
    while to - from > 1e-4 {
        let middle = f64::midpoint(from, to);
        if within(middle) < quantile {
            from = middle;
        } else {
            to = middle;
        }
    }
    Duration::from_secs_f64(to)
}

/// The share of the requests whose first token takes at most so many seconds.
fn share_within(fleet: &Fleet, lengths: &dyn LengthDistribution, threshold: Tokens, seconds: f64) -> f64 {
    let bits = Quadratic([fleet.kv.fixed.0 as f64, fleet.kv.per_token.0 as f64, 0.0]).times(8.0);
    let transfer = bits.times(1.0 / fleet.egress.0 as f64);
    let near = longest_within(fleet.local.into(), seconds).min(threshold);
    let far = longest_within(Quadratic::from(fleet.remote).plus(transfer), seconds);
    lengths.slice(Tokens(0), near).share + lengths.slice(threshold, far).share
}

/// The longest prompt that takes at most so many seconds on a curve that does not fall.
fn longest_within(curve: Quadratic, seconds: f64) -> Tokens {
    if curve.at(0.0) > seconds {
        return Tokens(0);
    }
    let excess = curve.plus(Quadratic([-seconds, 0.0, 0.0]));
    let positive = excess.roots().into_iter().flatten().filter(|root| *root > 0.0);
    // Rounds down, and to the longest there is where the curve never gets there.
    Tokens(positive.fold(f64::from(u32::MAX), f64::min) as u32)
}
