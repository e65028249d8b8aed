//! Whether what a source of events said so far can be trusted to be everything.

/// What to do with an event that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It follows the one before: apply it.
    Next,
    /// Events are missing, or the source was restarted: clear the source's entries, then apply it.
    ClearFirst,
    /// It is a duplicate, or of an incarnation that has ended: drop it.
    Stale,
}

/// Follows the numbered events of one source.
///
/// A source draws its incarnation at random when it starts, and numbers its events from 0 within it. Since an
/// incarnation is never drawn twice, what still comes from the one before is late, not new.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceState {
    current: Option<Position>,
    /// The incarnation before the present one.
    ended: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    incarnation: u64,
    next: u64,
    lost: bool,
}

impl SourceState {
    /// Nothing heard yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes note of an event's number and says what to do with the event.
    pub fn observe(&mut self, incarnation: u64, sequence: u64) -> Arrival {
        let fresh = Position {
            incarnation,
            next: sequence.saturating_add(1),
            lost: sequence > 0,
        };
        match &mut self.current {
            Some(at) if at.incarnation == incarnation => {
                if sequence < at.next {
                    return Arrival::Stale;
                }
                let gap = sequence > at.next;
                at.next = fresh.next;
                at.lost |= gap;
                if gap { Arrival::ClearFirst } else { Arrival::Next }
            }
            Some(_) if self.ended == Some(incarnation) => Arrival::Stale,
            Some(at) => {
                self.ended = Some(at.incarnation);
                *at = fresh;
                Arrival::ClearFirst
            }
            None => {
                self.current = Some(fresh);
                Arrival::Next
            }
        }
    }

    /// Some of what the source said was given up.
    pub fn lose(&mut self) {
        if let Some(at) = &mut self.current {
            at.lost = true;
        }
    }

    /// The source holds nothing, or has told everything it holds: what was lost before matters no more.
    pub fn restored(&mut self) {
        if let Some(at) = &mut self.current {
            at.lost = false;
        }
    }

    /// Whether every event of the incarnation was seen, so that "not in the index" means "not held". False before the
    /// first event.
    pub fn is_complete(&self) -> bool {
        self.current.is_some_and(|at| !at.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_order_events_are_applied_and_duplicates_dropped() {
        let mut source = SourceState::new();
        assert!(!source.is_complete());
        assert_eq!([0, 1, 1, 0, 2].map(|n| source.observe(7, n)), {
            use Arrival::{Next, Stale};
            [Next, Next, Stale, Stale, Next]
        });
        assert!(source.is_complete());
    }

    #[test]
    fn a_gap_clears_and_stays_incomplete_until_restored() {
        let mut source = SourceState::new();
        source.observe(7, 0);
        assert_eq!(source.observe(7, 2), Arrival::ClearFirst);
        assert_eq!(
            source.observe(7, 1),
            Arrival::Stale,
            "it came after what followed it"
        );
        assert_eq!(source.observe(7, 3), Arrival::Next);
        assert!(!source.is_complete());
        source.restored();
        assert!(source.is_complete());
    }

    #[test]
    fn a_source_first_heard_in_the_middle_is_incomplete() {
        let mut source = SourceState::new();
        assert_eq!(source.observe(7, 5), Arrival::Next);
        assert!(!source.is_complete());
    }

    #[test]
    fn a_restart_clears_and_late_events_of_the_old_incarnation_are_dropped() {
        let mut source = SourceState::new();
        source.observe(7, 0);
        source.observe(7, 9);
        assert_eq!(source.observe(8, 0), Arrival::ClearFirst);
        assert!(source.is_complete(), "the loss was the old incarnation's");
        assert_eq!(source.observe(7, 10), Arrival::Stale);
        assert_eq!(source.observe(8, 1), Arrival::Next);
    }

    #[test]
    fn the_last_sequence_number_does_not_overflow() {
        let mut source = SourceState::new();
        assert_eq!(source.observe(7, u64::MAX), Arrival::Next);
        assert_eq!(source.observe(7, 0), Arrival::Stale);
    }
}
