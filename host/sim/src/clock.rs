//! The clock of a simulation.

use portolan_base::{Clock, Moment};
use std::sync::atomic::{AtomicU64, Ordering};

/// Shows the time of a simulation: microseconds since its start. Whatever else needs the time while a simulation runs,
/// such as the store of a policy's state, reads this clock too, so that nothing depends on the machine's speed.
#[derive(Debug, Default)]
pub struct VirtualClock(AtomicU64);

impl VirtualClock {
    pub(crate) fn set(&self, now: Moment) {
        self.0.store(now.0, Ordering::Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Moment {
        Moment(self.0.load(Ordering::Relaxed))
    }
}
