//! The operating system's clock and randomness.

use portolan_base::{Clock, Moment, Random};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Unix time that never goes backwards: the wall clock once, at the start, then the monotonic one.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    started: Instant,
    origin_us: u64,
}

impl SystemClock {
    /// Starts the clock.
    pub fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let origin_us = u64::try_from(unix.as_micros()).unwrap_or(u64::MAX);
        Self {
            started: Instant::now(),
            origin_us,
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment(self.origin_us) + self.started.elapsed()
    }
}

/// Random bits from a generator that the operating system seeds.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsRandom;

impl Random for OsRandom {
    fn next_u64(&self) -> u64 {
        rand::random()
    }
}
