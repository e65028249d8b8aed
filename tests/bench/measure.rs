//! Times many runs and keeps the median, the 99th percentile and the rate.

use std::time::{Duration, Instant};

/// What many runs took.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Half of the runs took at most this.
    pub median: Duration,
    /// 99 of 100 runs took at most this.
    pub p99: Duration,
    /// Runs a second, what lies between them included.
    pub per_second: f64,
}

/// Runs `work` so often, each timed for itself, with `before` outside the time.
pub fn each(runs: usize, mut before: impl FnMut(), mut work: impl FnMut()) -> Figures {
    let begun = Instant::now();
    let mut took: Vec<Duration> = (0..runs.max(1))
        .map(|_| {
            before();
            let begun = Instant::now();
            work();
            begun.elapsed()
        })
        .collect();
    let per_second = took.len() as f64 / begun.elapsed().as_secs_f64();
    took.sort();
    Figures {
        median: took[took.len() / 2],
        p99: took[took.len() * 99 / 100],
        per_second,
    }
}

/// Runs `work` so often, one run after another.
pub fn in_a_row(runs: usize, work: impl FnMut()) -> Figures {
    each(runs, || (), work)
}
