//! How long orders take to arrive, site by site, and who is late.

use parking_lot::Mutex;
use portolan_base::{Moment, Sequence, SiteName};
use portolan_ports::{Reading, Sample};
use std::collections::BTreeMap;
use std::time::Duration;

/// An order that takes longer raises the alarm: a line in the log, and `invalidation_late_total`.
pub(super) const LATE: Duration = Duration::from_millis(100);

/// Upper bounds of the histogram in microseconds: from what a process takes alone to beyond a lease.
const BOUNDS_US: [u64; 12] = [
    250, 500, 1_000, 2_000, 3_000, 5_000, 10_000, 40_000, 100_000, 500_000, 1_000_000, 2_500_000,
];

/// What was measured.
#[derive(Debug, Default)]
pub(super) struct Times(Mutex<Measured>);

#[derive(Debug, Default)]
struct Measured {
    /// From when the order was sent, by its sender's clock, until it came, by this site's.
    received: Histogram,
    /// From then until it was applied.
    applied: Histogram,
    /// By site, from when this site sent an order until that site's word came; one clock.
    confirmed: BTreeMap<SiteName, Histogram>,
    late: BTreeMap<SiteName, u64>,
}

#[derive(Clone, Debug, Default)]
struct Histogram {
    counts: [u64; BOUNDS_US.len()],
    /// Above the last bound.
    beyond: u64,
    sum_us: u64,
}

impl Histogram {
    fn add(&mut self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.sum_us = self.sum_us.saturating_add(us);
        match BOUNDS_US.iter().position(|bound| us <= *bound) {
            Some(bucket) => self.counts[bucket] += 1,
            None => self.beyond += 1,
        }
    }

    fn reading(&self) -> Reading {
        let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6);
        let mut buckets: Vec<_> = bounds.zip(self.counts).collect();
        buckets.push((f64::INFINITY, self.beyond));
        Reading::Times {
            buckets,
            sum: self.sum_us as f64 / 1e6,
        }
    }
}

impl Times {
    /// An order was applied here.
    pub(super) fn applied(&self, sent: Moment, received: Moment, applied: Moment) {
        let mut measured = self.0.lock();
        measured.received.add(received.since(sent));
        measured.applied.add(applied.since(received));
    }

    /// A site said that it had applied an order of this one.
    pub(super) fn confirmed(&self, site: &SiteName, took: Duration) {
        let mut measured = self.0.lock();
        measured.confirmed.entry(site.clone()).or_default().add(took);
        if took > LATE {
            *measured.late.entry(site.clone()).or_default() += 1;
            drop(measured);
            tracing::warn!(%site, took_ms = took.as_millis(), "an invalidation took longer than {LATE:?} to be applied");
        }
    }

    /// The numbers of the metrics page.
    pub(super) fn samples(&self, here: &SiteName, lease: Duration, applied: Sequence) -> Vec<Sample> {
        let measured = self.0.lock();
        let times = |site: &SiteName, stage: &str, of: &Histogram| Sample {
            // The page adds the unit.
            name: "invalidation",
            help: "From when an invalidation was sent until it came (received), from then until it was applied \
                   (applied), and from when this site sent it until a site's word came (confirmed)",
            labels: vec![("site", site.to_string()), ("stage", stage.to_owned())],
            value: of.reading(),
        };
        let late = |(site, count): (&SiteName, &u64)| Sample {
            name: "invalidation_late",
            help: "Invalidations of this site that another took longer than 100 ms to confirm",
            labels: vec![("site", site.to_string())],
            value: Reading::Counter(*count),
        };
        let gauge = |name, help, value| Sample {
            name,
            help,
            labels: Vec::new(),
            value: Reading::Gauge(value),
        };
        let millis = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        let mut samples = vec![
            times(here, "received", &measured.received),
            times(here, "applied", &measured.applied),
            gauge(
                "cache_lease_left_milliseconds",
                "Time for which what is cached may still be used; 0 once the lease has lapsed",
                millis,
            ),
            gauge(
                "control_applied_sequence",
                "Position in the control stream up to which everything is applied",
                applied.0,
            ),
        ];
        samples.extend(
            measured
                .confirmed
                .iter()
                .map(|(site, of)| times(site, "confirmed", of)),
        );
        samples.extend(measured.late.iter().map(late));
        samples
    }
}
