//! Who goes first: recency, moved by how often a block was reused and what it would cost to have it again.
//!
//! The clock is the pool's *turnover*: bytes taken in since the beginning. A block is *due* at the turnover of its last
//! use plus a credit, and the block that is due first is evicted first:
//!
//! `due = turnover at last use + budget / 4 × log2(1 + reuses) × density / mean density`
//!
//! with density = time to rebuild / bytes. A block that was never reused has no credit and goes in order of use, as in
//! LRU. One that was reused stays longer, by a quarter of the time in which the pool renews itself for each doubling,
//! times what it saves for its bytes. This is greedy dual size frequency (Cherkasova 1998) with its inflation made
//! continuous: in the original the inflation moves in steps of whole generations, which keeps what was once popular for
//! too long where the pool is large (`docs/kv-pool.md` has figures).

use portolan_base::Bytes;
use std::time::Duration;

/// A doubling of reuses is worth this part of the pool's turnover: 1/4. An eighth hardly differs from LRU; a half
/// gains more where the pool is far too small and loses where it nearly suffices.
const CREDIT_DIVISOR: u64 = 4;

/// Doublings that count: a block used 255 times is as good as one used for ever, and still ages in two turnovers.
const DOUBLINGS_MAX: u32 = 8;

/// Densities count from a quarter of the mean to four times it, so that no estimate of a rebuild makes a block
/// immortal.
const DENSITY_SPREAD: u64 = 4;

/// Densities are counted in thousandths of the mean.
const UNIT: u64 = 1000;

/// When a block goes, earlier first. Unique among the blocks of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Due {
    /// Turnover at which it is due.
    pub(super) at: u64,
    /// Number of its last use: decides between equals.
    pub(super) used: u64,
}

/// What the blocks of a pool have cost, taken together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Worth {
    nanos: u64,
    bytes: u64,
}

impl Worth {
    pub(super) fn add(&mut self, rebuild: Duration, size: Bytes) {
        self.nanos = self.nanos.saturating_add(nanos(rebuild));
        self.bytes = self.bytes.saturating_add(size.0);
    }

    pub(super) fn remove(&mut self, rebuild: Duration, size: Bytes) {
        self.nanos = self.nanos.saturating_sub(nanos(rebuild));
        self.bytes = self.bytes.saturating_sub(size.0);
    }

    /// What a block saves for its bytes, in thousandths of the mean.
    fn density(self, rebuild: Duration, size: Bytes) -> u64 {
        let own = u128::from(nanos(rebuild)) * u128::from(self.bytes) * u128::from(UNIT);
        let mean = u128::from(self.nanos) * u128::from(size.0);
        let density = own.checked_div(mean).unwrap_or(u128::from(UNIT));
        let density = u64::try_from(density).unwrap_or(u64::MAX);
        density.clamp(UNIT / DENSITY_SPREAD, UNIT * DENSITY_SPREAD)
    }

    /// The turnover that a block gains over plain recency.
    pub(super) fn credit(self, budget: Bytes, reuses: u32, rebuild: Duration, size: Bytes) -> u64 {
        let doublings = reuses.saturating_add(1).ilog2().min(DOUBLINGS_MAX);
        let credit = u128::from(budget.0 / CREDIT_DIVISOR)
            * u128::from(doublings)
            * u128::from(self.density(rebuild, size))
            / u128::from(UNIT);
        u64::try_from(credit).unwrap_or(u64::MAX)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
