//! Time and randomness as inputs. Only the program's wiring implements these over the operating system; tests and
//! the simulator implement them over a counter and a seed, and so run the same code.

use core::time::Duration;
use serde::{Deserialize, Serialize};

/// A point in time: microseconds since the Unix epoch on a live host, since the start on a virtual clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(pub u64);

impl Moment {
    /// Milliseconds since the same origin.
    pub const fn millis(self) -> u64 {
        self.0 / 1000
    }

    /// The time since `earlier`, zero when that lies in the future.
    pub const fn since(self, earlier: Moment) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl core::ops::Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, by: Duration) -> Moment {
        Moment(
            self.0
                .saturating_add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX)),
        )
    }
}

/// Reads the time. Never goes backwards.
pub trait Clock: Send + Sync {
    /// The present moment.
    fn now(&self) -> Moment;
}

/// Draws random bits.
pub trait Random: Send + Sync {
    /// 64 bits, uniformly distributed.
    fn next_u64(&self) -> u64;
}
