//! Counts what policies do, for the metrics page.

use crate::engine::Allocation;
use crate::host::LiveCounters;
use parking_lot::Mutex;
use portolan_policy::{Answered, PolicyFault, QuestionKind, Scope};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// One version's counters.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) calls: AtomicU64,
    pub(crate) fuel: AtomicU64,
    pub(crate) slow_calls: AtomicU64,
    pub(crate) made_ahead: AtomicU64,
    pub(crate) made_inline: AtomicU64,
    pub(crate) live: LiveCounters,
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
            ..Self::default()
        }
    }

    pub(crate) fn count(&self, answered: &Answered) {
        bump(&self.calls);
        self.fuel.fetch_add(answered.fuel.unwrap_or(0), Ordering::Relaxed);
        if let Err(fault) = &answered.result {
            *self.faults.lock().entry(PolicyFault::word(fault)).or_default() += 1;
        }
    }
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
    /// Failed calls by [`PolicyFault::word`].
    pub faults: BTreeMap<&'static str, u64>,
    /// Instances made off the request path.
    pub made_ahead: u64,
    /// Instances a call had to wait for.
    pub made_inline: u64,
    /// Instances that exist at present.
    pub live_instances: u64,
    /// Whether calls are kept off the calling thread.
    pub is_slow: bool,
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
    VersionStats {
        calls: read(&counters.calls),
        fuel: read(&counters.fuel),
        slow_calls: read(&counters.slow_calls),
        faults: counters.faults.lock().clone(),
        made_ahead: read(&counters.made_ahead),
        made_inline: read(&counters.made_inline),
        live_instances: read(&counters.live.version),
        is_slow: version.is_slow(),
    }
}
