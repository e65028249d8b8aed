//! One instance of a component: made, configured, asked, thrown away.
//!
//! Every instance has a store of its own. A trap poisons the whole store, and a tenant's leftovers must reach nobody,
//! so an instance answers a single call, unless its binding keeps it warm; making the next one ahead of demand keeps
//! that cheap.

use crate::answer::{self, Checked};
use crate::bindings::exports::portolan::policy as exports;
use crate::fault;
use crate::host::{GuestState, Live, LiveCounters, OFFERED, Tenancy};
use crate::limiter::Limiter;
use crate::limits::{Limits, SizeClass};
use crate::question::{self, Setup};
use crate::ticker::Ticker;
use portolan_policy::{Answer, Call, PolicyFault, Question, QuestionKind};
use std::sync::Arc;
use wasmtime::component::{Component, Instance, InstancePre, Linker};
use wasmtime::{Engine, Store};

/// Component-model handles an instance may hold. The contract has no resources, so any is too many; a few leave room
/// for what toolchains do inside a component.
const HANDLES: usize = 256;

/// Calls that an instance kept warm answers: often enough that making the next one is a thousandth of the cost, seldom
/// enough that what a policy leaves behind goes within a second of heavy traffic.
const CALLS_OF_A_WARM_INSTANCE: u32 = 1_000;

/// What a stretch of guest code may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) fuel: u64,
    pub(crate) deadline_ms: u64,
    /// Memory it may grow to, below what its class may have. One that wants more is stopped, and can be tried again
    /// on a thread where more is allowed.
    pub(crate) memory_bytes: usize,
}

/// A compiled and linked component, from which instances are made.
pub(crate) struct Blueprint {
    pre: InstancePre<GuestState>,
    lifecycle: exports::lifecycle::GuestIndices,
    question: Indices,
    class: SizeClass,
    limits: Limits,
    reads_request: bool,
    ticker: Arc<Ticker>,
}

enum Indices {
    Residency(exports::residency_policy::GuestIndices),
    Cost(exports::cost_policy::GuestIndices),
    Routing(exports::routing_policy::GuestIndices),
    Invalidation(exports::invalidation_policy::GuestIndices),
}

enum Export {
    Residency(exports::residency_policy::Guest),
    Cost(exports::cost_policy::Guest),
    Routing(exports::routing_policy::Guest),
    Invalidation(exports::invalidation_policy::Guest),
}

/// Why no instance could be made.
#[derive(Debug)]
pub(crate) enum SetupFault {
    /// The component cannot be instantiated, whatever the configuration.
    Start(PolicyFault),
    /// `configure` did not return.
    Configure(PolicyFault),
    /// It wants more memory than it may take where it was to be made.
    NotHere,
    /// `configure` returned an error: its text.
    Refused(String),
}

impl SetupFault {
    /// Whether the pool had no place for it.
    pub(crate) fn is_for_want_of_room(&self) -> bool {
        matches!(self, Self::Start(PolicyFault::Saturated))
    }

    pub(crate) fn into_fault(self) -> PolicyFault {
        match self {
            Self::Start(fault) | Self::Configure(fault) => fault,
            Self::NotHere => PolicyFault::Unavailable("it takes too much memory for this thread".into()),
            Self::Refused(why) => PolicyFault::Unavailable(format!("configure refused: {why}")),
        }
    }
}

/// An instance that is ready for its call.
pub(crate) struct Guest {
    store: Store<GuestState>,
    export: Export,
    reads_request: bool,
    ticker: Arc<Ticker>,
    /// Calls it was asked.
    calls: u32,
    /// Bytes of memory it had when it was ready.
    memory_at_start: usize,
}

/// An instance and what making it cost.
pub(crate) struct Made {
    pub(crate) guest: Guest,
    pub(crate) fuel: u64,
}

/// A call's result and what it cost.
pub(crate) struct Told {
    pub(crate) result: Result<Answer, PolicyFault>,
    pub(crate) fuel: u64,
    pub(crate) memory: usize,
    /// It wanted more memory than it may take where it ran.
    pub(crate) stopped_here: bool,
}

impl Blueprint {
    /// Links a component that answers `question`.
    pub(crate) fn new(
        (linker, ticker): (&Linker<GuestState>, &Arc<Ticker>),
        component: &Component,
        question: QuestionKind,
        class: SizeClass,
        limits: &Limits,
    ) -> wasmtime::Result<Self> {
        let pre = linker.instantiate_pre(component)?;
        let engine = linker.engine();
        let question = match question {
            QuestionKind::Residency => {
                Indices::Residency(exports::residency_policy::GuestIndices::new(&pre)?)
            }
            QuestionKind::Cost => Indices::Cost(exports::cost_policy::GuestIndices::new(&pre)?),
            QuestionKind::Routing => Indices::Routing(exports::routing_policy::GuestIndices::new(&pre)?),
            QuestionKind::Invalidation => {
                Indices::Invalidation(exports::invalidation_policy::GuestIndices::new(&pre)?)
            }
        };
        Ok(Self {
            lifecycle: exports::lifecycle::GuestIndices::new(&pre)?,
            question,
            class,
            limits: *limits,
            reads_request: reads_request(engine, component),
            ticker: ticker.clone(),
            pre,
        })
    }

    /// Makes and configures an instance.
    pub(crate) fn make(
        &self,
        tenancy: &Arc<Tenancy>,
        live: &LiveCounters,
        setup: &Setup,
        budget: Budget,
    ) -> Result<Made, SetupFault> {
        let mut store = self.store(tenancy, live);
        let _running = self.ticker.run();
        arm(&mut store, budget).map_err(|e| SetupFault::Start(fault::of_start(&e, &store, budget)))?;
        let (instance, export) = self.start(&mut store).map_err(|e| match stopped(&store) {
            true => SetupFault::NotHere,
            false => SetupFault::Start(fault::of_start(&e, &store, budget)),
        })?;
        let configured = self
            .lifecycle
            .load(&mut store, &instance)
            .and_then(|l| setup.with_tables(|config, names| l.call_configure(&mut store, config, names)));
        match configured {
            Err(_) if stopped(&store) => Err(SetupFault::NotHere),
            Err(e) => Err(SetupFault::Configure(fault::of_call(&e, &store, budget))),
            Ok(Err(why)) => Err(SetupFault::Refused(crate::log::tame(
                &why,
                crate::limits::REASON_MAX_BYTES,
            ))),
            Ok(Ok(())) => {
                let fuel = used(&store, budget);
                let memory_at_start = store.data().limiter.memory();
                Ok(Made {
                    guest: Guest {
                        store,
                        export,
                        reads_request: self.reads_request,
                        ticker: self.ticker.clone(),
                        calls: 0,
                        memory_at_start,
                    },
                    fuel,
                })
            }
        }
    }

    fn store(&self, tenancy: &Arc<Tenancy>, live: &LiveCounters) -> Store<GuestState> {
        let limiter = Limiter::new(&self.limits, self.class);
        let state = GuestState::new(limiter, tenancy.clone(), Live::count(live));
        let mut store = Store::new(self.pre.engine(), state);
        store.limiter(|state| &mut state.limiter);
        store.set_hostcall_fuel(self.limits.hostcall_bytes);
        store.set_max_component_handles(HANDLES);
        store.epoch_deadline_trap();
        store
    }

    fn start(&self, store: &mut Store<GuestState>) -> wasmtime::Result<(Instance, Export)> {
        let instance = self.pre.instantiate(&mut *store)?;
        let export = match &self.question {
            Indices::Residency(i) => Export::Residency(i.load(store, &instance)?),
            Indices::Cost(i) => Export::Cost(i.load(store, &instance)?),
            Indices::Routing(i) => Export::Routing(i.load(store, &instance)?),
            Indices::Invalidation(i) => Export::Invalidation(i.load(store, &instance)?),
        };
        Ok((instance, export))
    }
}

/// Whether the component can see labels or write log lines, and so needs the request's own strings.
fn reads_request(engine: &Engine, component: &Component) -> bool {
    let ty = component.component_type();
    ty.imports(engine).any(|(name, _)| {
        let interface = name.split('@').next().unwrap_or(name);
        interface == OFFERED[0] || interface == OFFERED[2]
    })
}

fn arm(store: &mut Store<GuestState>, budget: Budget) -> wasmtime::Result<()> {
    store.data_mut().limiter.allow_here(budget.memory_bytes);
    // One tick more than asked: the present tick may be nearly over.
    store.set_epoch_deadline(budget.deadline_ms.saturating_add(1));
    store.set_fuel(budget.fuel)
}

fn stopped(store: &Store<GuestState>) -> bool {
    store.data().limiter.stopped_here()
}

fn used(store: &Store<GuestState>, budget: Budget) -> u64 {
    budget.fuel.saturating_sub(store.get_fuel().unwrap_or(0))
}

impl Guest {
    /// Bytes of linear memory it has.
    pub(crate) fn memory(&self) -> usize {
        self.store.data().limiter.memory()
    }

    /// Whether it may answer another call of its binding: it has not answered too many, and its memory has not grown.
    pub(crate) fn is_reusable(&self) -> bool {
        self.calls < CALLS_OF_A_WARM_INSTANCE && self.memory() <= self.memory_at_start
    }

    /// Asks. After a fault the instance must not be asked again.
    pub(crate) fn ask(&mut self, call: &Call<'_>, budget: Budget) -> Told {
        self.calls += 1;
        self.store.data_mut().begin_call();
        if self.reads_request {
            let state = self.store.data_mut();
            state.labels.clone_from(call.labels);
            call.request_id.clone_into(&mut state.request_id);
        }
        let ticker = self.ticker.clone();
        let _running = ticker.run();
        let result = match arm(&mut self.store, budget).and_then(|()| self.dispatch(&call.question)) {
            Ok(checked) => checked,
            Err(error) => Err(fault::of_call(&error, &self.store, budget)),
        };
        Told {
            result,
            fuel: used(&self.store, budget),
            memory: self.memory(),
            stopped_here: stopped(&self.store),
        }
    }

    fn dispatch(&mut self, question: &Question<'_>) -> wasmtime::Result<Checked> {
        let store = &mut self.store;
        Ok(match (&self.export, question) {
            (
                Export::Residency(guest),
                Question::Residency {
                    subject,
                    request,
                    sites,
                },
            ) => {
                let placements = guest.call_partition(store, question::subject(subject), request)?;
                answer::residency(&placements, *sites)
            }
            (Export::Cost(guest), Question::Cost { request, routes }) => {
                let costs = guest.call_estimate(store, request, routes.stride(), routes.cells())?;
                answer::cost(costs, routes.len())
            }
            (
                Export::Routing(guest),
                Question::Routing {
                    request,
                    routes,
                    costs,
                },
            ) => {
                let decision = guest.call_decide(
                    store,
                    request,
                    routes.stride(),
                    routes.cells(),
                    costs.stride(),
                    costs.cells(),
                )?;
                answer::routing(decision, routes.len())
            }
            (Export::Invalidation(guest), Question::Invalidation { event, groups }) => {
                let directives = question::with_event(event, |event| {
                    guest.call_react(store, event, groups.stride(), groups.cells())
                })?;
                answer::invalidation(directives)
            }
            (_, other) => {
                let kind = other.kind();
                Err(PolicyFault::Unavailable(format!(
                    "the component does not answer the {kind} question"
                )))
            }
        })
    }
}
