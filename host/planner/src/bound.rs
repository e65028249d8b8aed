//! What no policy can exceed: the linear-programming optimum of giving requests to pools by their length.
//!
//! Let x(l) be the share of requests of length l that is prefilled remotely. At Λ requests a second
//!
//! - Λ · E\[x · T_remote\] ≤ N_remote, Λ · E\[x · s\] ≤ 1 where s is the time that the KV takes on the link,
//! - Λ · E\[(1 − x) · T_local\] ≤ N_p and Λ ≤ Θ_pd-d, or with roles that change Λ · E\[(1 − x) · T_local + D\] ≤ N_local,
//!   where D is the time that an answer takes of an instance's decode.
//!
//! This is linear in the rates Λ · x(l), and has as many variables as there are lengths and three constraints. Its dual
//! has three variables whatever the lengths. Put shares α + β + γ = 1 of importance on the remote pool, the local one
//! and the link; adding up the constraints with weights α / N_remote, β / N_p, γ gives for every x
//!
//! 1 ≥ Λ · E\[x · (α T_remote / N_remote + γ s) + (1 − x) · β T_local / N_p\] ≥ Λ · E\[min(…, …)\] = Λ · g(α, β, γ),
//!
//! so 1 / g is a bound whatever the shares, and by duality the smallest of them is the optimum. g is concave, a minimum
//! of functions that are linear in the shares, so that its maximum is found by nested section. For given shares, the
//! lengths that go remote are those at which a quadratic is negative, so that g needs no bins: at most three slices of
//! the distribution, each in closed form.
//!
//! At the optimum the shares are worths: one per cent more instances of the remote pool raises Λ by α per cent.

use crate::lengths::{LengthDistribution, Slice};
use crate::model::{Fleet, Split};
use crate::quadratic::{Quadratic, Sections};
use portolan_base::Tokens;
use serde::{Deserialize, Serialize};

/// What the local instances may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LocalRoles {
    /// Each keeps the role it has.
    Fixed(Split),
    /// Each may prefill at one time and decode at another, without loss between: more than any split of whole
    /// instances can reach.
    Changing {
        /// How many there are.
        instances: u32,
    },
}

/// The optimum.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpperBound {
    /// Requests a second that no assignment of lengths to pools exceeds.
    pub lambda_max: f64,
    /// What more of each resource would bring.
    pub worth: Worth,
}

/// By how many per cent Λ grows when a resource grows by one; they add up to 1. Where several assignments are best, one
/// of several answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Worth {
    /// The remote prefill instances.
    pub remote_prefill: f64,
    /// The link.
    pub egress: f64,
    /// The local instances that prefill, or all of them when roles change.
    pub local: f64,
    /// The instances that only decode.
    pub decode: f64,
}

/// The largest Λ over all assignments of lengths to the remote and the local pool, whatever policy makes them. Prefill
/// times count as a queue sees them, E\[T(L)\], whatever the fleet's averaging says: T(E\[L\]) is not linear in the
/// assignment and promises more than can be served. 0 when a part that is needed has no instance.
pub fn upper_bound(fleet: &Fleet, lengths: &dyn LengthDistribution, roles: LocalRoles) -> UpperBound {
    let case = Case::new(fleet, lengths, roles);
    let (weights, seconds) = case.heaviest();
    let prefill_limit = 1.0 / seconds;
    if case.decode_limit <= prefill_limit {
        return UpperBound {
            lambda_max: case.decode_limit,
            worth: Worth {
                decode: 1.0,
                ..Worth::default()
            },
        };
    }
    UpperBound {
        lambda_max: prefill_limit,
        worth: Worth {
            remote_prefill: weights.remote,
            egress: weights.link,
            local: weights.local,
            decode: 0.0,
        },
    }
}

/// The shares of importance; they add up to 1.
#[derive(Clone, Copy)]
struct Weights {
    remote: f64,
    link: f64,
    local: f64,
}

/// The linear program. Times are of the whole pool, in seconds a request: with four instances a quarter of one's.
struct Case<'a> {
    lengths: &'a dyn LengthDistribution,
    /// None when nothing can be prefilled remotely.
    remote: Option<Remote>,
    /// None when nothing can be prefilled locally.
    local: Option<Quadratic>,
    /// What each request takes of the local pool besides prefill.
    local_decode: f64,
    decode_limit: f64,
}

#[derive(Clone, Copy)]
struct Remote {
    prefill: Quadratic,
    link: Quadratic,
}

impl<'a> Case<'a> {
    fn new(fleet: &Fleet, lengths: &'a dyn LengthDistribution, roles: LocalRoles) -> Self {
        let of_pool = |curve: Quadratic, instances: u32| curve.times(1.0 / f64::from(instances.max(1)));
        let (local, local_decode, decode_limit) = match roles {
            LocalRoles::Fixed(split) => (split.prefill, 0.0, f64::from(split.decode) * fleet.decode.rate()),
            LocalRoles::Changing { instances } => {
                let seconds = 1.0 / fleet.decode.rate() / f64::from(instances.max(1));
                let limit = if instances == 0 { 0.0 } else { f64::INFINITY };
                (instances, seconds, limit)
            }
        };
        let bits = Quadratic([fleet.kv.fixed.0 as f64, fleet.kv.per_token.0 as f64, 0.0]).times(8.0);
        let can_offload = fleet.remote_instances > 0 && fleet.egress.0 > 0;
        Self {
            lengths,
            remote: can_offload.then(|| Remote {
                prefill: of_pool(fleet.remote.into(), fleet.remote_instances),
                link: bits.times(1.0 / fleet.egress.0 as f64),
            }),
            local: (local > 0).then(|| of_pool(fleet.local.into(), local)),
            local_decode,
            decode_limit,
        }
    }

    /// The weights at which a request takes most, and what it takes: g and where it is largest.
    fn heaviest(&self) -> (Weights, f64) {
        let outer = |local: f64| {
            let within = |remote_part: f64| Weights {
                remote: (1.0 - local) * remote_part,
                link: (1.0 - local) * (1.0 - remote_part),
                local,
            };
            let (part, seconds) = highest(|part| self.seconds(within(part)));
            (within(part), seconds)
        };
        match (self.remote, self.local) {
            (None, _) => {
                let all = Weights {
                    remote: 0.0,
                    link: 0.0,
                    local: 1.0,
                };
                (all, self.local.map_or(f64::INFINITY, |_| self.seconds(all)))
            }
            // No local instance prefills: nothing weighs but the remote pool and its link.
            (Some(_), None) => outer(0.0),
            (Some(_), Some(_)) => {
                let (local, _) = highest(|local| outer(local).1);
                outer(local)
            }
        }
    }

    /// g: what a request takes of the whole at these weights, when each length goes where it takes less.
    fn seconds(&self, weights: Weights) -> f64 {
        let everyone = self.lengths.slice(Tokens(0), Tokens(u32::MAX));
        let local = self.local.map(|curve| curve.times(weights.local));
        let remote = self
            .remote
            .map(|r| r.prefill.times(weights.remote).plus(r.link.times(weights.link)));
        let prefill = match (remote, local) {
            (Some(remote), Some(local)) => self.cheaper_way(remote, local),
            (Some(only), None) | (None, Some(only)) => mean(only, everyone),
            (None, None) => f64::INFINITY,
        };
        prefill + weights.local * self.local_decode
    }

    /// E\[min(remote, local)\].
    fn cheaper_way(&self, remote: Quadratic, local: Quadratic) -> f64 {
        // Between two lengths at which both take the same, one of them takes less throughout.
        Sections::between_roots(remote.plus(local.times(-1.0)))
            .map(|(over, up_to)| {
                let slice = self.lengths.slice(over, up_to);
                mean(remote, slice).min(mean(local, slice))
            })
            .sum()
    }
}

/// What the requests of a slice add to a mean over all requests.
fn mean(curve: Quadratic, slice: Slice) -> f64 {
    slice.share * curve.mean(slice.mean, slice.mean_square)
}

/// Where on 0..=1 a concave function is highest, and how high.
fn highest(value: impl Fn(f64) -> f64) -> (f64, f64) {
    // The golden section: one of the two inner points serves again in the next round.
    const INNER: f64 = 0.618_033_988_749_894_8;
    // Leaves 1e-12 of the interval, where a smooth top differs by rounding only.
    const ROUNDS: u32 = 58;
    let (mut from, mut to) = (0.0, 1.0);
    let (mut left, mut right) = (1.0 - INNER, INNER);
    let (mut at_left, mut at_right) = (value(left), value(right));
    for _ in 0..ROUNDS {
        if at_left < at_right {
            from = left;
            (left, at_left) = (right, at_right);
            right = from + INNER * (to - from);
            at_right = value(right);
        } else {
            to = right;
            (right, at_right) = (left, at_left);
            left = to - INNER * (to - from);
            at_left = value(left);
        }
    }
    // A top at an end of the interval is approached and never met.
    [0.0, (from + to) / 2.0, 1.0]
        .map(|at| (at, value(at)))
        .into_iter()
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .unwrap_or((0.0, 0.0))
}
