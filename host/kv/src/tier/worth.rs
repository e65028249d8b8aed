//! Whether reading KV is cheaper than computing it.

use crate::pool::Reuse;
use portolan_base::Bytes;
use std::time::Duration;

/// What there is to read of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lying {
    /// Its KV.
    pub bytes: Bytes,
    /// Whether a recurrent state is among it.
    pub has_snapshot: bool,
}

/// How fast a tier reads, measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Once for each block.
    pub a_block: Duration,
    /// And for each MiB.
    pub a_mib: Duration,
}

impl Reading {
    /// Of memory: what is read is only pointed at.
    pub const AT_ONCE: Self = Self {
        a_block: Duration::ZERO,
        a_mib: Duration::ZERO,
    };

    /// How long so many bytes take.
    pub fn time(&self, bytes: Bytes) -> Duration {
        let nanos = (self.a_mib.as_nanos() * u128::from(bytes.0)) >> 20;
        self.a_block + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// How many of the blocks that lie below should be read, in their order: as many as save most time over computing
/// them, at `compute` each. Ends where `reuse` lets a prefix end; none when reading never pays.
pub fn worth_reading(run: &[(Lying, Reading)], compute: Duration, reuse: Reuse) -> usize {
    let (mut best, mut saved, mut most) = (0, 0i128, 0i128);
    for (index, (lying, reading)) in run.iter().enumerate() {
        saved += compute.as_nanos().cast_signed() - reading.time(lying.bytes).as_nanos().cast_signed();
        let may_end = reuse == Reuse::AnyBlock || lying.has_snapshot;
        if may_end && saved > most {
            (best, most) = (index + 1, saved);
        }
    }
    best
}
