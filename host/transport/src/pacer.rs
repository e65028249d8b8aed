//! A link's bandwidth budget for KV, so that requests share the link with it: a token bucket.

use parking_lot::Mutex;
use portolan_base::BitsPerSecond;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// How far ahead of its rate the bucket may run after a pause: long enough that timers of a millisecond do not cost
/// throughput, short enough that a request behind a burst waits no longer than a frame of video.
const BURST: Duration = Duration::from_millis(20);

/// Paces what leaves for one peer, all its lanes together.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// Bytes a second; 0: as fast as the link goes.
    rate: AtomicU64,
    /// When everything sent so far will have left at the budgeted rate.
    paid_until: Mutex<Instant>,
}

impl Pacer {
    pub(crate) fn new(budget: Option<BitsPerSecond>) -> Self {
        Self {
            rate: AtomicU64::new(bytes_a_second(budget)),
            paid_until: Mutex::new(Instant::now()),
        }
    }

    /// Changes the budget, for sessions under way too.
    pub(crate) fn set(&self, budget: Option<BitsPerSecond>) {
        self.rate.store(bytes_a_second(budget), Ordering::Relaxed);
    }

    /// How long to wait before anything more may be sent; none: send.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        self.rate()?;
        let wait = self.paid_until.lock().saturating_duration_since(now);
        wait.checked_sub(BURST).filter(|wait| !wait.is_zero())
    }

    /// Notes what is sent. A whole chunk may be sent when anything may, and is paid for afterwards.
    pub(crate) fn spend(&self, now: Instant, bytes: u64) {
        let Some(rate) = self.rate() else { return };
        let cost = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let mut paid = self.paid_until.lock();
        *paid = (*paid).max(now) + cost;
    }

    /// The budget in bytes a second.
    pub(crate) fn rate(&self) -> Option<u64> {
        match self.rate.load(Ordering::Relaxed) {
            0 => None,
            rate => Some(rate),
        }
    }
}

fn bytes_a_second(budget: Option<BitsPerSecond>) -> u64 {
    budget.map_or(0, |rate| (rate.0 / 8).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends chunks whenever allowed for `time`; says how many bytes went.
    fn sent(pacer: &Pacer, from: Instant, time: Duration, chunk: u64) -> u64 {
        let (mut now, mut sent) = (from, 0);
        while now < from + time {
            match pacer.wait(now) {
                Some(wait) => now += wait,
                None => {
                    pacer.spend(now, chunk);
                    sent += chunk;
                }
            }
        }
        sent
    }

    #[test]
    fn the_rate_is_kept_to_within_a_burst_whatever_the_chunk() {
        let rate = 10_000_000;
        for chunk in [1_000, 64 << 10, 1 << 20] {
            let pacer = Pacer::new(Some(BitsPerSecond(rate * 8)));
            let now = Instant::now();
            let sent = sent(&pacer, now, Duration::from_secs(10), chunk);
            let most = rate * 10 + rate / 50 + chunk;
            assert!(
                (rate * 10 - chunk..=most).contains(&sent),
                "{sent} in chunks of {chunk}"
            );
        }
    }

    #[test]
    fn a_pause_earns_no_more_than_a_burst() {
        let pacer = Pacer::new(Some(BitsPerSecond(8_000_000)));
        let later = Instant::now() + Duration::from_secs(60);
        let sent = sent(&pacer, later, Duration::from_millis(100), 1000);
        assert!(sent <= 1_000_000 * 12 / 100 + 2000, "{sent}");
    }

    #[test]
    fn a_budget_changes_under_way() {
        let pacer = Pacer::new(Some(BitsPerSecond(80_000_000)));
        let sent_in_a_second = |from| sent(&pacer, from, Duration::from_secs(1), 1000);
        let now = Instant::now();
        assert!(sent_in_a_second(now) >= 10_000_000);
        pacer.set(Some(BitsPerSecond(8_000_000)));
        assert!(sent_in_a_second(now + Duration::from_secs(2)) <= 1_050_000);
        pacer.set(None);
        assert_eq!(pacer.wait(now), None);
    }

    #[test]
    fn no_budget_is_no_wait() {
        let pacer = Pacer::new(None);
        pacer.spend(Instant::now(), u64::MAX);
        assert_eq!(pacer.wait(Instant::now()), None);
    }
}
