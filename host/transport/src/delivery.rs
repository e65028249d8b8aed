//! How fast a link delivers, told by acknowledgements: bytes acknowledged in a tenth of a second in which something was
//! always under way, over that time. The largest of the last ten seconds counts, since a link only looks slower while
//! nothing much is sent. (BBR's delivery rate, draft-cheng-iccrg-delivery-rate-estimation, over longer samples: our
//! chunks are large, and their acknowledgements come in bunches.)

use std::time::Duration;
use tokio::time::Instant;

/// Half of the time a sample counts.
const HALF_WINDOW: Duration = Duration::from_secs(5);

/// A sample: several chunks, so that a bunch of acknowledgements does not look like a fast link.
const SAMPLE: Duration = Duration::from_millis(100);

/// The shortest sample that counts, of a transfer that ended early.
const SAMPLE_MIN: Duration = Duration::from_millis(10);

/// Bytes acknowledged since a moment from which on something was under way.
#[derive(Clone, Copy, Debug)]
struct Interval {
    start: Instant,
    bytes: u64,
}

/// Estimates one peer's delivery rate.
#[derive(Debug)]
pub(crate) struct Delivery {
    interval: Option<Interval>,
    last_ack: Option<Instant>,
    /// Best of the current half window and of the one before.
    best: [u64; 2],
    since: Option<Instant>,
}

impl Delivery {
    pub(crate) const fn new() -> Self {
        Self {
            interval: None,
            last_ack: None,
            best: [0; 2],
            since: None,
        }
    }

    /// A chunk that left at `sent` and took so many bytes on the wire is acknowledged.
    pub(crate) fn acked(&mut self, sent: Instant, bytes: u64, now: Instant) {
        let before = self.last_ack.replace(now);
        // Sent after the last acknowledgement: the link was empty in between, and that time says nothing.
        if before.is_some_and(|before| sent > before) {
            self.close(before.unwrap_or(now), SAMPLE_MIN);
            self.interval = None;
        }
        let interval = self.interval.get_or_insert(Interval {
            start: sent,
            bytes: 0,
        });
        interval.bytes += bytes;
        if now.saturating_duration_since(interval.start) >= SAMPLE {
            self.close(now, SAMPLE);
            self.interval = Some(Interval { start: now, bytes: 0 });
        }
    }

    /// Takes the interval up to `end` as a sample, if it is long enough.
    fn close(&mut self, end: Instant, least: Duration) {
        let Some(interval) = self.interval else { return };
        let time = end.saturating_duration_since(interval.start);
        if interval.bytes == 0 || time < least {
            return;
        }
        let rate = u128::from(interval.bytes) * 1_000_000 / time.as_micros().max(1);
        let since = *self.since.get_or_insert(end);
        if end.saturating_duration_since(since) >= HALF_WINDOW {
            self.best = [0, self.best[0]];
            self.since = Some(end);
        }
        self.best[0] = self.best[0].max(u64::try_from(rate).unwrap_or(u64::MAX));
    }

    /// Bytes a second; none before the first sample. Stays what it was while nothing is sent.
    pub(crate) fn rate(&self) -> Option<u64> {
        Some(self.best[0].max(self.best[1])).filter(|rate| *rate > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_what_the_link_delivers_and_not_what_is_offered() {
        let (mut delivery, start) = (Delivery::new(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!(delivery.rate(), None);
        // Ten chunks of 1 MB leave at once; one is acknowledged every 100 ms: 10 MB/s.
        for i in 1..=10 {
            delivery.acked(start, 1_000_000, at(100 * i));
        }
        assert_eq!(delivery.rate(), Some(10_000_000));
        // Small chunks on an idle link say nothing new; after ten seconds of a slower link its rate counts.
        for second in 2..=16 {
            delivery.acked(at(1000 * second), 1_000_000, at(1000 * second + 500));
        }
        assert_eq!(delivery.rate(), Some(2_000_000));
    }

    #[test]
    fn acknowledgements_in_a_bunch_are_no_fast_link() {
        let (mut delivery, start) = (Delivery::new(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        // 50 kB every 10 ms, acknowledged ten at a time: 5 MB/s.
        for bunch in 0..20u64 {
            for i in 0..10 {
                delivery.acked(at(bunch * 100 + i * 10), 50_000, at(bunch * 100 + 110));
            }
        }
        let rate = delivery.rate().unwrap();
        assert!((4_000_000..6_000_000).contains(&rate), "{rate}");
    }

    #[test]
    fn a_short_transfer_counts_and_a_moment_does_not() {
        let (mut delivery, start) = (Delivery::new(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        delivery.acked(at(0), 1_000, at(1));
        delivery.acked(at(500), 100_000, at(520));
        assert_eq!(delivery.rate(), None, "one millisecond is no sample");
        delivery.acked(at(900), 1, at(901));
        assert_eq!(delivery.rate(), Some(5_000_000));
    }
}
