//! What a site knows of one instance: its load, and whether it may be given work.

use crate::topology::InstanceSpec;
use parking_lot::Mutex;
use portolan_base::{Duty, InstanceName, Moment};
use portolan_decide::{Breaker, BreakerConfig, Comeback, SiteIndex, Standing};
use portolan_ports::{Engine, EngineLoad, InstanceOutcome, OnTheWay, Service};
use std::sync::Arc;
use std::time::Duration;

/// Load reports older than this are taken for an instance that is gone: ten missed reports.
pub(super) const LOAD_EXPIRES: Duration = Duration::from_secs(5);

/// What is known of one instance.
pub(super) struct Known {
    pub(super) site: SiteIndex,
    pub(super) name: InstanceName,
    pub(super) on_the_way: Arc<OnTheWay>,
    /// What it does of what it can do.
    duty: Mutex<Duty>,
    /// Present for this site's own: its load is read, not reported.
    engine: Option<Arc<dyn Engine>>,
    state: Mutex<State>,
}

struct State {
    reported: Option<Reported>,
    breaker: Breaker,
    comeback: Comeback,
    /// Set for this site's own only.
    service: Service,
    warming_up: bool,
}

#[derive(Clone, Copy)]
struct Reported {
    load: EngineLoad,
    standing: Standing,
    at: Moment,
}

impl Known {
    pub(super) fn new((site, spec): (SiteIndex, &InstanceSpec), engine: Option<Arc<dyn Engine>>) -> Self {
        Self {
            site,
            name: spec.name.clone(),
            on_the_way: Arc::default(),
            duty: Mutex::new(Duty::of(spec.role)),
            engine,
            state: Mutex::new(State {
                reported: None,
                breaker: Breaker::new(BreakerConfig::default()),
                comeback: Comeback::default(),
                service: Service::Open,
                warming_up: false,
            }),
        }
    }

    /// What it does.
    pub(super) fn duty(&self) -> Duty {
        *self.duty.lock()
    }

    /// What it does from now on.
    pub(super) fn set_duty(&self, duty: Duty) {
        *self.duty.lock() = duty;
    }

    /// Takes a report of another site.
    pub(super) fn heard(&self, load: EngineLoad, standing: Standing, at: Moment) {
        self.state.lock().reported = Some(Reported { load, standing, at });
    }

    /// Its load, and whether it may be given work.
    pub(super) fn look(&self, now: Moment) -> (EngineLoad, Standing) {
        let mut state = self.state.lock();
        let (load, standing) = match (&self.engine, state.reported) {
            (Some(engine), _) => (engine.load(), state.own_standing()),
            (None, Some(reported)) if now.since(reported.at) < LOAD_EXPIRES => {
                (self.with_the_way(reported.load), reported.standing)
            }
            // Without a report nothing is known of its speed, and a speed of zero would win every comparison.
            (None, reported) => (
                reported.map_or_else(EngineLoad::default, |r| r.load),
                Standing::Silent,
            ),
        };
        let standing = match standing.is_ready() && !state.breaker.is_ready(now) {
            true => Standing::Broken,
            false => standing,
        };
        (load, state.comeback.observe(standing, now))
    }

    fn with_the_way(&self, mut load: EngineLoad) -> EngineLoad {
        let (requests, tokens) = self.on_the_way.read();
        load.prefill_queued_requests = load.prefill_queued_requests.saturating_add(requests);
        load.prefill_queued_tokens = load.prefill_queued_tokens.saturating_add(tokens.0);
        load
    }

    pub(super) fn begins(&self, now: Moment) {
        self.state.lock().breaker.begins(now);
    }

    pub(super) fn outcome(&self, outcome: InstanceOutcome, now: Moment) {
        count(&mut self.state.lock().breaker, outcome, now);
    }

    pub(super) fn set_service(&self, service: Service) {
        self.state.lock().service = service;
    }

    pub(super) fn set_warming_up(&self, warming_up: bool) {
        self.state.lock().warming_up = warming_up;
    }
}

impl State {
    fn own_standing(&self) -> Standing {
        match (self.warming_up, self.service) {
            (_, Service::Draining) => Standing::Draining,
            (true, Service::Open) => Standing::WarmingUp,
            (false, Service::Open) => Standing::Ready,
        }
    }
}

/// Tells a breaker of an outcome.
pub(super) fn count(breaker: &mut Breaker, outcome: InstanceOutcome, now: Moment) {
    match outcome {
        InstanceOutcome::Served => breaker.succeeded(),
        InstanceOutcome::Failed => breaker.failed(now),
    }
}
