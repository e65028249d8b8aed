//! Changes of other processes that could not be made here, and when to try again.

use portolan_ports::SharedSlot;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// How soon a change is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Its component is out of reach.
    Soon,
    /// A full disk, or a machine that has no time to compile, passes; a component that cannot be used here stays so, and
    /// trying costs as much as compiling.
    Late,
}

impl Patience {
    /// First and longest wait.
    fn waits(self) -> (Duration, Duration) {
        match self {
            Self::Soon => (Duration::from_millis(200), Duration::from_secs(5)),
            Self::Late => (Duration::from_secs(5), Duration::from_secs(300)),
        }
    }
}

/// Of each slot the newest state that could not be taken over.
#[derive(Default)]
pub(super) struct Unmade(BTreeMap<String, Waits>);

struct Waits {
    state: SharedSlot,
    wait: Duration,
    until: Instant,
}

impl Unmade {
    /// A state could not be taken over: it is due again after a while, longer each time.
    pub(super) fn note(&mut self, state: SharedSlot, patience: Patience, now: Instant) {
        let before = self.0.remove(&slot(&state)).filter(|waits| waits.state == state);
        let (first, longest) = patience.waits();
        let wait = before.map_or(first, |waits| longest.min(first.max(waits.wait * 2)));
        let until = now + wait;
        self.0.insert(slot(&state), Waits { state, wait, until });
    }

    /// A state was taken over: an earlier one of its slot counts no more.
    pub(super) fn made(&mut self, state: &SharedSlot) {
        self.0.remove(&slot(state));
    }

    /// When something is to be tried again.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().map(|waits| waits.until).min()
    }

    /// What to try again at this moment, the longest due first.
    pub(super) fn due(&self, now: Instant) -> Vec<SharedSlot> {
        let mut due: Vec<_> = self.0.values().filter(|waits| waits.until <= now).collect();
        due.sort_by_key(|waits| waits.until);
        due.into_iter().map(|waits| waits.state.clone()).collect()
    }
}

fn slot(state: &SharedSlot) -> String {
    format!("{} {}", state.scope, state.question)
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_policy::QuestionKind;
    use portolan_ports::{RolloutRecord, Scope};

    fn state(reason: &str) -> SharedSlot {
        SharedSlot {
            scope: Scope::Platform,
            question: QuestionKind::Routing,
            binding: None,
            rollout: RolloutRecord::plain(Scope::Platform, QuestionKind::Routing),
            versions: Vec::new(),
            actor: "a".to_owned(),
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn what_could_not_be_made_is_due_again_later_and_later_until_it_is_made_or_replaced() {
        let (mut unmade, begin) = (Unmade::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        unmade.note(state("first"), Patience::Late, begin);
        assert_eq!(unmade.due(at(4)), []);
        assert_eq!(unmade.due(at(5)), [state("first")]);
        unmade.note(state("first"), Patience::Late, at(5));
        assert_eq!(unmade.due(at(14)), []);
        assert_eq!(unmade.due(at(15)), [state("first")]);
        unmade.note(state("second"), Patience::Late, at(15));
        assert_eq!(unmade.due(at(20)), [state("second")], "a newer state begins anew");
        (0..20).for_each(|_| unmade.note(state("second"), Patience::Late, at(20)));
        assert_eq!(unmade.due(at(319)), []);
        assert_eq!(unmade.due(at(320)), [state("second")], "and not ever more rarely");
        unmade.made(&state("third"));
        assert_eq!(unmade.due(at(1000)), []);
    }

    #[test]
    fn what_is_out_of_reach_is_tried_again_soon_and_each_slot_has_waits_of_its_own() {
        let (mut unmade, begin) = (Unmade::default(), Instant::now());
        let at = |millis| begin + Duration::from_millis(millis);
        let cost = SharedSlot {
            question: QuestionKind::Cost,
            ..state("other")
        };
        assert_eq!(unmade.next(), None);
        unmade.note(cost.clone(), Patience::Late, begin);
        unmade.note(state("first"), Patience::Soon, begin);
        assert_eq!(unmade.next(), Some(at(200)));
        (0..10).for_each(|_| unmade.note(state("first"), Patience::Soon, begin));
        assert_eq!(unmade.next(), Some(at(5000)));
        unmade.note(state("first"), Patience::Soon, at(100));
        assert_eq!(unmade.due(at(6000)), [cost, state("first")]);
    }
}
