//! What a site knows of one instance: its load, and whether it may be given work.

use crate::topology::InstanceSpec;
use parking_lot::Mutex;
use portolan_base::{Duty, InstanceName, Moment};
use portolan_decide::{Breaker, BreakerConfig, Comeback, SiteIndex, Standing};
use portolan_ports::{
    Engine, EngineLoad, InstanceLoadReport, InstanceOutcome, OnTheWay, PRESENCE_LEASE, Service,
};
use std::sync::Arc;
use std::time::Duration;

/// Load reports older than this are taken for an instance that is gone, unless its site gave itself another lease: ten
/// missed reports.
pub(super) const LOAD_EXPIRES: Duration = PRESENCE_LEASE;

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
    /// How long a report is good for.
    lease: Duration,
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
    /// When its site measured it, by that site's clock.
    measured: Moment,
    /// When it was heard, by this site's.
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
                lease: LOAD_EXPIRES,
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

    /// Takes a report of another site. One that comes late or twice is older than what is known, and says nothing.
    pub(super) fn heard(&self, report: &InstanceLoadReport, now: Moment) {
        let mut state = self.state.lock();
        if state.reported.is_some_and(|known| report.at < known.measured) {
            return;
        }
        state.reported = Some(Reported {
            load: report.load,
            standing: report.standing,
            measured: report.at,
            at: now,
        });
    }

    /// Its site left or was started anew: what it said before is void.
    pub(super) fn forget(&self) {
        self.state.lock().reported = None;
    }

    /// How long a report of it is good for.
    pub(super) fn set_lease(&self, lease: Duration) {
        self.state.lock().lease = lease;
    }

    /// How old its load is.
    pub(super) fn age(&self, now: Moment) -> Option<Duration> {
        match &self.engine {
            Some(_) => Some(Duration::ZERO),
            None => self.state.lock().reported.map(|reported| now.since(reported.at)),
        }
    }

    /// Its load, and whether it may be given work.
    pub(super) fn look(&self, now: Moment) -> (EngineLoad, Standing) {
        let mut state = self.state.lock();
        let (load, standing) = match (&self.engine, state.reported) {
            // Without a process there is nothing to be warm or to drain.
            (Some(engine), _) if !engine.is_up() => (engine.load(), Standing::Silent),
            (Some(engine), _) => (engine.load(), state.own_standing()),
            (None, Some(reported)) if now.since(reported.at) < state.lease => {
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
