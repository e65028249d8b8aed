//! How a new version of a policy comes into force: which requests it answers, and when it has cost too much.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;

/// A request's place in the draw, 0 to 9,999. Drawn once, at admit, from a keyed hash of the session, or of the request
/// where there is no session: all requests of a session share it, and no client can choose it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Draw(u16);

impl Draw {
    /// A hundred places a percent: 2⁶⁴ divides into them without a bias that anyone could measure.
    const PLACES: u64 = 10_000;

    /// The place that a uniform hash falls on.
    pub fn of(hash: u64) -> Self {
        Self(u16::try_from(hash % Self::PLACES).unwrap_or(0))
    }

    /// Whether a share takes this place. A larger share keeps every place of a smaller one.
    pub fn falls_in(self, share: Percent) -> bool {
        self.0 < u16::from(share.0) * 100
    }
}

/// A share of the sessions in percent, 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Percent(u8);

/// A share that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no share: percent is a whole number from 1 to 100")]
pub struct BadPercent(u8);

impl TryFrom<u8> for Percent {
    type Error = BadPercent;

    fn try_from(percent: u8) -> Result<Self, BadPercent> {
        match percent {
            1..=100 => Ok(Self(percent)),
            other => Err(BadPercent(other)),
        }
    }
}

impl From<Percent> for u8 {
    fn from(percent: Percent) -> Self {
        percent.0
    }
}

/// How far a version on trial has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "lowercase")]
pub enum TrialStage {
    /// Asked after each request, never obeyed.
    Shadow,
    /// Asked and obeyed by a share of the sessions.
    Canary {
        /// Of how many.
        percent: Percent,
    },
}

impl fmt::Display for TrialStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shadow => f.write_str("shadow"),
            Self::Canary { percent } => write!(f, "canary {} %", percent.0),
        }
    }
}

/// What a version may cost before it is taken out of force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    /// Over how many of its latest calls faults and slow calls are counted, 1 to 10,000.
    pub window: u32,
    /// Faults a thousand calls, timeouts among them, 0 to 1000.
    pub max_fault_permille: u32,
    /// Bound of the 99th percentile of a call's time in µs; `None`: only faults count.
    pub max_micros_p99: Option<u64>,
}

impl Default for Budget {
    /// Five faults in a hundred calls: a policy that traps is gone after six requests, and one unlucky timeout on a
    /// busy host costs nobody a version. No bound on time, since every call has a deadline and missing it is a fault.
    fn default() -> Self {
        Self {
            window: 100,
            max_fault_permille: 50,
            max_micros_p99: None,
        }
    }
}

/// A budget that cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBudget {
    /// The window is empty, or longer than what is kept.
    #[error("a budget's window is 1 to {max} calls, not {0}", max = Budget::WINDOW_MAX)]
    Window(u32),
    /// More faults than calls.
    #[error("max_fault_permille is 0 to 1000, not {0}")]
    Permille(u32),
}

impl Budget {
    /// Longest window in calls: 20 kB a version, and at a thousand calls a second still a verdict on ten seconds.
    pub const WINDOW_MAX: u32 = 10_000;

    /// Whether the numbers make sense.
    pub fn check(&self) -> Result<(), BadBudget> {
        if !(1..=Self::WINDOW_MAX).contains(&self.window) {
            return Err(BadBudget::Window(self.window));
        }
        if self.max_fault_permille > 1000 {
            return Err(BadBudget::Permille(self.max_fault_permille));
        }
        Ok(())
    }

    /// Faults that a whole window may hold.
    fn faults_allowed(&self) -> u32 {
        self.share_of_window(self.max_fault_permille)
    }

    /// Calls over the bound that a whole window may hold: one in a hundred is what the 99th percentile leaves out.
    fn slow_allowed(&self) -> u32 {
        self.share_of_window(10)
    }

    fn share_of_window(&self, permille: u32) -> u32 {
        u32::try_from(u64::from(self.window) * u64::from(permille) / 1000).unwrap_or(u32::MAX)
    }
}

/// How a budget was spent, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "on", rename_all = "lowercase")]
pub enum Spent {
    /// On faults.
    Faults {
        /// Faults among the latest calls.
        faults: u32,
        /// How many calls those are.
        calls: u32,
        /// Faults that were allowed.
        allowed: u32,
    },
    /// On time.
    Time {
        /// Calls over the bound among the latest.
        slow: u32,
        /// How many calls those are.
        calls: u32,
        /// Calls over the bound that were allowed.
        allowed: u32,
        /// The bound in µs.
        micros: u64,
    },
}

impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Faults {
                faults,
                calls,
                allowed,
            } => {
                write!(f, "{faults} faults in {calls} calls, {allowed} allowed")
            }
            Self::Time {
                slow,
                calls,
                allowed,
                micros,
            } => write!(
                f,
                "{slow} of {calls} calls took more than {micros} µs, {allowed} allowed"
            ),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    fault: bool,
    slow: bool,
}

/// Watches the calls of one version against its budget. A budget is an allowance a window: it is spent by the call that
/// exceeds it, not only once the window is full, so that a version that always fails goes after a few calls.
#[derive(Clone, Debug)]
pub struct BudgetMeter {
    budget: Budget,
    latest: VecDeque<Mark>,
    faults: u32,
    slow: u32,
    /// Calls in which a budget that was told to be spent is not told again.
    quiet: u32,
}

/// Calls after which a budget that is still spent is told again, at least: whoever was told may not have been able to do
/// anything about it. Each time costs reading the slot's history.
const TOLD_AGAIN: u32 = 100;

impl BudgetMeter {
    /// Nothing spent yet.
    pub fn new(budget: Budget) -> Self {
        Self {
            budget,
            latest: VecDeque::new(),
            faults: 0,
            slow: 0,
            quiet: 0,
        }
    }

    /// Counts a call that took `micros` and ended in a fault or not. Says so when that spent the budget,
    /// and again each window, a hundred calls at least, for as long as it is.
    pub fn observe(&mut self, fault: bool, micros: u64) -> Option<Spent> {
        let slow = self.budget.max_micros_p99.is_some_and(|bound| micros > bound);
        self.latest.push_back(Mark { fault, slow });
        self.faults += u32::from(fault);
        self.slow += u32::from(slow);
        if self.calls() > self.budget.window
            && let Some(oldest) = self.latest.pop_front()
        {
            self.faults -= u32::from(oldest.fault);
            self.slow -= u32::from(oldest.slow);
        }
        self.quiet = self.quiet.saturating_sub(1);
        let spent = self.spent().filter(|_| self.quiet == 0)?;
        self.quiet = self.budget.window.max(TOLD_AGAIN);
        Some(spent)
    }

    fn calls(&self) -> u32 {
        u32::try_from(self.latest.len()).unwrap_or(u32::MAX)
    }

    fn spent(&self) -> Option<Spent> {
        let (calls, budget) = (self.calls(), &self.budget);
        if self.faults > budget.faults_allowed() {
            return Some(Spent::Faults {
                faults: self.faults,
                calls,
                allowed: budget.faults_allowed(),
            });
        }
        budget
            .max_micros_p99
            .filter(|_| self.slow > budget.slow_allowed())
            .map(|micros| Spent::Time {
                slow: self.slow,
                calls,
                allowed: budget.slow_allowed(),
                micros,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(percent: u8) -> Percent {
        Percent::try_from(percent).unwrap()
    }

    /// SplitMix64 of a counter: a stand-in for the keyed hash of a session.
    fn hash(i: u64) -> u64 {
        let mut z = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    #[test]
    fn a_share_takes_its_percentage_of_the_sessions_and_keeps_them_when_it_grows() {
        for share in [1, 10, 25, 50, 99, 100] {
            let taken = (0..10_000)
                .filter(|&i| Draw::of(hash(i)).falls_in(percent(share)))
                .count();
            let expected = usize::from(share) * 100;
            assert!(
                taken.abs_diff(expected) <= 200,
                "{taken} of 10000 sessions for {share} %"
            );
        }
        for i in 0..10_000 {
            let draw = Draw::of(hash(i));
            assert!(!draw.falls_in(percent(10)) || draw.falls_in(percent(30)));
            assert!(draw.falls_in(percent(100)));
        }
    }

    #[test]
    fn the_bounds_of_a_share_are_exact() {
        assert!(Draw::of(4_999).falls_in(percent(50)));
        assert!(!Draw::of(5_000).falls_in(percent(50)));
        assert_eq!(Percent::try_from(0), Err(BadPercent(0)));
        assert_eq!(Percent::try_from(101), Err(BadPercent(101)));
    }

    #[test]
    fn faults_just_inside_the_budget_pass_and_one_more_spends_it_once() {
        let mut meter = BudgetMeter::new(Budget::default());
        for _ in 0..5 {
            assert_eq!(meter.observe(true, 1), None);
        }
        let spent = Spent::Faults {
            faults: 6,
            calls: 6,
            allowed: 5,
        };
        assert_eq!(meter.observe(true, 1), Some(spent));
        assert_eq!(spent.to_string(), "6 faults in 6 calls, 5 allowed");
        assert_eq!(meter.observe(true, 1), None, "it is told once");
    }

    #[test]
    fn a_budget_that_stays_spent_is_told_again_each_window_and_no_sooner_than_a_hundred_calls() {
        for (window, apart) in [(10, 100), (100, 100), (1_000, 1_000)] {
            let mut meter = BudgetMeter::new(Budget {
                window,
                ..Budget::default()
            });
            let told = (1..=window + 3 * apart).filter(|_| meter.observe(true, 1).is_some());
            let told: Vec<u32> = told.collect();
            let first = window / 20 + 1;
            assert_eq!(told[..3], [first, first + apart, first + 2 * apart], "{window}");
        }
        let mut meter = BudgetMeter::new(Budget::default());
        assert_eq!((0..6).filter(|_| meter.observe(true, 1).is_some()).count(), 1);
        let mended = (0..500).filter(|_| meter.observe(false, 1).is_some());
        assert_eq!(mended.count(), 0, "what is not spent any more is not told");
        assert_eq!((0..6).filter(|_| meter.observe(true, 1).is_some()).count(), 1);
    }

    #[test]
    fn faults_leave_the_window_with_their_calls() {
        let mut meter = BudgetMeter::new(Budget {
            window: 20,
            ..Budget::default()
        });
        // One fault in 20 is 50 ‰: allowed for ever at this rate.
        for i in 0..1_000 {
            assert_eq!(meter.observe(i % 20 == 0, 1), None, "call {i}");
        }
        assert_eq!(meter.observe(true, 1), None, "it takes the place of the oldest");
        assert!(meter.observe(true, 1).is_some());
    }

    #[test]
    fn a_budget_without_an_allowance_ends_at_the_first_fault() {
        let strict = Budget {
            max_fault_permille: 0,
            ..Budget::default()
        };
        let mut meter = BudgetMeter::new(strict);
        assert_eq!(meter.observe(false, u64::MAX), None, "time is not bounded here");
        assert!(meter.observe(true, 1).is_some());
        let mut generous = BudgetMeter::new(Budget {
            max_fault_permille: 1000,
            ..Budget::default()
        });
        assert!((0..500).all(|_| generous.observe(true, 1).is_none()));
    }

    #[test]
    fn the_second_slow_call_in_a_hundred_moves_the_99th_percentile() {
        let mut meter = BudgetMeter::new(Budget {
            max_micros_p99: Some(50),
            ..Budget::default()
        });
        for _ in 0..98 {
            assert_eq!(meter.observe(false, 50), None, "at the bound");
        }
        assert_eq!(meter.observe(false, 51), None, "the one call that p99 leaves out");
        let spent = meter.observe(false, 51).unwrap();
        assert_eq!(
            spent.to_string(),
            "2 of 100 calls took more than 50 µs, 1 allowed"
        );
    }

    #[test]
    fn budgets_that_make_no_sense_are_told_apart() {
        let window = |window| Budget {
            window,
            ..Budget::default()
        };
        assert_eq!(window(0).check(), Err(BadBudget::Window(0)));
        assert_eq!(window(10_001).check(), Err(BadBudget::Window(10_001)));
        assert_eq!(window(10_000).check(), Ok(()));
        let permille = Budget {
            max_fault_permille: 1001,
            ..Budget::default()
        };
        assert_eq!(permille.check(), Err(BadBudget::Permille(1001)));
    }
}
