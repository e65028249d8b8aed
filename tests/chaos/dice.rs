//! Random choices that a seed repeats: splitmix64.

use portolan_base::Random;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A source of random choices. Shared by reference: what is drawn next depends on who draws first.
#[derive(Debug)]
pub(crate) struct Dice(AtomicU64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// A number below `sides`.
    pub(crate) fn roll(&self, sides: u64) -> u64 {
        self.next_u64() % sides.max(1)
    }

    /// The same for indices.
    pub(crate) fn pick(&self, of: usize) -> usize {
        self.roll(of as u64) as usize
    }

    /// True so many times in a hundred.
    pub(crate) fn chance(&self, percent: u64) -> bool {
        self.roll(100) < percent
    }

    /// Milliseconds from `from` to `to`, both included.
    pub(crate) fn millis(&self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.roll(to.saturating_sub(from) + 1))
    }
}

impl Random for Dice {
    fn next_u64(&self) -> u64 {
        mix(self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed))
    }
}

/// A number that looks nothing like the one it is made from.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
