//! Times many runs and keeps the median, the 99th percentile and the rate.
//!
//! Not criterion's harness: it gives no 99th percentile, and knows the clock on the wall only, which on a shared machine
//! measures the neighbours. All subjects of a table are measured in one run of one program, so that ratios hold.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// What many runs took.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Half of the runs took at most this.
    pub median: Duration,
    /// 99 of 100 runs took at most this.
    pub p99: Duration,
    /// 99 of 100 runs took at most this much processor time of the calling thread.
    pub p99_cpu: Duration,
    /// Runs for each second of processor time of the whole process: other threads' work for them is included.
    pub per_cpu_second: f64,
}

/// Runs `work` so often, each timed for itself, with `before` outside the time.
pub fn each(runs: usize, mut before: impl FnMut(), mut work: impl FnMut()) -> Figures {
    let mut series = |clock: fn() -> Duration| {
        let timed = (0..runs.max(1)).map(|_| {
            before();
            let begun = clock();
            work();
            clock().saturating_sub(begun)
        });
        let mut took: Vec<Duration> = timed.collect();
        took.sort();
        took
    };
    let origin = process_time();
    let wall = series(wall_time);
    let spent = process_time().saturating_sub(origin).as_secs_f64();
    let cpu = series(thread_time);
    Figures {
        median: wall[wall.len() / 2],
        p99: wall[wall.len() * 99 / 100],
        p99_cpu: cpu[cpu.len() * 99 / 100],
        per_cpu_second: wall.len() as f64 / spent.max(f64::EPSILON),
    }
}

/// Runs `work` so often, one run after another.
pub fn in_a_row(runs: usize, work: impl FnMut()) -> Figures {
    each(runs, || (), work)
}

fn wall_time() -> Duration {
    static ORIGIN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    ORIGIN.elapsed()
}

fn thread_time() -> Duration {
    read(ClockId::ThreadCPUTime)
}

fn process_time() -> Duration {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Resident memory of this process.
pub(crate) fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok())
        .unwrap_or(0)
}
