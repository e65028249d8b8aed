//! What a request waits at a given rate: which threshold and split give the soonest first token, where more than one
//! can serve what comes in.
//!
//! Waiting in a queue before c servers at utilisation ρ is taken as
//! E\[S\]/c · (1 + cv²)/2 · ρ^(√(2(c+1)) − 1)/(1 − ρ) (Sakasegawa 1977), exact for one server and within a few percent
//! for many. Poisson arrivals; each pool has one queue.

use crate::lengths::LengthDistribution;
use crate::model::{Fleet, Plan, Split, evaluate};
use crate::profile::PrefillProfile;
use portolan_base::Tokens;

/// Thresholds tried between the shortest and the longest that matter, evenly by ratio.
const THRESHOLDS: u32 = 32;
const SHORTEST: f64 = 256.0;
const LONGEST: f64 = 262_144.0;

/// A plan and what it gives at a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanAtRate {
    /// The plan.
    pub plan: Plan,
    /// Expected time to first token, in seconds: waiting, prefill, transfer, waiting for a decode slot.
    pub ttft_s: f64,
}

/// The expected time to first token in seconds at `rate` requests a second; `None` where something cannot keep up.
pub fn expected_ttft(fleet: &Fleet, lengths: &dyn LengthDistribution, plan: &Plan, rate: f64) -> Option<f64> {
    let share = plan.offloaded_share;
    let all = Tokens(u32::MAX);
    let far = Service::of(lengths, plan.threshold, all, &fleet.remote);
    let near = Service::of(lengths, Tokens(0), plan.threshold, &fleet.local);
    let answer = fleet.decode.step_s * fleet.decode.output_tokens;
    let slots = plan.split.decode * fleet.decode.batch;
    let far_wait = far.wait(fleet.remote_instances, rate * share)?;
    let near_wait = near.wait(plan.split.prefill, rate * (1.0 - share))?;
    let slot_wait = Service::fixed(answer).wait(slots, rate)?;
    let bits = 8.0 * (fleet.kv.fixed.0 as f64 + fleet.kv.per_token.0 as f64 * plan.offloaded_mean_tokens);
    let transfer = bits / fleet.egress.0 as f64;
    let link_wait = Service::fixed(transfer).wait(1, rate * share)?;
    let remote = far_wait + far.mean + link_wait + transfer;
    let remote = if share > 0.0 { share * remote } else { 0.0 };
    Some(remote + (1.0 - share) * (near_wait + near.mean) + slot_wait)
}

/// The threshold and split with the soonest expected first token at `rate`, over all splits of `instances` local
/// instances that leave one for prefill and one for decode; `None` where no split keeps up with the rate.
pub fn best_at_rate(
    fleet: &Fleet,
    lengths: &dyn LengthDistribution,
    instances: u32,
    rate: f64,
) -> Option<PlanAtRate> {
    let splits = (1..instances).map(|prefill| Split {
        prefill,
        decode: instances - prefill,
    });
    splits
        .filter_map(|split| best_threshold_at_rate(fleet, lengths, split, rate))
        .min_by(|a, b| a.ttft_s.total_cmp(&b.ttft_s))
}

/// The same for one split.
pub fn best_threshold_at_rate(
    fleet: &Fleet,
    lengths: &dyn LengthDistribution,
    split: Split,
    rate: f64,
) -> Option<PlanAtRate> {
    let ratio = (LONGEST / SHORTEST).powf(1.0 / f64::from(THRESHOLDS - 1));
    let thresholds = (0..THRESHOLDS).map(|i| Tokens((SHORTEST * ratio.powi(i as i32)) as u32));
    thresholds
        .filter_map(|threshold| {
            let plan = evaluate(fleet, lengths, threshold, split);
            let ttft_s = expected_ttft(fleet, lengths, &plan, rate)?;
            Some(PlanAtRate { plan, ttft_s })
        })
        .min_by(|a, b| a.ttft_s.total_cmp(&b.ttft_s))
}

/// The threshold at which the remote pool (with its link) and the local prefill instances of `split` have the same
/// room left: where their two bounds on Λ meet, and so the largest Λ that this split's prefill can take.
pub fn balanced_threshold(fleet: &Fleet, lengths: &dyn LengthDistribution, split: Split) -> Tokens {
    let (mut low, mut high) = (0u32, 1 << 20);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let plan = evaluate(fleet, lengths, Tokens(middle), split);
        let remote = bound(plan.remote_rate, plan.offloaded_share);
        let local = bound(plan.local_rate, 1.0 - plan.offloaded_share);
        if remote < local {
            low = middle;
        } else {
            high = middle;
        }
    }
    Tokens(high)
}

fn bound(rate: f64, share: f64) -> f64 {
    if share > 0.0 { rate / share } else { f64::INFINITY }
}

/// How long a pool is busy with a request, in seconds.
#[derive(Clone, Copy, Debug)]
struct Service {
    mean: f64,
    mean_square: f64,
}

impl Service {
    fn fixed(seconds: f64) -> Self {
        Self {
            mean: seconds,
            mean_square: seconds * seconds,
        }
    }

    /// Of the requests longer than `over` and at most `up_to` tokens long: piece by piece, each as if its prompts were
    /// of one length.
    fn of(lengths: &dyn LengthDistribution, over: Tokens, up_to: Tokens, profile: &PrefillProfile) -> Self {
        const STEP: f64 = 1.2;
        let (mut mean, mut mean_square, mut share) = (0.0, 0.0, 0.0);
        let mut from = over.0;
        while from < up_to.0 {
            let next = ((f64::from(from) * STEP) as u32)
                .max(from.saturating_add(64))
                .min(up_to.0);
            let slice = lengths.slice(Tokens(from), Tokens(next));
            let time = profile.mean_seconds(slice.mean, slice.mean_square);
            mean += slice.share * time;
            mean_square += slice.share * time * time;
            share += slice.share;
            // Nothing is longer than a few million tokens.
            if f64::from(next) > 16.0 * LONGEST {
                break;
            }
            from = next;
        }
        if share <= 0.0 {
            return Self::fixed(0.0);
        }
        Self {
            mean: mean / share,
            mean_square: mean_square / share,
        }
    }

    /// Mean wait before `servers`; `None` where they cannot keep up.
    fn wait(&self, servers: u32, rate: f64) -> Option<f64> {
        if rate <= 0.0 || self.mean <= 0.0 {
            return Some(0.0);
        }
        let c = f64::from(servers);
        let busy = rate * self.mean / c;
        if servers == 0 || busy >= 1.0 {
            return None;
        }
        let spread = self.mean_square / (2.0 * self.mean * self.mean);
        Some(self.mean / c * spread * busy.powf((2.0 * (c + 1.0)).sqrt() - 1.0) / (1.0 - busy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Averaging, DecodeProfile, TruncatedLogNormal};
    use portolan_base::kv::KvSize;
    use portolan_base::{BitsPerSecond, Bytes};

    fn paper(egress_gbps: u64) -> (Fleet, TruncatedLogNormal) {
        let fleet = Fleet {
            remote: PrefillProfile {
                fixed_s: 0.3983,
                per_token_s: 4.206e-5,
                per_token_squared_s: 9.86e-11,
            },
            remote_instances: 4,
            local: PrefillProfile {
                fixed_s: 0.4567,
                per_token_s: 1.3075e-4,
                per_token_squared_s: 2.857e-10,
            },
            decode: DecodeProfile {
                batch: 20,
                step_s: 0.025,
                output_tokens: 1024.0,
            },
            kv: KvSize {
                fixed: Bytes(182_368_338),
                per_token: Bytes(17_280),
            },
            egress: BitsPerSecond(egress_gbps * 1_000_000_000),
            averaging: Averaging::MeanOfTimes,
        };
        let lengths = TruncatedLogNormal::new(9.9, 1.0, Tokens(128), Tokens(131_072)).unwrap();
        (fleet, lengths)
    }

    const SPLIT: Split = Split {
        prefill: 3,
        decode: 5,
    };

    #[test]
    fn the_balance_of_the_case_study() {
        let (fleet, lengths) = paper(100);
        let threshold = balanced_threshold(&fleet, &lengths, SPLIT);
        assert!(threshold.0.abs_diff(19_709) < 40, "{threshold:?}");
        let plan = evaluate(&fleet, &lengths, threshold, SPLIT);
        assert!((plan.lambda_max / 3.181 - 1.0).abs() < 1e-3, "{plan:?}");
        // With a link of 10 Gbit/s and one instance more for prefill the link holds it down.
        let (fleet, lengths) = paper(10);
        let split = Split {
            prefill: 4,
            decode: 4,
        };
        let threshold = balanced_threshold(&fleet, &lengths, split);
        assert!(threshold.0.abs_diff(25_570) < 100, "{threshold:?}");
    }

    /// A central queue each, simulated: mean 2.39, 2.81 and 3.40 s at these loads.
    #[test]
    fn waiting_is_close_to_what_is_simulated() {
        let (fleet, lengths) = paper(100);
        let plan = evaluate(&fleet, &lengths, Tokens(19_400), SPLIT);
        for (rate, simulated) in [(1.580, 2.39), (2.212, 2.81), (2.528, 3.40)] {
            let expected = expected_ttft(&fleet, &lengths, &plan, rate).unwrap();
            assert!(
                (expected / simulated - 1.0).abs() < 0.05,
                "{expected} for {simulated}"
            );
        }
        assert_eq!(expected_ttft(&fleet, &lengths, &plan, 3.2), None);
    }

    #[test]
    fn what_decode_has_to_spare_prefills() {
        let (fleet, lengths) = paper(100);
        let best = best_at_rate(&fleet, &lengths, 8, 2.53).unwrap();
        assert_eq!((best.plan.split.prefill, best.plan.split.decode), (4, 4));
        let few = best_at_rate(&fleet, &lengths, 8, 0.4).unwrap();
        assert!(few.plan.threshold < best.plan.threshold, "{few:?} {best:?}");
        assert!(best_at_rate(&fleet, &lengths, 8, 3.3).is_none());
    }
}
