//! How busy a link is: a sample every 500 ms, the mean over 30 s.

use portolan_base::{BitsPerSecond, Bytes, Moment, Permille};
use portolan_decide::LinkFigures;
use portolan_ports::LinkReading;
use std::collections::VecDeque;
use std::time::Duration;

/// How often a link is sampled.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Over how long utilisation is averaged: long enough not to follow a single transfer, short enough to act within a
/// minute.
pub const WINDOW: Duration = Duration::from_secs(30);

/// Utilisation at which a link counts as congested.
pub const CONGESTION_MARK: Permille = Permille(700);

/// A counter's values over the window.
#[derive(Clone, Debug, Default)]
struct Samples {
    kept: VecDeque<(Moment, u64)>,
}

impl Samples {
    fn push(&mut self, now: Moment, value: u64) {
        // A counter that went back belongs to a link that was made anew.
        if self.kept.back().is_some_and(|(_, last)| *last > value) {
            self.kept.clear();
        }
        self.kept.push_back((now, value));
        while self.kept.len() > 2 && now.since(self.kept[1].0) >= WINDOW {
            self.kept.pop_front();
        }
    }

    /// How much was added within the window, and in what time.
    fn added(&self) -> (u64, Duration) {
        match (self.kept.front(), self.kept.back()) {
            (Some(first), Some(last)) => (last.1 - first.1, last.0.since(first.0)),
            _ => (0, Duration::ZERO),
        }
    }

    /// The same for the last sample alone.
    fn added_last(&self) -> (u64, Duration) {
        match self.kept.len() {
            0 | 1 => (0, Duration::ZERO),
            n => {
                let (from, to) = (self.kept[n - 2], self.kept[n - 1]);
                (to.1 - from.1, to.0.since(from.0))
            }
        }
    }
}

/// A sliding window over the bytes a link carried.
#[derive(Clone, Debug)]
pub struct LinkWindow {
    capacity: BitsPerSecond,
    carried: Samples,
}

impl LinkWindow {
    /// An empty window of a link that can carry `capacity`.
    pub fn new(capacity: BitsPerSecond) -> Self {
        Self {
            capacity,
            carried: Samples::default(),
        }
    }

    /// Notes how many bytes the link has carried since the start.
    pub fn sample(&mut self, now: Moment, carried: Bytes) {
        self.carried.push(now, carried.0);
    }

    /// Mean utilisation over the window; 0 before there are two samples.
    pub fn busy(&self) -> Permille {
        let (bytes, time) = self.carried.added();
        if time.is_zero() || self.capacity.0 == 0 {
            return Permille(0);
        }
        // Dividing by at least the window keeps the first transfer after a start from reading as a full link.
        let micros = time.max(WINDOW).as_micros();
        let bits = u128::from(bytes) * 8;
        let permille = bits * 1_000_000 * 1000 / (micros * u128::from(self.capacity.0));
        Permille(u32::try_from(permille.min(1000)).unwrap_or(1000))
    }

    /// What the link carried in the last sample.
    pub fn throughput(&self) -> BitsPerSecond {
        let (bytes, time) = self.carried.added_last();
        let bits = u128::from(bytes) * 8 * 1_000_000;
        let rate = bits.checked_div(time.as_micros()).unwrap_or(0);
        BitsPerSecond(u64::try_from(rate).unwrap_or(u64::MAX))
    }
}

/// What a link has to be like for KV to cross it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFloor {
    /// What it delivers at least, where that was measured.
    pub least: Option<BitsPerSecond>,
    /// Its round trip at most.
    pub longest: Option<Duration>,
}

impl LinkFloor {
    /// Whether a link that delivers so much, 0 where nothing was measured, with such a round trip will do.
    pub fn admits(&self, delivery: BitsPerSecond, rtt: Duration) -> bool {
        let slow = self.least.is_some_and(|least| delivery.0 > 0 && delivery < least);
        let far = self.longest.is_some_and(|longest| rtt > longest);
        !slow && !far
    }
}

/// One link's windows and last reading.
#[derive(Clone, Debug)]
pub struct LinkMonitor {
    window: LinkWindow,
    segments: Samples,
    retransmitted: Samples,
    reading: LinkReading,
    assumed_rtt: Duration,
    /// Readings in a row without a connection.
    down: u32,
}

/// Readings without a connection that make a link count as down. One may fall into the moment in which a connection
/// is being made, at start-up or after a break; an order waits for that, and finds out itself if it is in vain.
const DOWN_READINGS: u32 = 2;

impl LinkMonitor {
    /// A link nothing was measured on; `assumed_rtt` stands in until something is.
    pub fn new(capacity: BitsPerSecond, assumed_rtt: Duration) -> Self {
        Self {
            window: LinkWindow::new(capacity),
            segments: Samples::default(),
            retransmitted: Samples::default(),
            reading: LinkReading::default(),
            assumed_rtt,
            down: 0,
        }
    }

    /// Takes a reading of the transport. KV flows towards this site, so what counts is what was received.
    pub fn observe(&mut self, now: Moment, reading: LinkReading) {
        self.window.sample(now, reading.received);
        let (sent, again) = reading.segments;
        self.segments.push(now, sent);
        self.retransmitted.push(now, again);
        self.down = if reading.up {
            0
        } else {
            self.down.saturating_add(1)
        };
        self.reading = reading;
    }

    /// Whether anything can be sent.
    pub fn is_up(&self) -> bool {
        self.down < DOWN_READINGS
    }

    /// Measured round-trip time, or the assumed one.
    pub fn rtt(&self) -> Duration {
        if self.reading.rtt.is_zero() {
            self.assumed_rtt
        } else {
            self.reading.rtt
        }
    }

    /// Mean utilisation.
    pub fn busy(&self) -> Permille {
        self.window.busy()
    }

    /// Loss, from whichever of two sources sees more: chunks that had to be sent again, since the start; TCP segments
    /// that had to be, within the window.
    pub fn loss(&self) -> Permille {
        self.reading.loss.max(self.retransmits())
    }

    /// Share of TCP segments that had to be sent again, within the window.
    pub fn retransmits(&self) -> Permille {
        let share = self.retransmitted.added().0.saturating_mul(1000);
        let share = share.checked_div(self.segments.added().0).unwrap_or(0);
        Permille(u32::try_from(share.min(1000)).unwrap_or(1000))
    }

    /// What was measured besides utilisation, round trip and loss.
    pub fn figures(&self) -> LinkFigures {
        LinkFigures {
            throughput: self.window.throughput(),
            delivery: self.reading.delivery,
            retransmits: self.retransmits(),
            // What was ordered is not the link's to know.
            backlog: Bytes(0),
            quarantined: self.reading.quarantined,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilisation_is_the_mean_over_the_window() {
        let mut window = LinkWindow::new(BitsPerSecond(8_000_000));
        let mut carried = Bytes(0);
        for step in 0..=120u64 {
            window.sample(Moment(step * 500_000), carried);
            // A full link is 500 kB in each interval; carry three quarters of it.
            carried += Bytes(375_000);
        }
        assert_eq!(window.busy(), Permille(750));
        for step in 121..=150u64 {
            window.sample(Moment(step * 500_000), carried);
        }
        assert!(
            window.busy() < Permille(400),
            "half the window was idle: {:?}",
            window.busy()
        );
    }

    #[test]
    fn one_burst_right_after_the_start_is_not_congestion() {
        let mut window = LinkWindow::new(BitsPerSecond(8_000_000));
        window.sample(Moment(0), Bytes(0));
        window.sample(Moment(500_000), Bytes(500_000));
        assert!(window.busy() < CONGESTION_MARK);
    }

    #[test]
    fn a_link_below_its_floor_does_not_do() {
        let floor = LinkFloor {
            least: Some(BitsPerSecond(40)),
            longest: Some(Duration::from_millis(10)),
        };
        let near = Duration::from_millis(10);
        assert!(floor.admits(BitsPerSecond(40), near));
        assert!(floor.admits(BitsPerSecond(0), near), "nothing was measured");
        assert!(!floor.admits(BitsPerSecond(39), near));
        assert!(!floor.admits(BitsPerSecond(40), Duration::from_millis(11)));
        assert!(LinkFloor::default().admits(BitsPerSecond(1), Duration::MAX));
    }

    #[test]
    fn a_link_is_down_when_two_readings_say_so() {
        let mut monitor = LinkMonitor::new(BitsPerSecond(1), Duration::ZERO);
        let reading = |up| LinkReading {
            up,
            ..LinkReading::default()
        };
        for (up, expected) in [
            (false, true),
            (true, true),
            (false, true),
            (false, false),
            (false, false),
            (true, true),
        ] {
            monitor.observe(Moment(0), reading(up));
            assert_eq!(monitor.is_up(), expected);
        }
    }

    #[test]
    fn loss_is_what_the_kernel_or_the_checksums_see_within_the_window() {
        let mut monitor = LinkMonitor::new(BitsPerSecond(8_000_000), Duration::ZERO);
        // Injected figures, as a probe would read them: 2 % lost for 30 s, then nothing.
        let (mut sent, mut again) = (0, 0);
        for step in 0..=120u64 {
            let reading = LinkReading {
                segments: (sent, again),
                received: Bytes(step * 50_000),
                delivery: BitsPerSecond(7_000_000),
                up: true,
                ..LinkReading::default()
            };
            monitor.observe(Moment(step * 500_000), reading);
            sent += 1000;
            again += if step < 60 { 20 } else { 0 };
            if step == 60 {
                assert_eq!(
                    (monitor.retransmits(), monitor.loss()),
                    (Permille(20), Permille(20))
                );
            }
        }
        assert_eq!(
            monitor.retransmits(),
            Permille(0),
            "the loss lies before the window"
        );
        let figures = monitor.figures();
        assert_eq!(figures.throughput, BitsPerSecond(800_000));
        assert_eq!(figures.delivery, BitsPerSecond(7_000_000));
        let damaged = LinkReading {
            loss: Permille(5),
            ..LinkReading::default()
        };
        monitor.observe(Moment(61_000_000), damaged);
        assert_eq!(monitor.loss(), Permille(5));
    }

    #[test]
    fn a_link_that_was_made_anew_starts_over() {
        let mut window = LinkWindow::new(BitsPerSecond(8_000_000));
        window.sample(Moment(0), Bytes(5_000_000));
        window.sample(Moment(500_000), Bytes(100));
        assert_eq!(window.busy(), Permille(0));
    }
}
