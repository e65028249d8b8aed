//! How busy a link is: a sample every 500 ms, the mean over 30 s.

use portolan_base::{BitsPerSecond, Bytes, Moment, Permille};
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

/// A sliding window over the bytes a link carried.
#[derive(Clone, Debug)]
pub struct LinkWindow {
    capacity: BitsPerSecond,
    samples: VecDeque<(Moment, Bytes)>,
}

impl LinkWindow {
    /// An empty window of a link that can carry `capacity`.
    pub fn new(capacity: BitsPerSecond) -> Self {
        Self {
            capacity,
            samples: VecDeque::new(),
        }
    }

    /// Notes how many bytes the link has carried since the start.
    pub fn sample(&mut self, now: Moment, carried: Bytes) {
        // A counter that went back belongs to a link that was made anew.
        if self.samples.back().is_some_and(|(_, last)| *last > carried) {
            self.samples.clear();
        }
        self.samples.push_back((now, carried));
        while self.samples.len() > 2 && now.since(self.samples[1].0) >= WINDOW {
            self.samples.pop_front();
        }
    }

    /// Mean utilisation over the window; 0 before there are two samples.
    pub fn busy(&self) -> Permille {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
            return Permille(0);
        };
        let micros = last.0.since(first.0).as_micros();
        if micros == 0 || self.capacity.0 == 0 {
            return Permille(0);
        }
        // Dividing by at least the window keeps the first transfer after a start from reading as a full link.
        let micros = micros.max(WINDOW.as_micros());
        let bits = u128::from((last.1 - first.1).0) * 8;
        let permille = bits * 1_000_000 * 1000 / (micros * u128::from(self.capacity.0));
        Permille(u32::try_from(permille.min(1000)).unwrap_or(1000))
    }
}

/// One link's window and last reading.
#[derive(Clone, Debug)]
pub struct LinkMonitor {
    window: LinkWindow,
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
            reading: LinkReading::default(),
            assumed_rtt,
            down: 0,
        }
    }

    /// Takes a reading of the transport. KV flows towards this site, so what counts is what was received.
    pub fn observe(&mut self, now: Moment, reading: LinkReading) {
        self.window.sample(now, reading.received);
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

    /// Share of chunks that had to be sent again.
    pub fn loss(&self) -> Permille {
        self.reading.loss
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
    fn a_link_that_was_made_anew_starts_over() {
        let mut window = LinkWindow::new(BitsPerSecond(8_000_000));
        window.sample(Moment(0), Bytes(5_000_000));
        window.sample(Moment(500_000), Bytes(100));
        assert_eq!(window.busy(), Permille(0));
    }
}
