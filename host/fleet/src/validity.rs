//! Who may use what is cached, and for how long: the rules behind the promise that no prefill, fetch or decode begins on
//! an invalidated block once whoever ordered the invalidation was told that it is done.
//!
//! Three state machines that take time and events and have no clock, socket or task of their own:
//!
//! - [`SiteValidity`], one a site, follows the control stream and holds the site's lease;
//! - [`Peers`] knows from the stream which processes could hold a lease;
//! - [`Waiting`], one an order, knows when the order holds everywhere.
//!
//! The agent of a site drives them (`host/fleet/src/invalidation.rs`); `validity/model.rs` explores them exhaustively.
//! Times are those of the clock of the site that drives them and are only ever compared with each other: how far two
//! sites' clocks are apart does not matter, only how far they drift apart while a lease lasts.

mod peers;
mod site;
mod waiting;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use peers::Peers;
pub use site::{SiteValidity, Taken};
pub use waiting::{Confirmed, Waiting};

use std::time::Duration;

/// How long leases last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRules {
    /// How long a site uses what it has cached after it asked how far the stream is, by its own clock.
    pub lease: Duration,
    /// How far two clocks may drift apart while a lease lasts.
    pub drift: Duration,
}

impl LeaseRules {
    /// After so long by any clock every lease is over that was asked for before.
    pub fn longest(&self) -> Duration {
        self.lease + self.drift
    }

    /// How often a site asks. Four times a lease: three renewals in a row may be late or lost.
    pub fn beat(&self) -> Duration {
        self.lease / 4
    }
}

impl Default for LeaseRules {
    /// Two seconds, and a tenth of a second of drift: fifty thousand parts in a million, a thousand times what a quartz
    /// clock drifts, which leaves room for a virtual machine whose clock is being slewed.
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(2),
            drift: Duration::from_millis(100),
        }
    }
}
