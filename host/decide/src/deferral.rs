//! How often and how long a routing policy may hold a request back. A policy that always defers keeps neither a request
//! nor a simulation from ending, and makes its host do no more work than a few decisions.

use portolan_base::Moment;
use std::time::Duration;

/// Times a request is deferred. Each costs a whole decision; a policy that waits for something asks for the time it
/// takes, and eight looks at it are enough.
pub const MAX_DEFERRALS: u32 = 8;

/// How long a request is held altogether, from its first deferral. Ten seconds, the longest single deferral: a client
/// that got no byte for longer has given up.
pub const MAX_HOLD: Duration = Duration::from_secs(10);

/// The deferrals of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deferrals {
    times: u32,
    /// When the first was; says something where there was one.
    since: Moment,
}

impl Deferrals {
    /// How long a request waits that is deferred by `ms` at `now`: at least a millisecond, so that time passes. `None`
    /// when it was held often enough, or would be for too long: it is refused.
    pub fn hold(&mut self, ms: u32, now: Moment) -> Option<Duration> {
        if self.times == 0 {
            self.since = now;
        }
        let hold = Duration::from_millis(u64::from(ms.max(1)));
        if self.times == MAX_DEFERRALS || now + hold > self.since + MAX_HOLD {
            return None;
        }
        self.times += 1;
        Some(hold)
    }

    /// How often the request was deferred.
    pub fn times(&self) -> u32 {
        self.times
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::MAX_DEFER_MS;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn eight_deferrals_of_no_time_pass_and_the_ninth_does_not() {
        let mut deferrals = Deferrals::default();
        for time in 1..=MAX_DEFERRALS {
            assert_eq!(deferrals.hold(0, Moment(7)), Some(MS), "time {time}");
            assert_eq!(deferrals.times(), time);
        }
        assert_eq!(deferrals.hold(0, Moment(7)), None);
    }

    #[test]
    fn what_the_clock_says_counts_not_what_was_asked_for() {
        let begun = Moment(1_000_000);
        let late = |by: Duration| {
            let mut deferrals = Deferrals::default();
            assert_eq!(deferrals.hold(1, begun), Some(MS));
            deferrals.hold(1, begun + by)
        };
        assert_eq!(late(MAX_HOLD - MS), Some(MS), "just inside");
        assert_eq!(
            late(MAX_HOLD),
            None,
            "a host that woke it late held it all the same"
        );
    }

    #[test]
    fn the_longest_single_deferral_takes_all_there_is() {
        let mut deferrals = Deferrals::default();
        assert_eq!(deferrals.hold(MAX_DEFER_MS, Moment(5)), Some(MAX_HOLD));
        assert_eq!(deferrals.hold(1, Moment(5) + MAX_HOLD), None);
        assert_eq!(Deferrals::default().hold(MAX_DEFER_MS + 1, Moment(5)), None);
    }
}
