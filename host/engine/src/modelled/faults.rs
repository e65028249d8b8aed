//! What goes wrong on a modelled engine, and when: drawn from a seed and the request's number, so that a run repeats.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Shares are in thousandths of all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Draws.
    pub seed: u64,
    /// Answered with 503.
    pub refuse_permille: u16,
    /// Answered with 500.
    pub fail_permille: u16,
    /// Cut in the middle of the answer, without an end.
    pub break_permille: u16,
    /// Nothing comes for `stall_ms`.
    pub stall_permille: u16,
    /// How long.
    pub stall_ms: u64,
    /// Cache event batches that are numbered and never sent.
    pub lose_events_permille: u16,
    /// After so many requests the process ends; 0: never.
    pub die_after: u64,
}

/// What becomes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Served,
    Refused,
    Failed,
    /// Cut after the first token.
    Broken,
    Stalled(Duration),
    /// The engine dies.
    Fatal,
}

impl Faults {
    /// What becomes of request `number`, counted from 1.
    pub(super) fn fate(&self, number: u64) -> Fate {
        if self.die_after > 0 && number > self.die_after {
            return Fate::Fatal;
        }
        let drawn = (mix(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) % 1000) as u16;
        let mut upto = 0;
        let mut within = |share: u16| {
            upto += share;
            drawn < upto
        };
        if within(self.refuse_permille) {
            Fate::Refused
        } else if within(self.fail_permille) {
            Fate::Failed
        } else if within(self.break_permille) {
            Fate::Broken
        } else if within(self.stall_permille) {
            Fate::Stalled(Duration::from_millis(self.stall_ms))
        } else {
            Fate::Served
        }
    }

    /// Whether the event batch of this number is lost.
    pub(super) fn loses(&self, sequence: u64) -> bool {
        let drawn = mix(self.seed ^ 0x5eed ^ sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15)) % 1000;
        drawn < u64::from(self.lose_events_permille)
    }
}

/// SplitMix64's finish: every bit of the input moves every bit of the output.
pub(super) const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_about_as_asked_and_repeat() {
        let faults = Faults {
            seed: 3,
            refuse_permille: 100,
            fail_permille: 200,
            ..Faults::default()
        };
        let fates: Vec<Fate> = (1..=10_000).map(|n| faults.fate(n)).collect();
        let count = |fate| fates.iter().filter(|f| **f == fate).count();
        assert!((900..1100).contains(&count(Fate::Refused)));
        assert!((1850..2150).contains(&count(Fate::Failed)));
        assert_eq!(fates, (1..=10_000).map(|n| faults.fate(n)).collect::<Vec<_>>());
        let mortal = Faults {
            die_after: 2,
            ..Faults::default()
        };
        assert_eq!((mortal.fate(2), mortal.fate(3)), (Fate::Served, Fate::Fatal));
    }
}
