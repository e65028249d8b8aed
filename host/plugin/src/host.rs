//! What a component may call: `host.log`, `state`, `labels`. Nothing blocks, everything costs fuel.

use crate::bindings::Level;
use crate::limiter::Limiter;
use crate::log::{LINE_MAX_BYTES, LINES_PER_CALL, LogBook, LogQuota, tame};
use portolan_base::Clock;
use portolan_policy::QuestionKind;
use portolan_ports::{Entry, LogOccasion, PolicyLogLine, PolicyState, StateSpace};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use wasmtime::component::Linker;
use wasmtime::{StoreContextMut, Trap};

/// Fuel for a log line: formatting and writing one takes about a microsecond.
const LOG_FUEL: u64 = 1_000;
/// Fuel for reading a state key or a label: a hash and a lock.
const READ_FUEL: u64 = 300;
/// Fuel for writing a state key.
const WRITE_FUEL: u64 = 600;

/// Who an instance works for: the same for all instances of a version.
pub(crate) struct Tenancy {
    pub(crate) question: QuestionKind,
    pub(crate) version: String,
    pub(crate) space: StateSpace,
    pub(crate) state: Arc<dyn PolicyState>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) log: LogQuota,
    pub(crate) book: Arc<LogBook>,
    pub(crate) during: LogOccasion,
}

/// What a host function sees: the data of one store.
pub(crate) struct GuestState {
    pub(crate) limiter: Limiter,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) request_id: String,
    tenancy: Arc<Tenancy>,
    lines: u32,
    _live: Live,
}

impl GuestState {
    pub(crate) fn new(limiter: Limiter, tenancy: Arc<Tenancy>, live: Live) -> Self {
        let (labels, request_id) = (BTreeMap::new(), String::new());
        Self {
            limiter,
            labels,
            request_id,
            tenancy,
            lines: 0,
            _live: live,
        }
    }

    /// Gives a further call its own ration of log lines.
    pub(crate) fn begin_call(&mut self) {
        self.lines = 0;
    }

    fn log(&mut self, level: Level, message: &str) {
        self.lines = self.lines.saturating_add(1);
        let tenancy = &self.tenancy;
        if self.lines > LINES_PER_CALL {
            return tenancy.log.drop_line();
        }
        let now = tenancy.clock.now();
        let Some(dropped) = tenancy.log.take(now) else {
            return;
        };
        let line = tame(message, LINE_MAX_BYTES);
        let kept = PolicyLogLine {
            at: now,
            level: level.into(),
            question: tenancy.question,
            policy: tenancy.space.policy.clone(),
            version: tenancy.version.clone(),
            request_id: self.request_id.clone(),
            during: tenancy.during,
            dropped,
            text: line.clone(),
        };
        tenancy.book.write(&tenancy.space.scope, kept);
        macro_rules! write {
            ($level:ident) => {
                tracing::$level!(
                    target: "portolan::policy",
                    scope = %tenancy.space.scope,
                    question = %tenancy.question,
                    policy = tenancy.space.policy,
                    version = tenancy.version,
                    request = self.request_id,
                    during = ?tenancy.during,
                    dropped,
                    "{line}"
                )
            };
        }
        match level {
            Level::Debug => write!(debug),
            Level::Info => write!(info),
            Level::Warn => write!(warn),
            Level::Error => write!(error),
        }
    }
}

/// Counters of instances that exist: one version's, and all.
#[derive(Clone, Default)]
pub(crate) struct LiveCounters {
    pub(crate) version: Arc<AtomicU64>,
    pub(crate) all: Arc<AtomicU64>,
}

/// Counts an instance as long as it lives.
pub(crate) struct Live(LiveCounters);

impl Live {
    pub(crate) fn count(counters: &LiveCounters) -> Self {
        counters.version.fetch_add(1, Ordering::Relaxed);
        counters.all.fetch_add(1, Ordering::Relaxed);
        Self(counters.clone())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.version.fetch_sub(1, Ordering::Relaxed);
        self.0.all.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The names of the interfaces a component may import, without version.
pub(crate) const OFFERED: [&str; 4] = [
    "portolan:policy/host",
    "portolan:policy/state",
    "portolan:policy/labels",
    "portolan:policy/types",
];

/// Links the whole of what the host offers; a component takes what it imports.
pub(crate) fn link(linker: &mut Linker<GuestState>) -> wasmtime::Result<()> {
    let mut host = linker.instance("portolan:policy/host@0.1.0")?;
    host.func_wrap("log", |mut store, (level, message): (Level, String)| {
        charge(&mut store, LOG_FUEL + message.len() as u64)?;
        store.data_mut().log(level, &message);
        Ok(())
    })?;

    let mut labels = linker.instance("portolan:policy/labels@0.1.0")?;
    labels.func_wrap("get", |mut store, (key,): (String,)| {
        charge(&mut store, READ_FUEL + key.len() as u64)?;
        let value = store.data().labels.get(&key).cloned();
        charge(&mut store, value.as_ref().map_or(0, String::len) as u64)?;
        Ok((value,))
    })?;

    let mut state = linker.instance("portolan:policy/state@0.1.0")?;
    state.func_wrap("get", |mut store, (key,): (String,)| {
        charge(&mut store, READ_FUEL + key.len() as u64)?;
        let t = &store.data().tenancy;
        Ok((t.state.get(&t.space, &key, t.clock.now()),))
    })?;
    state.func_wrap("set", |mut store, (key, value, ttl_ms): (String, u64, u32)| {
        charge(&mut store, WRITE_FUEL + key.len() as u64)?;
        let t = &store.data().tenancy;
        let ttl = (ttl_ms > 0).then(|| Duration::from_millis(u64::from(ttl_ms)));
        Ok((t.state.set(
            &t.space,
            Entry {
                key: &key,
                value,
                ttl,
            },
            t.clock.now(),
        ),))
    })?;
    state.func_wrap("add", |mut store, (key, delta): (String, i64)| {
        charge(&mut store, WRITE_FUEL + key.len() as u64)?;
        let t = &store.data().tenancy;
        Ok((t.state.add(&t.space, &key, delta, t.clock.now()),))
    })
}

/// Takes fuel for work the host does; a call that cannot pay ends as if it had burnt the fuel itself.
fn charge(store: &mut StoreContextMut<'_, GuestState>, fuel: u64) -> wasmtime::Result<()> {
    match store.get_fuel()?.checked_sub(fuel) {
        Some(left) => store.set_fuel(left),
        None => {
            store.set_fuel(0)?;
            Err(Trap::OutOfFuel.into())
        }
    }
}
