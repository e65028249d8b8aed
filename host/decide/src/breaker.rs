//! When an instance or link is left alone for a while.

use portolan_base::Moment;
use std::time::Duration;

/// When a breaker opens and closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Consecutive failures that open it. Three: one is chance, two may be one incident seen twice.
    pub failures: u32,
    /// How long it stays open at first. Doubles with every trial that fails.
    pub cooldown: Duration,
    /// The longest it stays open.
    pub longest: Duration,
    /// How long a trial may be under way before another one may begin: its outcome may never be told.
    pub trial: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            failures: 3,
            cooldown: Duration::from_secs(5),
            longest: Duration::from_secs(60),
            trial: Duration::from_secs(10),
        }
    }
}

/// Counts consecutive failures; open for a cool-down from the last of them, then half open: one piece of work is let
/// through, and its outcome closes the breaker or opens it for twice as long.
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
    Open { until: Moment, cooldown: Duration },
    Trial { until: Moment, cooldown: Duration },
}

impl Breaker {
    /// A closed breaker.
    pub fn new(config: BreakerConfig) -> Self {
        Self {
            config,
            state: State::Closed { failures: 0 },
        }
    }

    /// Whether work may be sent: a closed breaker takes all of it, a half open one takes one piece.
    pub fn is_ready(&self, now: Moment) -> bool {
        match self.state {
            State::Closed { .. } => true,
            State::Open { until, .. } | State::Trial { until, .. } => now >= until,
        }
    }

    /// Work is being sent. For a half open breaker it is the trial.
    pub fn begins(&mut self, now: Moment) {
        if let State::Open { until, cooldown } | State::Trial { until, cooldown } = self.state
            && now >= until
        {
            self.state = State::Trial {
                until: now + self.config.trial,
                cooldown,
            };
        }
    }

    /// Work went well.
    pub fn succeeded(&mut self) {
        self.state = State::Closed { failures: 0 };
    }

    /// Work failed.
    pub fn failed(&mut self, now: Moment) {
        let open = |cooldown| State::Open {
            until: now + cooldown,
            cooldown,
        };
        self.state = match self.state {
            State::Closed { failures } if failures + 1 < self.config.failures => State::Closed {
                failures: failures + 1,
            },
            State::Closed { .. } => open(self.config.cooldown),
            // What began before it opened fails late: that is the same incident.
            State::Open { until, cooldown } if now < until => State::Open {
                until: until.max(now + cooldown),
                cooldown,
            },
            State::Open { cooldown, .. } | State::Trial { cooldown, .. } => {
                open((cooldown * 2).min(self.config.longest))
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn breaker() -> Breaker {
        Breaker::new(BreakerConfig {
            failures: 3,
            cooldown: SECOND,
            longest: SECOND * 3,
            trial: SECOND * 10,
        })
    }

    fn opened(at: Moment) -> Breaker {
        let mut breaker = breaker();
        (0..3).for_each(|_| breaker.failed(at));
        breaker
    }

    #[test]
    fn opens_after_three_and_a_success_starts_the_count_again() {
        let (mut breaker, start) = (breaker(), Moment(0));
        for _ in 0..2 {
            breaker.failed(start);
            assert!(breaker.is_ready(start));
        }
        breaker.succeeded();
        breaker.failed(start);
        breaker.failed(start);
        assert!(breaker.is_ready(start));
        breaker.failed(start);
        assert!(!breaker.is_ready(start + SECOND / 2));
    }

    #[test]
    fn one_piece_of_work_tries_it_and_closes_it_or_opens_it_for_twice_as_long() {
        let start = Moment(0);
        let mut breaker = opened(start);
        let later = start + SECOND;
        assert!(breaker.is_ready(later));
        breaker.begins(later);
        assert!(
            !breaker.is_ready(later),
            "the second piece waits for the first one's end"
        );
        breaker.failed(later);
        assert!(!breaker.is_ready(later + SECOND));
        assert!(breaker.is_ready(later + SECOND * 2));
        breaker.begins(later + SECOND * 2);
        breaker.failed(later + SECOND * 2);
        assert!(
            breaker.is_ready(later + SECOND * 5),
            "four seconds are cut to three"
        );
        breaker.begins(later + SECOND * 5);
        breaker.succeeded();
        assert!(breaker.is_ready(later + SECOND * 5));
    }

    #[test]
    fn a_trial_nobody_hears_of_again_makes_room_for_another() {
        let mut breaker = opened(Moment(0));
        let trial = Moment(0) + SECOND;
        breaker.begins(trial);
        assert!(!breaker.is_ready(trial + SECOND * 9));
        assert!(breaker.is_ready(trial + SECOND * 10));
    }

    #[test]
    fn late_failures_of_one_incident_do_not_double_the_cooldown() {
        let mut breaker = opened(Moment(0));
        (0..9).for_each(|_| breaker.failed(Moment(0) + SECOND / 2));
        assert!(breaker.is_ready(Moment(0) + SECOND * 3 / 2));
    }
}
