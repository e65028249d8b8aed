//! A loader to test with, and the questions put to what it loads.

use portolan_base::{Clock, Moment, TenantName};
use portolan_plugin::{ArtefactKey, Compilation, ComponentLoader, Limits, LoaderConfig, MemoryState};
use portolan_policy::{
    Answer, Answered, Call, CostMatrix, CostRow, NameTables, Policy, PolicyFault, Question, QuestionKind,
    RequestRow, RouteMatrix, RouteRow, RoutingDecision, Scope, SiteEntry,
};
use portolan_ports::{Binding, PolicyLoader, PolicyRejection, Reuse};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A clock that stands still unless it is moved.
#[derive(Default)]
pub(crate) struct TestClock(pub(crate) AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> Moment {
        Moment(self.0.load(Ordering::Relaxed))
    }
}

/// Limits for a machine that runs other tests at the same time: generous in waiting, the real ones in fuel and space.
pub(crate) fn patient() -> Limits {
    Limits {
        pool_instances: 64,
        inline_deadline_ms: 2_000,
        slow_deadline_ms: 10_000,
        setup_deadline_ms: 10_000,
        ..Limits::default()
    }
}

pub(crate) fn loader_with(limits: Limits) -> ComponentLoader {
    loader_compiling(Compilation::InProcess, limits)
}

/// A loader that compiles in processes of their own.
pub(crate) fn loader_with_worker(limits: Limits) -> ComponentLoader {
    let worker = env!("CARGO_BIN_EXE_portolan-compile-worker");
    loader_compiling(Compilation::Child(worker.into()), limits)
}

pub(crate) fn loader_compiling(compilation: Compilation, limits: Limits) -> ComponentLoader {
    let config = LoaderConfig {
        limits,
        key: ArtefactKey::from_bytes([7; 32]),
        state: Arc::new(MemoryState::default()),
        compilation,
    };
    ComponentLoader::new(config, Arc::new(TestClock::default())).unwrap()
}

pub(crate) fn loader() -> ComponentLoader {
    loader_with(patient())
}

pub(crate) fn tenant(name: &str) -> Scope {
    Scope::Tenant(TenantName::new(name).unwrap())
}

pub(crate) fn names() -> Arc<NameTables> {
    let site = |name: &str| SiteEntry {
        name: name.into(),
        region: "r".into(),
        jurisdiction: 1,
    };
    Arc::new(NameTables {
        tenant: "t".into(),
        sites: vec![site("a"), site("b"), site("c")],
        jurisdictions: vec!["any".into(), "eu".into()],
        models: vec!["m".into()],
        user_classes: vec!["standard".into()],
    })
}

pub(crate) fn binding(scope: Scope, question: QuestionKind, component: &[u8]) -> Binding {
    use sha2::Digest;
    Binding {
        scope,
        question,
        name: "test".into(),
        version: hex::encode(sha2::Sha256::digest(component)),
        config: String::new(),
        names: names(),
        reuse: Reuse::default(),
    }
}

/// Loads a router for a tenant.
pub(crate) fn load(
    loader: &ComponentLoader,
    tenant_name: &str,
    component: &[u8],
) -> Result<Arc<dyn Policy>, PolicyRejection> {
    loader.load(
        &binding(tenant(tenant_name), QuestionKind::Routing, component),
        component,
        None,
    )
}

/// A routing question: as many routes as costs. `mode` goes into the tenant column, which hostile guests look at.
pub(crate) struct Routing {
    request: Vec<u32>,
    routes: RouteMatrix,
    costs: CostMatrix,
    labels: BTreeMap<String, String>,
}

impl Routing {
    pub(crate) fn new(mode: u32, totals: &[u32]) -> Self {
        let mut routes = RouteMatrix::default();
        let mut costs = CostMatrix::default();
        for total_us in totals {
            routes.push(&RouteRow {
                prefill_us: *total_us,
                ..RouteRow::default()
            });
            costs.push(&CostRow {
                total_us: *total_us,
                ..CostRow::default()
            });
        }
        let request = RequestRow {
            tenant: mode,
            ..RequestRow::default()
        }
        .to_cells()
        .to_vec();
        Self {
            request,
            routes,
            costs,
            labels: BTreeMap::from([("team".into(), "red".into())]),
        }
    }

    pub(crate) fn call(&self) -> Call<'_> {
        let question = Question::Routing {
            request: &self.request,
            routes: self.routes.as_matrix(),
            costs: self.costs.as_matrix(),
        };
        Call {
            question,
            labels: &self.labels,
            request_id: "req-1",
        }
    }

    pub(crate) fn cost_call(&self) -> Call<'_> {
        let question = Question::Cost {
            request: &self.request,
            routes: self.routes.as_matrix(),
        };
        Call {
            question,
            labels: &self.labels,
            request_id: "req-1",
        }
    }

    pub(crate) fn ask(&self, policy: &dyn Policy) -> Answered {
        policy.ask(&self.call())
    }
}

/// Asks for scores and expects the costs back.
pub(crate) fn assert_echo(policy: &dyn Policy) {
    let totals: Vec<u32> = (0..64).map(|i| i * 3 + 1).collect();
    let answered = Routing::new(0, &totals).ask(policy);
    assert_eq!(
        answered.result,
        Ok(Answer::Routing(RoutingDecision::Scores(totals)))
    );
}

/// Makes the guest misbehave and gives the fault.
pub(crate) fn misbehave(policy: &dyn Policy) -> PolicyFault {
    Routing::new(1, &[5; 64]).ask(policy).result.unwrap_err()
}

/// Waits until something that other threads do has happened.
pub(crate) fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happened() {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "never happened: {what}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Processor time this thread used so far.
pub(crate) fn thread_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}
