//! When a file is complete: the part of watching that only takes sightings and time.

use super::SETTLE;
use portolan_base::Moment;
use portolan_gateway::policies::PolicySlot;
use std::collections::{BTreeMap, BTreeSet};

/// What a file looked like from outside. One that was changed looks different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signature {
    /// Size in bytes.
    pub(super) len: u64,
    /// When it was last written.
    pub(super) modified: Moment,
    /// Which file it is on its disk: another one was renamed into its place when this differs.
    pub(super) inode: u64,
}

/// The files of one slot, as one scan saw them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sighting {
    pub(super) component: Signature,
    pub(super) config: Option<Signature>,
    pub(super) signature: Option<Signature>,
}

impl Sighting {
    /// When the youngest of the files was written.
    pub(super) fn modified(&self) -> Moment {
        let beside = self.config.into_iter().chain(self.signature);
        beside
            .map(|file| file.modified)
            .fold(self.component.modified, Moment::max)
    }

    /// Whether all that belongs to the component was there before, as it is.
    fn beside_unchanged(&self, before: Option<&Self>) -> bool {
        let same = |now: Option<Signature>, then: Option<Signature>| now.is_none() || now == then;
        same(self.config, before.and_then(|before| before.config))
            && same(self.signature, before.and_then(|before| before.signature))
    }
}

#[derive(Debug)]
enum Phase {
    /// It may still be being written; unchanged since the moment.
    Settling(Moment),
    /// It was dealt with.
    Done,
}

/// Follows the files of every slot from scan to scan.
#[derive(Debug, Default)]
pub(super) struct Settling {
    slots: BTreeMap<PolicySlot, (Sighting, Phase)>,
}

impl Settling {
    /// Takes note of a scan; returns what is complete and not dealt with. `renamed` holds the slots whose component
    /// appeared by a rename, and so in one piece.
    pub(super) fn observe(
        &mut self,
        now: Moment,
        seen: &BTreeMap<PolicySlot, Sighting>,
        renamed: &BTreeSet<PolicySlot>,
    ) -> Vec<(PolicySlot, Sighting)> {
        self.slots.retain(|slot, _| seen.contains_key(slot));
        let mut complete = Vec::new();
        for (slot, sighting) in seen {
            let before = self.slots.get(slot).map(|(before, _)| *before);
            if before != Some(*sighting) {
                self.slots.insert(slot.clone(), (*sighting, Phase::Settling(now)));
            }
            let Some((_, Phase::Settling(since))) = self.slots.get(slot) else {
                continue;
            };
            let beside_unchanged = sighting.beside_unchanged(before.as_ref());
            if now.since(*since) >= SETTLE || (renamed.contains(slot) && beside_unchanged) {
                complete.push((slot.clone(), *sighting));
            }
        }
        complete
    }

    /// The files are not looked at again before they change.
    pub(super) fn done(&mut self, slot: &PolicySlot) {
        if let Some((_, phase)) = self.slots.get_mut(slot) {
            *phase = Phase::Done;
        }
    }

    /// The files are taken up again after [`SETTLE`].
    pub(super) fn again(&mut self, slot: &PolicySlot, now: Moment) {
        if let Some((_, phase)) = self.slots.get_mut(slot) {
            *phase = Phase::Settling(now);
        }
    }

    /// Whether anything is not dealt with.
    pub(super) fn is_settling(&self) -> bool {
        self.slots
            .values()
            .any(|(_, phase)| matches!(phase, Phase::Settling(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_policy::{QuestionKind, Scope};
    use std::time::Duration;

    fn slot() -> PolicySlot {
        PolicySlot::new(Scope::Platform, QuestionKind::Cost)
    }

    fn signature(len: u64) -> Signature {
        Signature {
            len,
            modified: Moment(len),
            inode: 1,
        }
    }

    fn at(settling: &mut Settling, now: Duration, len: u64, renamed: bool) -> bool {
        let seen = BTreeMap::from([(
            slot(),
            Sighting {
                component: signature(len),
                config: None,
                signature: None,
            },
        )]);
        let renamed = renamed.then(slot).into_iter().collect();
        !settling.observe(Moment(0) + now, &seen, &renamed).is_empty()
    }

    #[test]
    fn a_file_is_complete_when_it_has_not_changed_for_the_time_and_not_a_moment_earlier() {
        let mut settling = Settling::default();
        let growing = Duration::from_millis(100);
        assert!(!at(&mut settling, Duration::ZERO, 1, false));
        assert!(!at(&mut settling, growing, 2, false));
        assert!(!at(
            &mut settling,
            growing + SETTLE - Duration::from_micros(1),
            2,
            false
        ));
        assert!(settling.is_settling());
        assert!(at(&mut settling, growing + SETTLE, 2, false));
        settling.done(&slot());
        assert!(!at(&mut settling, growing + 9 * SETTLE, 2, false), "dealt with");
        assert!(!settling.is_settling());
        assert!(
            !at(&mut settling, growing + 10 * SETTLE, 3, false),
            "changed: settles anew"
        );
        assert!(at(&mut settling, growing + 11 * SETTLE, 3, false));
    }

    #[test]
    fn a_file_that_appeared_by_a_rename_is_complete_at_once_unless_its_configuration_is_new() {
        let mut settling = Settling::default();
        assert!(at(&mut settling, Duration::ZERO, 1, true));
        settling.done(&slot());
        assert!(!at(&mut settling, Duration::ZERO, 1, true), "the same file twice");

        let with_config = Sighting {
            component: signature(2),
            config: Some(signature(1)),
            signature: None,
        };
        let seen = BTreeMap::from([(slot(), with_config)]);
        let renamed = BTreeSet::from([slot()]);
        assert!(settling.observe(Moment(0), &seen, &renamed).is_empty());
        assert_eq!(
            settling.observe(Moment(0) + SETTLE, &seen, &BTreeSet::new()),
            [(slot(), with_config)]
        );
    }

    #[test]
    fn a_file_that_went_away_and_came_back_is_taken_up_again() {
        let mut settling = Settling::default();
        assert!(at(&mut settling, Duration::ZERO, 1, true));
        settling.done(&slot());
        assert!(
            settling
                .observe(Moment(1), &BTreeMap::new(), &BTreeSet::new())
                .is_empty()
        );
        assert!(at(&mut settling, Duration::ZERO, 1, true));
        settling.again(&slot(), Moment(0) + SETTLE);
        assert!(!at(&mut settling, SETTLE, 1, false));
        assert!(at(&mut settling, 2 * SETTLE, 1, false));
    }
}
