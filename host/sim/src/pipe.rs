//! A link that sends one thing after the other, and how busy something was lately.

use portolan_base::{Moment, Permille};
use std::collections::VecDeque;
use std::time::Duration;

/// The window of the production link monitor.
const WINDOW: Duration = Duration::from_secs(30);

/// Something that is busy or idle.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    /// Busy from – to, in order and disjoint.
    spells: VecDeque<(Moment, Moment)>,
}

impl Busy {
    pub(crate) fn note(&mut self, from: Moment, to: Moment) {
        self.spells.push_back((from, to));
    }

    /// Share of the last 30 s, or of the time so far when that is less.
    pub(crate) fn share(&mut self, now: Moment) -> Permille {
        let begin = Moment(now.0.saturating_sub(WINDOW.as_micros() as u64));
        while self.spells.front().is_some_and(|(_, to)| *to <= begin) {
            self.spells.pop_front();
        }
        let busy: u64 = self
            .spells
            .iter()
            .map(|(from, to)| to.0.min(now.0).saturating_sub(from.0.max(begin.0)))
            .sum();
        let window = now.0 - begin.0;
        Permille((busy * 1000).checked_div(window).unwrap_or(0) as u32)
    }
}

/// A link's queue.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    free_at: Moment,
    pub(crate) busy: Busy,
}

impl Pipe {
    /// Sends something that takes `time` and could begin at `ready` at the earliest; returns when it has arrived.
    pub(crate) fn send(&mut self, ready: Moment, time: Duration) -> Moment {
        let start = self.free_at.max(ready);
        self.free_at = start + time;
        self.busy.note(start, self.free_at);
        self.free_at
    }
}
