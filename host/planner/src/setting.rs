//! A fleet before it is divided: what it can be at best, what simpler set-ups reach, and how the best one moves.

use crate::bound::{LocalRoles, UpperBound, upper_bound};
use crate::lengths::LengthDistribution;
use crate::model::{Fleet, Plan, Split, evaluate};
use crate::search::{NOTHING_OFFLOADED, SearchGrid, best_plan};
use portolan_base::{BitsPerSecond, Tokens};

/// What is given before threshold and split are chosen.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// Speeds, KV size, link.
    pub fleet: Fleet,
    /// Local instances, to be divided between prefill and decode.
    pub local_instances: u32,
    /// Local instances of the fleet that has no remote pool: as many as the same hardware or money gives.
    pub homogeneous_instances: u32,
    /// How long prompts are.
    pub lengths: &'a dyn LengthDistribution,
    /// The thresholds to try.
    pub grid: SearchGrid,
}

/// Plans at one bandwidth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AtBandwidth {
    /// What the link carries.
    pub egress: BitsPerSecond,
    /// The best plan there.
    pub adapted: Plan,
    /// The plan that is best at the setting's own bandwidth, there.
    pub kept: Plan,
}

impl Setting<'_> {
    /// The best plan; none when there are fewer than two local instances or no thresholds.
    pub fn best(&self) -> Option<Plan> {
        best_plan(&self.fleet, self.lengths, self.local_instances, &self.grid)
    }

    /// The best that local instances alone reach, as many as a homogeneous fleet has; none when these are fewer than two.
    pub fn homogeneous(&self) -> Option<Plan> {
        let instances = self.homogeneous_instances;
        let plans = (1..instances).map(|prefill| {
            let split = Split {
                prefill,
                decode: instances - prefill,
            };
            self.plan(NOTHING_OFFLOADED, split)
        });
        plans.reduce(|best, plan| {
            if plan.lambda_max > best.lambda_max {
                plan
            } else {
                best
            }
        })
    }

    /// The remote pool prefills everything, the local instances only decode.
    pub fn naive(&self) -> Plan {
        let split = Split {
            prefill: 0,
            decode: self.local_instances,
        };
        self.plan(Tokens(0), split)
    }

    /// What no assignment of lengths to pools exceeds, at the best split of whole instances.
    pub fn bound(&self) -> Option<UpperBound> {
        let split = |prefill| {
            LocalRoles::Fixed(Split {
                prefill,
                decode: self.local_instances - prefill,
            })
        };
        (0..=self.local_instances)
            .map(|prefill| upper_bound(&self.fleet, self.lengths, split(prefill)))
            .max_by(|a, b| a.lambda_max.total_cmp(&b.lambda_max))
    }

    /// What a threshold and a split give.
    pub fn plan(&self, threshold: Tokens, split: Split) -> Plan {
        evaluate(&self.fleet, self.lengths, threshold, split)
    }

    /// Every split at a threshold, from one prefill instance up.
    pub fn by_split(&self, threshold: Tokens) -> impl Iterator<Item = Plan> {
        (1..self.local_instances).map(move |prefill| {
            let split = Split {
                prefill,
                decode: self.local_instances - prefill,
            };
            self.plan(threshold, split)
        })
    }

    /// `points` thresholds of the grid at a split, evenly spread.
    pub fn by_threshold(&self, split: Split, points: u32) -> impl Iterator<Item = Plan> {
        let SearchGrid { from, to, .. } = self.grid;
        let span = u64::from(to.0.saturating_sub(from.0));
        let last = u64::from(points.saturating_sub(1).max(1));
        (0..points).map(move |i| {
            let threshold = u64::from(from.0) + span * u64::from(i) / last;
            self.plan(Tokens(u32::try_from(threshold).unwrap_or(u32::MAX)), split)
        })
    }

    /// The best plan at each bandwidth, and beside it `kept`'s threshold and split.
    pub fn by_bandwidth(&self, kept: &Plan, bandwidths: &[BitsPerSecond]) -> Vec<AtBandwidth> {
        let at = |egress: &BitsPerSecond| {
            let fleet = Fleet {
                egress: *egress,
                ..self.fleet
            };
            let there = Self { fleet, ..*self };
            Some(AtBandwidth {
                egress: *egress,
                adapted: there.best()?,
                kept: there.plan(kept.threshold, kept.split),
            })
        };
        bandwidths.iter().filter_map(at).collect()
    }
}
