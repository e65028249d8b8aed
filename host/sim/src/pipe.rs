//! A link that sends one thing after the other, and how busy something was lately.

use portolan_base::{Moment, Permille};
use std::collections::VecDeque;
use std::time::Duration;

/// The window of the production link monitor.
const WINDOW: Duration = Duration::from_secs(30);

/// Something that is busy or idle. Asked as often as requests come in, so that it keeps a sum.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    /// Busy from – to, in order and disjoint: what has ended and may lie in the window.
    past: VecDeque<(Moment, Moment)>,
    /// How long those are together, in µs.
    past_us: u64,
    /// What had not ended when it was last looked at.
    ahead: VecDeque<(Moment, Moment)>,
}

impl Busy {
    pub(crate) fn note(&mut self, from: Moment, to: Moment) {
        self.ahead.push_back((from, to));
    }

    /// Share of the last 30 s, or of the time so far when that is less. Time does not go backwards.
    pub(crate) fn share(&mut self, now: Moment) -> Permille {
        let begin = Moment(now.0.saturating_sub(WINDOW.as_micros() as u64));
        while let Some(ended) = self.ahead.pop_front_if(|(_, to)| *to <= now) {
            self.past_us += ended.1.0 - ended.0.0;
            self.past.push_back(ended);
        }
        while let Some(gone) = self.past.pop_front_if(|(_, to)| *to <= begin) {
            self.past_us -= gone.1.0 - gone.0.0;
        }
        let before = self
            .past
            .front()
            .map_or(0, |(from, _)| begin.0.saturating_sub(from.0));
        let running = self
            .ahead
            .front()
            .map_or(0, |(from, _)| now.0.saturating_sub(from.0.max(begin.0)));
        let window = now.0 - begin.0;
        let busy = self.past_us - before + running;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_counts_what_lies_in_the_window() {
        let second = |s: u64| Moment(s * 1_000_000);
        let mut busy = Busy::default();
        busy.note(second(0), second(10));
        busy.note(second(10), second(20));
        busy.note(second(40), second(100));
        let shares: Vec<_> = [0, 5, 20, 30, 35, 50, 60, 90, 115]
            .map(|s| busy.share(second(s)).0)
            .into();
        assert_eq!(shares, [0, 1000, 1000, 666, 500, 333, 666, 1000, 500]);
    }
}
