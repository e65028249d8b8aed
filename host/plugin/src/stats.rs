//! Counts what policies do, for the metrics page.

use crate::engine::Allocation;
use crate::host::LiveCounters;
use parking_lot::Mutex;
use portolan_policy::{Answered, PolicyFault, QuestionKind, Scope};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Upper bounds of the call-time buckets: 1 µs doubled, up to 32 ms, and one for what takes longer. A warm compact call
/// takes 1 µs, the slowest interpreted one is stopped after some 20 ms.
pub(crate) const TIME_BUCKETS: usize = 17;

/// Every fault a call can end in, so that each has its counter from the start.
const FAULTS: [&str; 7] = [
    "trap",
    "out-of-fuel",
    "timed-out",
    "out-of-memory",
    "bad-answer",
    "saturated",
    "unavailable",
];

/// One version's counters.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) calls: AtomicU64,
    pub(crate) fuel: AtomicU64,
    pub(crate) slow_calls: AtomicU64,
    pub(crate) made_ahead: AtomicU64,
    pub(crate) made_inline: AtomicU64,
    pub(crate) memory_high: AtomicU64,
    pub(crate) live: LiveCounters,
    nanos: AtomicU64,
    times: [AtomicU64; TIME_BUCKETS],
    faults: Mutex<BTreeMap<&'static str, u64>>,
}

impl Counters {
    /// Counters at zero; `all` counts the instances of every version.
    pub(crate) fn new(all: &Arc<AtomicU64>) -> Self {
        let live = LiveCounters {
            all: all.clone(),
            ..LiveCounters::default()
        };
        Self {
            live,
            faults: Mutex::new(FAULTS.into_iter().map(|word| (word, 0)).collect()),
            ..Self::default()
        }
    }

    pub(crate) fn count(&self, answered: &Answered, took: Duration) {
        bump(&self.calls);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        bump(&self.times[bucket(nanos)]);
        self.fuel.fetch_add(answered.fuel.unwrap_or(0), Ordering::Relaxed);
        if let Err(fault) = &answered.result {
            *self.faults.lock().entry(PolicyFault::word(fault)).or_default() += 1;
        }
    }
}

/// The bucket of a call: the first whose bound it does not exceed.
fn bucket(nanos: u64) -> usize {
    let micros = nanos.div_ceil(1000).max(1);
    (micros.next_power_of_two().trailing_zeros() as usize).min(TIME_BUCKETS - 1)
}

pub(crate) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Which version a row of the statistics is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VersionKey {
    /// Whose policy.
    pub scope: Scope,
    /// Which question.
    pub question: QuestionKind,
    /// The policy's name.
    pub policy: String,
    /// SHA-256 of the component, hexadecimal.
    pub version: String,
}

/// What one loaded version did since it was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionStats {
    /// Calls answered or failed.
    pub calls: u64,
    /// Fuel all calls used.
    pub fuel: u64,
    /// Calls that ran in the slow lane.
    pub slow_calls: u64,
    /// Nanoseconds all calls took, waiting for the slow lane included.
    pub nanos: u64,
    /// Calls by their time: up to 1, 2, 4 … 32,768 µs, and above.
    pub times: [u64; TIME_BUCKETS],
    /// Log lines written.
    pub log_lines: u64,
    /// Log lines dropped because the policy wrote too many.
    pub log_lines_dropped: u64,
    /// Failed calls by [`PolicyFault::word`].
    pub faults: BTreeMap<&'static str, u64>,
    /// Instances made off the request path.
    pub made_ahead: u64,
    /// Instances a call had to wait for.
    pub made_inline: u64,
    /// Instances that exist at present: ready, in a call, or used and about to be dropped.
    pub live_instances: u64,
    /// Bytes of memory that the largest instance had after a call.
    pub memory_bytes: u64,
    /// Instances that are ready for a call.
    pub ready_instances: u64,
    /// Whether calls are kept off the calling thread.
    pub is_slow: bool,
}

impl VersionStats {
    /// Adds what another did.
    pub(crate) fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.fuel += other.fuel;
        self.slow_calls += other.slow_calls;
        self.nanos = self.nanos.saturating_add(other.nanos);
        for (mine, theirs) in self.times.iter_mut().zip(other.times) {
            *mine += theirs;
        }
        self.log_lines += other.log_lines;
        self.log_lines_dropped += other.log_lines_dropped;
        for (fault, count) in &other.faults {
            *self.faults.entry(fault).or_default() += count;
        }
        self.made_ahead += other.made_ahead;
        self.made_inline += other.made_inline;
        self.live_instances += other.live_instances;
        self.ready_instances += other.ready_instances;
        self.is_slow |= other.is_slow;
    }
}

/// The state of the policy runtime.
#[derive(Clone, Debug)]
pub struct RuntimeStats {
    /// Each version that is loaded at present; loading one twice makes two rows.
    pub versions: Vec<(VersionKey, VersionStats)>,
    /// Instances that exist at present, of unloaded versions with calls in flight too.
    pub live_instances: u64,
    /// Core instances the pool holds, counted by wasmtime; `None` without a pool. Differing from ours for long means
    /// a leak.
    pub pool_core_instances: Option<u64>,
    /// Where instances get their memory.
    pub allocation: Allocation,
    /// Components compiled since the start.
    pub compiled: u64,
    /// Compiled artefacts taken over since the start.
    pub artefacts_used: u64,
    /// Compiled artefacts refused since the start: stale or not ours.
    pub artefacts_refused: u64,
    /// The longest that a tick of the deadline clock came late, in microseconds.
    pub ticker_lateness_us: u64,
}

/// A loaded version that can be looked at.
pub(crate) trait Counted: Send + Sync {
    fn key(&self) -> VersionKey;
    fn counters(&self) -> &Counters;
    fn is_slow(&self) -> bool;
    fn ready(&self) -> usize;
    /// Log lines written and dropped.
    fn log_lines(&self) -> (u64, u64);
}

/// Every loaded version, for as long as it is loaded.
#[derive(Default)]
pub(crate) struct Registry(Mutex<Vec<Weak<dyn Counted>>>);

impl Registry {
    pub(crate) fn add(&self, version: Weak<dyn Counted>) {
        let mut versions = self.0.lock();
        versions.retain(|known| known.strong_count() > 0);
        versions.push(version);
    }

    pub(crate) fn read(&self) -> Vec<(VersionKey, VersionStats)> {
        let mut versions = self.0.lock();
        versions.retain(|known| known.strong_count() > 0);
        versions
            .iter()
            .filter_map(Weak::upgrade)
            .map(|v| (v.key(), stats(&*v)))
            .collect()
    }
}

fn stats(version: &dyn Counted) -> VersionStats {
    let counters = version.counters();
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (log_lines, log_lines_dropped) = version.log_lines();
    VersionStats {
        nanos: read(&counters.nanos),
        times: std::array::from_fn(|i| read(&counters.times[i])),
        log_lines,
        log_lines_dropped,
        calls: read(&counters.calls),
        fuel: read(&counters.fuel),
        slow_calls: read(&counters.slow_calls),
        faults: counters.faults.lock().clone(),
        made_ahead: read(&counters.made_ahead),
        made_inline: read(&counters.made_inline),
        live_instances: read(&counters.live.version),
        memory_bytes: read(&counters.memory_high),
        ready_instances: version.ready() as u64,
        is_slow: version.is_slow(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_counted_in_the_first_bucket_that_holds_it() {
        let buckets = [0, 1_000, 1_001, 2_000, 32_768_000, 32_768_001, u64::MAX].map(bucket);
        assert_eq!(buckets, [0, 0, 1, 1, 15, 16, 16]);
    }

    #[test]
    fn every_fault_has_a_word_in_the_list() {
        let faults = [
            PolicyFault::Trap(String::new()),
            PolicyFault::OutOfFuel(0),
            PolicyFault::TimedOut(0),
            PolicyFault::OutOfMemory(0),
            PolicyFault::BadAnswer(String::new()),
            PolicyFault::Saturated,
            PolicyFault::Unavailable(String::new()),
        ];
        assert_eq!(faults.map(|fault| fault.word()), FAULTS);
    }
}
