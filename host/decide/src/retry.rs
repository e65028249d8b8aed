//! How much a site may try again.

use portolan_base::Moment;
use std::time::Duration;

/// Limits on trying again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryConfig {
    /// Second tries a hundred first tries earn. Twenty: what fails for reasons of its own is far under a fifth, and a
    /// fleet in trouble gets at most a fifth more work.
    pub percent: u32,
    /// Second tries in hand at first and after a quiet time: what is in flight on an instance that dies.
    pub reserve: u32,
    /// How long the reserve takes to fill again by itself.
    pub refill: Duration,
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self {
            percent: 20,
            reserve: 100,
            refill: Duration::from_secs(10),
        }
    }
}

/// A budget of second tries: without one, a fleet that is slow because it has too much to do is given every request
/// several times.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    config: RetryConfig,
    /// In hundredths of a try.
    hundredths: u64,
    at: Moment,
}

impl RetryBudget {
    /// A full budget.
    pub fn new(config: RetryConfig) -> Self {
        Self {
            hundredths: u64::from(config.reserve) * 100,
            config,
            at: Moment(0),
        }
    }

    /// A request begins.
    pub fn request(&mut self) {
        self.earn(u64::from(self.config.percent));
    }

    /// Takes one second try; false when none is left.
    pub fn take(&mut self, now: Moment) -> bool {
        self.refill(now);
        let left = self.hundredths.checked_sub(100);
        if let Some(left) = left {
            self.hundredths = left;
        }
        left.is_some()
    }

    fn refill(&mut self, now: Moment) {
        let whole = u64::from(self.config.reserve) * 100;
        let gone = now.since(self.at).min(self.config.refill).as_millis() as u64;
        let earned = whole * gone / (self.config.refill.as_millis() as u64).max(1);
        // Time that earned nothing yet is kept for the next look.
        if earned > 0 {
            self.at = now;
            self.earn(earned);
        }
    }

    fn earn(&mut self, hundredths: u64) {
        let most = u64::from(self.config.reserve) * 100;
        self.hundredths = (self.hundredths + hundredths).min(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(seconds: u64) -> Moment {
        Moment(seconds * 1_000_000)
    }

    fn taken(budget: &mut RetryBudget, now: Moment) -> usize {
        std::iter::repeat_with(|| budget.take(now))
            .take_while(|took| *took)
            .count()
    }

    #[test]
    fn a_reserve_then_a_share_of_the_requests_then_time() {
        let mut budget = RetryBudget::new(RetryConfig {
            percent: 20,
            reserve: 10,
            refill: Duration::from_secs(10),
        });
        assert_eq!(taken(&mut budget, second(0)), 10);
        (0..20).for_each(|_| budget.request());
        assert_eq!(taken(&mut budget, second(0)), 4);
        assert_eq!(taken(&mut budget, second(3)), 3);
        assert_eq!(
            taken(&mut budget, second(1_000)),
            10,
            "never more than the reserve"
        );
    }

    #[test]
    fn many_short_looks_earn_what_one_long_look_does() {
        let mut budget = RetryBudget::new(RetryConfig {
            percent: 0,
            reserve: 1,
            refill: Duration::from_secs(10),
        });
        assert_eq!(taken(&mut budget, Moment(0)), 1);
        let looks = (1..=10_000u64)
            .filter(|ms| budget.take(Moment(ms * 1000)))
            .count();
        assert_eq!(looks, 1);
    }
}
