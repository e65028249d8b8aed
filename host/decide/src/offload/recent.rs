//! The uncached lengths of recent requests.

use portolan_base::Tokens;
use portolan_planner::MeasuredLengths;

/// How many are kept: a share of them is known to a percent or two, and at a request a second they are of the last
/// half hour.
const KEPT: usize = 2048;

/// Fewer tell nothing about the balance of two pools.
const ENOUGH: usize = 64;

/// A ring of lengths with what was made of them last.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentLengths {
    ring: Vec<u32>,
    next: usize,
    sorted: Vec<u32>,
    measured: Option<MeasuredLengths>,
}

impl RecentLengths {
    pub(super) fn add(&mut self, length: u32) {
        if self.ring.len() < KEPT {
            self.ring.push(length);
        } else {
            self.ring[self.next] = length;
            self.next = (self.next + 1) % KEPT;
        }
    }

    /// Makes what is asked of them from what is there; whether that is enough to tell anything.
    pub(super) fn settle(&mut self) -> bool {
        if self.ring.len() < ENOUGH {
            return false;
        }
        self.sorted.clone_from(&self.ring);
        self.sorted.sort_unstable();
        self.measured = MeasuredLengths::new(self.ring.clone()).ok();
        true
    }

    pub(super) fn measured(&self) -> Option<&MeasuredLengths> {
        self.measured.as_ref()
    }

    /// The threshold that leaves `permille` of the requests that are longer than `threshold`, the longest ones: those
    /// gain most from each byte that is sent.
    pub(super) fn longest_share(&self, threshold: Tokens, permille: u32) -> Tokens {
        if permille >= 1000 {
            return threshold;
        }
        let longer = &self.sorted[self.sorted.partition_point(|length| *length <= threshold.0)..];
        let kept = longer.len() * permille as usize / 1000;
        match longer.len().checked_sub(kept + 1) {
            Some(last_at_home) => Tokens(longer[last_at_home].max(threshold.0)),
            None => threshold,
        }
    }
}
