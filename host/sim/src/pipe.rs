//! A link that sends one thing after the other, and how busy something was lately.

use crate::flight::Ticket;
use crate::scenario::SimLink;
use portolan_base::{BitsPerSecond, Bytes, Moment, Permille};
use std::collections::VecDeque;
use std::time::Duration;

/// The window of the production link monitor.
const WINDOW: Duration = Duration::from_secs(30);

/// Readings of a counter over the last 30 s, taken as often as the production monitor takes them.
#[derive(Debug, Default)]
pub(crate) struct Window {
    kept: VecDeque<(Moment, u64)>,
}

impl Window {
    pub(crate) fn read(&mut self, now: Moment, counter: u64) {
        self.kept.push_back((now, counter));
        while self.kept.len() > 2 && now.since(self.kept[1].0) >= WINDOW {
            self.kept.pop_front();
        }
    }

    /// How much of the window the counted microseconds fill. Divided by at least the window, as production does, so
    /// that the first transfer does not read as a full link.
    pub(crate) fn share(&self) -> Permille {
        let (Some(first), Some(last)) = (self.kept.front(), self.kept.back()) else {
            return Permille(0);
        };
        let time = last.0.since(first.0).max(WINDOW).as_micros() as u64;
        Permille(((last.1 - first.1) * 1000 / time).min(1000) as u32)
    }
}

/// Counts the time something was busy.
#[derive(Debug, Default)]
pub(crate) struct BusyTime {
    ended_us: u64,
    since: Option<Moment>,
}

impl BusyTime {
    pub(crate) fn begin(&mut self, at: Moment) {
        self.since.get_or_insert(at);
    }

    pub(crate) fn end(&mut self, at: Moment) {
        if let Some(since) = self.since.take() {
            self.ended_us += at.0.saturating_sub(since.0);
        }
    }

    /// Busy microseconds up to now.
    pub(crate) fn until(&self, now: Moment) -> u64 {
        self.ended_us + self.since.map_or(0, |since| now.0.saturating_sub(since.0))
    }
}

/// Something on its way.
#[derive(Clone, Copy, Debug)]
struct Parcel {
    ticket: Ticket,
    bits: u64,
}

/// A link's queue. What it carries may change while it sends.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) link: SimLink,
    /// Permille lost, as the scenario says.
    pub(crate) loss: Permille,
    pub(crate) up: bool,
    queue: VecDeque<Parcel>,
    backlog_bits: u64,
    /// KV that was ordered and has not been handed over yet.
    ordered: Bytes,
    /// When the first of the queue had so much left.
    counted: Moment,
    idle_since: Moment,
    busy: BusyTime,
    window: Window,
    /// Counts plans for the first of the queue, so that an overtaken one is told.
    pub(crate) plan: u32,
}

impl Pipe {
    pub(crate) fn new(link: SimLink) -> Self {
        Self {
            link,
            loss: Permille(0),
            up: true,
            queue: VecDeque::new(),
            backlog_bits: 0,
            ordered: Bytes(0),
            counted: Moment(0),
            idle_since: Moment(0),
            busy: BusyTime::default(),
            window: Window::default(),
            plan: 0,
        }
    }

    /// What gets through: losses are sent again.
    fn rate(&self) -> BitsPerSecond {
        BitsPerSecond(self.link.capacity.0 / 1000 * u64::from(1000u32.saturating_sub(self.loss.0)))
    }

    /// Takes something that could begin at `ready` at the earliest, which may lie in the past. Returns when the first
    /// of the queue is through, where that has to be planned.
    pub(crate) fn send(&mut self, now: Moment, ready: Moment, size: Bytes, ticket: Ticket) -> Option<Moment> {
        let mut bits = size.0.saturating_mul(8);
        if self.queue.is_empty() {
            let begun = self.idle_since.max(ready).min(now);
            self.busy.begin(begun);
            bits = bits.saturating_sub(self.bits_in(now.since(begun)));
            self.counted = now;
        }
        self.queue.push_back(Parcel { ticket, bits });
        self.backlog_bits += bits;
        (self.queue.len() == 1).then(|| self.next(now))
    }

    fn bits_in(&self, time: Duration) -> u64 {
        let bits = u128::from(self.rate().0) * time.as_micros() / 1_000_000;
        u64::try_from(bits).unwrap_or(u64::MAX)
    }

    /// Takes the first off the queue; what is next, and when that will be through.
    pub(crate) fn sent(&mut self, now: Moment) -> (Option<Ticket>, Option<Moment>) {
        let first = self.queue.pop_front();
        self.backlog_bits -= first.map_or(0, |parcel| parcel.bits);
        self.counted = now;
        if self.queue.is_empty() {
            self.busy.end(now);
            self.idle_since = now;
            return (first.map(|parcel| parcel.ticket), None);
        }
        (first.map(|parcel| parcel.ticket), Some(self.next(now)))
    }

    /// Makes a change; when the first of the queue is through from then on.
    pub(crate) fn change(&mut self, now: Moment, change: impl FnOnce(&mut Self)) -> Option<Moment> {
        self.count(now);
        change(self);
        (!self.queue.is_empty()).then(|| self.next(now))
    }

    /// Drops everything that is on its way.
    pub(crate) fn drop_all(&mut self, now: Moment) -> Vec<Ticket> {
        self.backlog_bits = 0;
        self.plan += 1;
        self.busy.end(now);
        self.idle_since = now;
        self.queue.drain(..).map(|parcel| parcel.ticket).collect()
    }

    /// Takes what was sent meanwhile off the first of the queue.
    fn count(&mut self, now: Moment) {
        let done = self.bits_in(now.since(self.counted));
        if let Some(first) = self.queue.front_mut() {
            let done = done.min(first.bits);
            first.bits -= done;
            self.backlog_bits -= done;
        }
        self.counted = now;
    }

    fn next(&mut self, now: Moment) -> Moment {
        self.plan += 1;
        let bits = self.queue.front().map_or(0, |parcel| parcel.bits);
        now + Bytes(bits.div_ceil(8)).time_at(self.rate())
    }

    /// A reading, as the production monitor takes it.
    pub(crate) fn sample(&mut self, now: Moment) {
        self.count(now);
        self.window.read(now, self.busy.until(now));
    }

    pub(crate) fn busy(&self) -> Permille {
        self.window.share()
    }

    /// What was ordered and has not arrived.
    pub(crate) fn backlog(&self) -> Bytes {
        Bytes(self.ordered.0 + self.backlog_bits / 8)
    }

    /// KV was ordered that is yet to be computed.
    pub(crate) fn order(&mut self, size: Bytes) {
        self.ordered += size;
    }

    /// It is computed, or will not come.
    pub(crate) fn settle(&mut self, size: Bytes) {
        self.ordered = self.ordered - size;
    }

    /// What it delivers when it is busy.
    pub(crate) fn delivery(&self) -> BitsPerSecond {
        self.rate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn second(s: u64) -> Moment {
        Moment(s * 1_000_000)
    }

    fn pipe() -> Pipe {
        Pipe::new(SimLink {
            capacity: BitsPerSecond(8_000_000),
            rtt: Duration::ZERO,
            price_micros_per_gib: 0,
        })
    }

    const fn ticket(slot: u32) -> Ticket {
        Ticket { slot, epoch: 0 }
    }

    #[test]
    fn busy_counts_what_lies_in_the_window() {
        let (mut window, mut busy) = (Window::default(), BusyTime::default());
        let mut shares = Vec::new();
        for s in 0..=115u64 {
            match s {
                0 | 40 => busy.begin(second(s)),
                20 | 100 => busy.end(second(s)),
                _ => {}
            }
            window.read(second(s), busy.until(second(s)));
            if [0, 5, 20, 30, 35, 50, 60, 90, 115].contains(&s) {
                shares.push(window.share().0);
            }
        }
        // Before the window is full, what was busy counts as a part of it.
        assert_eq!(shares, [0, 166, 666, 666, 500, 333, 666, 1000, 500]);
    }

    #[test]
    fn one_thing_after_the_other_and_a_slower_link_from_the_middle_on() {
        let mut pipe = pipe();
        // A megabyte takes a second.
        assert_eq!(
            pipe.send(second(1), second(1), Bytes(1_000_000), ticket(0)),
            Some(second(2))
        );
        assert_eq!(pipe.send(second(1), second(1), Bytes(2_000_000), ticket(1)), None);
        assert_eq!(pipe.backlog(), Bytes(3_000_000));
        assert_eq!(pipe.sent(second(2)), (Some(ticket(0)), Some(second(4))));
        let halved = pipe.change(second(3), |pipe| pipe.link.capacity = BitsPerSecond(4_000_000));
        assert_eq!((halved, pipe.backlog()), (Some(second(5)), Bytes(1_000_000)));
        assert_eq!(pipe.sent(second(5)), (Some(ticket(1)), None));
        // What could have begun while the link was idle has.
        assert_eq!(
            pipe.send(second(10), second(9), Bytes(1_000_000), ticket(2)),
            Some(second(11))
        );
        assert_eq!(pipe.drop_all(second(10)), [ticket(2)]);
        assert_eq!(pipe.backlog(), Bytes(0));
    }
}
