//! What a request carries from stage to stage.

use crate::accepted::Accepted;
use crate::answer::AnswerEvent;
use crate::error::{ErrorKind, RequestError};
use crate::in_flight::TenantPass;
use crate::site::Site;
use portolan_base::{BlockHash, Moment, Provenance, RequestId, SiteName, TenantKey};
use portolan_decide::record::{Fallback, RouteRecord, StageRecord};
use portolan_decide::{FleetView, InstanceIndex, PathRecord, Placements, RequestPolicies, Route};
use portolan_policy::Placement;
use portolan_ports::{
    Cancel, Engine, EngineError, InstanceOutcome, KvSetError, Retention, TextError, TransferError,
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
            Self::Cancelled | Self::Refused(_) | Self::EveryRouteFailed(_) | Self::Text(_) => false,
            Self::Engine { error, .. } => !matches!(error, EngineError::BadJob(_) | EngineError::Cancelled),
            Self::InstanceGone(_) | Self::Transfer { .. } | Self::Kv(_) | Self::DecodeStalled(..) => true,
        }
    }

    /// The instance to blame, for its breaker. Being full is no failure, and what a peer declined it did not break.
    pub(super) fn blames(&self) -> Option<InstanceIndex> {
        match self {
            Self::Engine {
                instance,
                error: EngineError::Broken(_),
            } => Some(*instance),
            Self::Transfer {
                error: TransferError::Cancelled | TransferError::Refused { .. } | TransferError::Late { .. },
                ..
            } => None,
            Self::Transfer { instance, .. } => Some(*instance),
            _ => None,
        }
    }

    /// What the client is told. Details of this side stay in the log.
    pub(super) fn into_client_error(self) -> RequestError {
        const SOON: Duration = Duration::from_secs(1);
        let detail = self.to_string();
        match self {
            Self::Refused(error) => error,
            Self::Cancelled => RequestError::new(ErrorKind::BadRequest, "the request was cancelled"),
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
    pub(super) fn leg(&self, route: Route) -> Result<Leg, Fault> {
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
        Ok(Leg {
            route,
            names,
            decoder,
            keep_here,
            prefiller,
            keep_there,
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

    /// Notes that a route failed, blames whoever is to blame, and says what comes next.
    pub(super) fn note_route_failure(&mut self, route: Route, next: Option<Route>, fault: &Fault) {
        if let Some(instance) = fault.blames() {
            self.site.parts.fleet.outcome(instance, InstanceOutcome::Failed);
        }
        let name = |route| {
            let r = portolan_decide::plan::route_record(&self.fleet, route);
            format!("prefill at {}/{}", r.prefill_site, r.prefill_instance)
        };
        let stage = self.at;
        let fallback = Fallback {
            stage: stage.to_owned(),
            from: name(route),
            to: next.map_or_else(|| "no route left".to_owned(), name),
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
