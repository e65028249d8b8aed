//! What is measured about a link.

use crate::frame::HolderReport;
use parking_lot::Mutex;
use portolan_base::{BitsPerSecond, Bytes, Permille};
use portolan_ports::LinkReading;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counts of one peer, over both directions of ordering.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) chunks: AtomicU64,
    pub(crate) resent: AtomicU64,
    pub(crate) quarantined: AtomicU64,
    pub(crate) landed: AtomicU64,
    report: Mutex<HolderReport>,
    rtt: Mutex<Rtt>,
}

#[derive(Debug, Default)]
struct Rtt {
    smoothed: Duration,
    min: Option<Duration>,
}

impl Counters {
    /// Takes one measured round trip. Smoothed over about eight samples, as TCP does (RFC 6298).
    pub(crate) fn rtt_sample(&self, sample: Duration) {
        let mut rtt = self.rtt.lock();
        rtt.smoothed = if rtt.min.is_none() {
            sample
        } else {
            (rtt.smoothed * 7 + sample) / 8
        };
        rtt.min = Some(rtt.min.map_or(sample, |min| min.min(sample)));
    }

    /// Takes what the holder says of the link.
    pub(crate) fn heard(&self, report: HolderReport) {
        *self.report.lock() = report;
    }

    /// Bytes a second that the link delivers, as its holder says; none before it knows.
    pub(crate) fn delivery(&self) -> Option<u64> {
        Some(self.report.lock().delivery).filter(|rate| *rate > 0)
    }

    /// The shortest round trip seen: the path without queues.
    pub(crate) fn rtt_min(&self) -> Duration {
        self.rtt.lock().min.unwrap_or_default()
    }

    pub(crate) fn reading(&self, up: bool) -> LinkReading {
        let (chunks, resent) = (self.chunks.load(Relaxed), self.resent.load(Relaxed));
        let loss = resent.saturating_mul(1000).checked_div(chunks).unwrap_or(0);
        let report = *self.report.lock();
        LinkReading {
            segments: (report.segments, report.retransmitted),
            delivery: BitsPerSecond(report.delivery.saturating_mul(8)),
            quarantined: self.quarantined.load(Relaxed),
            landed: Bytes(self.landed.load(Relaxed)),
            rtt: self.rtt.lock().smoothed,
            received: Bytes(self.received.load(Relaxed)),
            sent: Bytes(self.sent.load(Relaxed)),
            loss: Permille(u32::try_from(loss).unwrap_or(1000).min(1000)),
            up,
        }
    }
}
