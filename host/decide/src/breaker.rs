//! When an instance or link is left alone for a while.

use portolan_base::Moment;
use std::time::Duration;

/// When a breaker opens and closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Consecutive failures that open it. Three: one is chance, two may be one incident seen twice.
    pub failures: u32,
    /// How long it stays open before work is let through again.
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

/// Counts consecutive failures; open for a cool-down from the last of them. Once that is over a single failure opens it
/// again, a single success closes it.
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
}

impl Breaker {
    /// A closed breaker.
    pub fn new(config: BreakerConfig) -> Self {
        Self {
            config,
            state: State::Closed { failures: 0 },
        }
    }

    /// Whether work may be sent.
    pub fn is_ready(&self, now: Moment) -> bool {
        match self.state {
            State::Closed { .. } => true,
            State::Open { until } => now >= until,
        }
    }

    /// Work went well.
    pub fn succeeded(&mut self) {
        self.state = State::Closed { failures: 0 };
    }

    /// Work failed.
    pub fn failed(&mut self, now: Moment) {
        self.state = match self.state {
            State::Closed { failures } if failures + 1 < self.config.failures => State::Closed {
                failures: failures + 1,
            },
            State::Closed { .. } | State::Open { .. } => State::Open {
                until: now + self.config.cooldown,
            },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn opens_after_three_and_asks_again_after_the_cooldown() {
        let mut breaker = Breaker::new(BreakerConfig {
            failures: 3,
            cooldown: SECOND,
        });
        let start = Moment(0);
        for _ in 0..2 {
            breaker.failed(start);
            assert!(breaker.is_ready(start));
        }
        breaker.failed(start);
        assert!(!breaker.is_ready(start + SECOND / 2));
        let later = start + SECOND;
        assert!(breaker.is_ready(later));
        breaker.failed(later);
        assert!(
            !breaker.is_ready(later + SECOND / 2),
            "one failure is enough to open it again"
        );
        breaker.succeeded();
        breaker.failed(later);
        assert!(breaker.is_ready(later), "a success starts the count again");
    }
}
