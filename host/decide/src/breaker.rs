//! When an instance or link is left alone for a while.

use portolan_base::Moment;
use std::time::Duration;

/// When a breaker opens and closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Consecutive failures that open it. Three: one is chance, two may be one incident seen twice.
    pub failures: u32,
    /// How long it stays open before one trial is let through.
    pub cooldown: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            failures: 3,
            cooldown: Duration::from_secs(5),
        }
    }
}

/// Counts consecutive failures; open from the last of them until a trial succeeds.
///
/// Being full (429, 503) and the client's own errors are no failures: do not report them.
#[derive(Clone, Debug)]
pub struct Breaker {
    config: BreakerConfig,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { until: Moment },
    Trial { until: Moment },
}

impl Breaker {
    /// A closed breaker.
    pub fn new(config: BreakerConfig) -> Self {
        Self {
            config,
            state: State::Closed { failures: 0 },
        }
    }

    /// Whether work may be sent. When the cool-down is over, exactly one caller is told yes; if that trial is never
    /// reported, another is let through after a further cool-down.
    pub fn allows(&mut self, now: Moment) -> bool {
        match self.state {
            State::Closed { .. } => true,
            State::Open { until } | State::Trial { until } if now >= until => {
                self.state = State::Trial {
                    until: now + self.config.cooldown,
                };
                true
            }
            State::Open { .. } | State::Trial { .. } => false,
        }
    }

    /// Whether work would be let through at `now`, without taking the trial.
    pub fn is_ready(&self, now: Moment) -> bool {
        match self.state {
            State::Closed { .. } => true,
            State::Open { until } | State::Trial { until } => now >= until,
        }
    }

    /// Work went well.
    pub fn succeeded(&mut self) {
        self.state = State::Closed { failures: 0 };
    }

    /// Work failed.
    pub fn failed(&mut self, now: Moment) {
        let open = State::Open {
            until: now + self.config.cooldown,
        };
        self.state = match self.state {
            State::Closed { failures } if failures + 1 < self.config.failures => State::Closed {
                failures: failures + 1,
            },
            State::Closed { .. } | State::Open { .. } | State::Trial { .. } => open,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn opens_after_three_and_lets_one_trial_through() {
        let mut breaker = Breaker::new(BreakerConfig {
            failures: 3,
            cooldown: SECOND,
        });
        let start = Moment(0);
        for _ in 0..2 {
            breaker.failed(start);
            assert!(breaker.allows(start));
        }
        breaker.failed(start);
        assert!(!breaker.allows(start));
        let later = start + SECOND;
        assert!(breaker.is_ready(later));
        assert!(breaker.allows(later), "one trial");
        assert!(!breaker.allows(later), "not two");
        breaker.failed(later);
        assert!(!breaker.allows(later + SECOND / 2));
        assert!(breaker.allows(later + SECOND));
        breaker.succeeded();
        assert!(breaker.allows(later + SECOND) && breaker.allows(later + SECOND));
    }

    #[test]
    fn a_success_between_failures_starts_the_count_again() {
        let mut breaker = Breaker::new(BreakerConfig {
            failures: 2,
            cooldown: SECOND,
        });
        for _ in 0..5 {
            breaker.failed(Moment(0));
            breaker.succeeded();
        }
        assert!(breaker.allows(Moment(0)));
    }

    #[test]
    fn an_unreported_trial_does_not_lock_the_breaker() {
        let mut breaker = Breaker::new(BreakerConfig {
            failures: 1,
            cooldown: SECOND,
        });
        breaker.failed(Moment(0));
        assert!(breaker.allows(Moment(0) + SECOND));
        assert!(breaker.allows(Moment(0) + SECOND * 2));
    }
}
