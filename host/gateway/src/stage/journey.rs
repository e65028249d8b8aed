//! What a request carries from stage to stage.

use super::pass::Offered;
use crate::accepted::Accepted;
use crate::answer::AnswerEvent;
use crate::copy::blames_link;
use crate::error::{ErrorKind, RequestError};
use crate::in_flight::TenantPass;
use crate::site::Site;
use portolan_base::{BlockHash, Moment, Provenance, RequestId, SiteName, TenantKey};
use portolan_decide::record::{Fallback, RouteRecord, StageRecord};
use portolan_decide::{FleetView, InstanceIndex, PathRecord, Placements, RequestPolicies, Route};
use portolan_policy::{Placement, RouteRow};
use portolan_ports::{
    Cancel, CancelOnDrop, Engine, EngineError, InstanceOutcome, KvSetError, Retention, Stale, TextError,
    TransferError,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// One request between admit and settle.
pub(super) struct Journey {
    pub(super) site: Arc<Site>,
    pub(super) request: Accepted,
    /// The versions that answer for this request, taken at admit.
    pub(super) policies: RequestPolicies,
    /// Index hashes of the prompt's full blocks, once they were looked up.
    pub(super) chain: Vec<BlockHash>,
    /// The fleet as it was when the request was decided.
    pub(super) fleet: Arc<FleetView>,
    pub(super) key: TenantKey,
    /// Whose its KV is, and what it depends on.
    pub(super) about: Arc<Provenance>,
    pub(super) cancel: Cancel,
    pub(super) events: mpsc::UnboundedSender<AnswerEvent>,
    pub(super) record: PathRecord,
    /// KV that a prefill engine keeps for a decode engine which has not come for it.
    pub(super) offered: Option<Offered>,
    /// What each site may do with the data, once that was decided.
    pub(super) placements: Option<Placements>,
    /// The stage it is in.
    pub(super) at: &'static str,
    /// Since when, in milliseconds after accept.
    pub(super) since_ms: f64,
    /// Held until settle.
    pub(super) passes: Option<(OwnedSemaphorePermit, TenantPass)>,
}

/// One route with what is needed to take it.
pub(super) struct Leg {
    pub(super) route: Route,
    pub(super) names: RouteRecord,
    /// Generates the answer; at this site.
    pub(super) decoder: Arc<dyn Engine>,
    /// Whether the decode site may keep the KV.
    pub(super) keep_here: Retention,
    /// Computes the prompt.
    pub(super) prefiller: Prefiller,
    /// Whether the prefill site may keep the KV.
    pub(super) keep_there: Retention,
    /// What the policies were told about it.
    pub(super) facts: RouteRow,
    /// What may be given up when it is slow, because a route without it is left.
    pub(super) patience: Patience,
    /// Stops the work of this route, and of no other.
    pub(super) cancel: Cancel,
    /// Stops it when the route is given up, whoever still works.
    pub(super) _stop: CancelOnDrop,
}

/// Whose slowness ends an attempt. Giving up on an instance that every route left uses too would gain nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Patience {
    /// Whether another instance could compute the prompt.
    pub(super) prefill_elsewhere: bool,
    /// Whether another instance could generate the answer.
    pub(super) decode_elsewhere: bool,
}

impl Patience {
    fn of(route: Route, rest: &[Route]) -> Self {
        Self {
            prefill_elsewhere: rest.iter().any(|other| other.prefill != route.prefill),
            decode_elsewhere: rest.iter().any(|other| other.decode != route.decode),
        }
    }
}

/// Who computes the prompt.
pub(super) enum Prefiller {
    /// An instance at this site.
    Here(Arc<dyn Engine>),
    /// An instance at another site.
    At(SiteName),
}

impl Leg {
    pub(super) fn is_remote(&self) -> bool {
        matches!(self.prefiller, Prefiller::At(_))
    }

    /// The decode instance by site and name, for people.
    pub(super) fn decode_at(&self) -> String {
        format!("{}/{}", self.names.decode_site, self.names.decode_instance)
    }

    /// The prefill instance by site and name, for people.
    pub(super) fn prefill_at(&self) -> String {
        format!("{}/{}", self.names.prefill_site, self.names.prefill_instance)
    }
}

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blamed {
    /// An instance.
    Instance(InstanceIndex),
    /// The link from the site of this instance.
    LinkFrom(InstanceIndex),
}

/// Why a stage could not do its part.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// The client left.
    #[error("the client cancelled the request")]
    Cancelled,
    /// The decision was no.
    #[error("{0}")]
    Refused(RequestError),
    /// The instance named by a route is not at this site.
    #[error("instance {0} is gone")]
    InstanceGone(String),
    /// An engine failed.
    #[error("{error}")]
    Engine {
        /// Which instance.
        instance: InstanceIndex,
        /// How.
        error: EngineError,
    },
    /// KV did not arrive from another site.
    #[error("{error}")]
    Transfer {
        /// The instance that was to compute it.
        instance: InstanceIndex,
        /// How.
        error: TransferError,
    },
    /// A stage took longer than it may while another route was left.
    #[error("{stage} at {at} took longer than {limit:.1?}")]
    Slow {
        /// The instance that was waited for.
        instance: InstanceIndex,
        /// Its site and name.
        at: String,
        /// Which stage.
        stage: &'static str,
        /// How long it was given.
        limit: Duration,
    },
    /// What it would have begun on must not be used any more.
    #[error("{0}")]
    Stale(Stale),
    /// The host stops, and waited for it as long as it may.
    #[error("the host stopped before the answer was complete")]
    Stopping,
    /// An order ended it.
    #[error("the request was ended by an invalidation of what it ran on")]
    Aborted,
    /// KV arrived or was computed, but is not whole.
    #[error("the KV set is not usable: {0}")]
    Kv(#[from] KvSetError),
    /// Text could not be decoded.
    #[error(transparent)]
    Text(#[from] TextError),
    /// An engine said nothing for too long.
    #[error("{0} produced no token for {1:?}")]
    DecodeStalled(String, Duration),
    /// No route was left.
    #[error("every route failed: {}", .0.join("; "))]
    EveryRouteFailed(Vec<String>),
}

impl Fault {
    /// Whether another route may do better. A job no engine can do, a refusal and a client that left are final.
    pub(super) fn may_try_elsewhere(&self) -> bool {
        match self {
            Self::Cancelled
            | Self::Stopping
            | Self::Refused(_)
            | Self::EveryRouteFailed(_)
            | Self::Text(_)
            | Self::Aborted => false,
            Self::Engine { error, .. } => !matches!(error, EngineError::BadJob(_) | EngineError::Cancelled),
            Self::InstanceGone(_)
            | Self::Transfer { .. }
            | Self::Slow { .. }
            | Self::Stale(_)
            | Self::Kv(_)
            | Self::DecodeStalled(..) => true,
        }
    }

    /// The instance that failed, which a later attempt had better not use.
    pub(super) fn failed_instance(&self) -> Option<InstanceIndex> {
        match self {
            Self::Engine { instance, .. } | Self::Slow { instance, .. } | Self::Transfer { instance, .. } => {
                Some(*instance)
            }
            _ => None,
        }
    }

    /// Who is to blame, for the breakers. Being full is no failure.
    fn blames(&self) -> Option<Blamed> {
        match self {
            Self::Engine {
                instance,
                error: EngineError::Broken(_) | EngineError::Unreachable(_),
            }
            | Self::Slow { instance, .. } => Some(Blamed::Instance(*instance)),
            Self::Transfer { instance, error } if blames_link(error) => Some(Blamed::LinkFrom(*instance)),
            _ => None,
        }
    }

    /// What the client is told. Details of this side stay in the log.
    pub(super) fn into_client_error(self) -> RequestError {
        const SOON: Duration = Duration::from_secs(1);
        let detail = self.to_string();
        match self {
            Self::Refused(error) => error,
            Self::Aborted => RequestError::new(
                ErrorKind::Conflict,
                "what this request ran on was invalidated, with the order to end what runs; send it again",
            )
            .with_code("invalidated"),
            Self::Cancelled => RequestError::new(ErrorKind::BadRequest, "the request was cancelled"),
            Self::Stopping => RequestError::stopping(),
            Self::Engine {
                error: EngineError::BadJob(why),
                ..
            } => RequestError::new(ErrorKind::BadRequest, why),
            Self::Engine {
                error: EngineError::Full(_),
                ..
            } => RequestError::unavailable("the model is at capacity; try again", SOON).with_detail(detail),
            Self::EveryRouteFailed(_) => {
                RequestError::unavailable("no site could serve the request; try again", SOON)
                    .with_detail(detail)
            }
            _ => RequestError::new(ErrorKind::Internal, "the answer broke off inside the gateway")
                .with_detail(detail),
        }
    }
}

impl Journey {
    /// Everything needed to take a route, or why it cannot be taken.
    pub(super) fn leg(&self, route: Route, rest: &[Route]) -> Result<Leg, Fault> {
        let names = portolan_decide::plan::route_record(&self.fleet, route);
        let decoder = self.engine_here(&names.decode_instance)?;
        let here = names.prefill_site == self.site.parts.name.as_str();
        let prefiller = if here {
            Prefiller::Here(self.engine_here(&names.prefill_instance)?)
        } else {
            let site = SiteName::new(&names.prefill_site);
            Prefiller::At(site.map_err(|_| Fault::InstanceGone(names.prefill_instance.clone()))?)
        };
        let (keep_here, keep_there) = (self.retention(route.decode), self.retention(route.prefill));
        let candidate = self.record.candidates.iter().find(|c| c.route == names);
        let facts = candidate.map(|c| c.facts).unwrap_or_default();
        let cancel = Cancel::new();
        Ok(Leg {
            route,
            names,
            decoder,
            keep_here,
            prefiller,
            keep_there,
            facts,
            patience: Patience::of(route, rest),
            _stop: cancel.on_drop(),
            cancel,
        })
    }

    /// A site that is not resident for this data keeps nothing of it.
    pub(super) fn retention(&self, instance: InstanceIndex) -> Retention {
        let site = self.fleet.instance(instance).map(|i| i.site);
        match self
            .placements
            .as_ref()
            .zip(site)
            .map(|(placements, site)| placements.of(site))
        {
            Some(Placement::Resident) => Retention::Keep,
            _ => Retention::Drop,
        }
    }

    fn engine_here(&self, name: &str) -> Result<Arc<dyn Engine>, Fault> {
        let engines = &self.site.parts.engines;
        let found = engines.iter().find(|(instance, _)| instance.as_str() == name);
        found
            .map(|(_, engine)| Arc::clone(engine))
            .ok_or_else(|| Fault::InstanceGone(name.to_owned()))
    }

    /// The prompt without its last token: what prefill computes.
    pub(super) fn prefill_tokens(&self) -> Arc<[u32]> {
        let prompt = &self.request.prompt;
        Arc::from(&prompt[..prompt.len().saturating_sub(1)])
    }

    pub(super) fn id(&self) -> RequestId {
        self.request.id.clone()
    }

    pub(super) fn now(&self) -> Moment {
        self.site.parts.clock.now()
    }

    /// Milliseconds since the request was accepted.
    pub(super) fn elapsed_ms(&self) -> f64 {
        millis_between(self.request.at, self.now())
    }

    /// Enters a stage; returns when, in milliseconds after accept.
    pub(super) fn enter(&mut self, stage: &'static str) -> f64 {
        self.at = stage;
        self.since_ms = self.elapsed_ms();
        self.since_ms
    }

    /// Notes that a stage ran from `start_ms` until now.
    pub(super) fn note_stage(&mut self, name: &str, start_ms: f64) {
        let end_ms = self.elapsed_ms();
        self.note_stage_between(name, start_ms, end_ms);
    }

    /// Notes when a stage ran.
    pub(super) fn note_stage_between(&mut self, name: &str, start_ms: f64, end_ms: f64) {
        self.record.stages.push(StageRecord {
            name: name.to_owned(),
            start_ms,
            end_ms,
        });
    }

    /// Tells the breaker of whoever is to blame.
    pub(super) fn blame(&self, fault: &Fault) {
        match fault.blames() {
            Some(Blamed::Instance(instance)) => {
                self.site.parts.fleet.outcome(instance, InstanceOutcome::Failed);
            }
            Some(Blamed::LinkFrom(instance)) => self.note_link(instance, InstanceOutcome::Failed),
            None => {}
        }
    }

    /// Tells the breaker of the link from an instance's site how it did.
    pub(super) fn note_link(&self, from: InstanceIndex, outcome: InstanceOutcome) {
        if let Some(instance) = self.fleet.instance(from) {
            self.site.parts.fleet.link_outcome(instance.site, outcome);
        }
    }

    /// Notes that no more second tries are left for other sites.
    pub(super) fn note_spent_budget(&mut self, next: Option<Route>) {
        let fallback = Fallback {
            stage: self.at.to_owned(),
            from: "the other routes of the plan".to_owned(),
            to: next.map_or_else(|| "no route left".to_owned(), |route| self.route_name(route)),
            reason: "the retry budget is spent".to_owned(),
        };
        tracing::warn!(request = %self.request.id, to = %fallback.to, "the retry budget is spent");
        self.record.fallbacks.push(fallback);
    }

    fn route_name(&self, route: Route) -> String {
        let names = portolan_decide::plan::route_record(&self.fleet, route);
        format!("prefill at {}/{}", names.prefill_site, names.prefill_instance)
    }

    /// Notes that the prompt was computed on another route, begun beside this one, before this one brought it.
    pub(super) fn note_overtaken(&mut self, route: Route, by: Route, after: Duration) {
        let fallback = Fallback {
            stage: self.at.to_owned(),
            from: self.route_name(route),
            to: self.route_name(by),
            reason: format!("not there after {after:.1?}, and computed here before it was"),
        };
        tracing::info!(request = %self.request.id, from = %fallback.from, to = %fallback.to, "a hedge was first");
        self.record.fallbacks.push(fallback);
    }

    /// Notes that a route failed, blames whoever is to blame, and says what comes next.
    pub(super) fn note_route_failure(&mut self, route: Route, next: Option<Route>, fault: &Fault) {
        self.blame(fault);
        let stage = self.at;
        let fallback = Fallback {
            stage: stage.to_owned(),
            from: self.route_name(route),
            to: next.map_or_else(|| "no route left".to_owned(), |route| self.route_name(route)),
            reason: fault.to_string(),
        };
        tracing::warn!(request = %self.request.id, stage, from = %fallback.from, to = %fallback.to, reason = %fallback.reason, "falling back");
        self.record.fallbacks.push(fallback);
    }
}

/// Milliseconds from `start` to `end`, to the microsecond.
pub(super) fn millis_between(start: Moment, end: Moment) -> f64 {
    end.since(start).as_micros() as f64 / 1000.0
}
