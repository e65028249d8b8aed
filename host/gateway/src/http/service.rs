//! `/v1/portolan/site`: takes this whole site out of service, and back. The operator's.
//!
//! A site that is drained takes no new requests (503 `site_draining`, and `/health` says so, so that a load balancer goes
//! elsewhere), its instances get no more work from other sites, and what it has begun it ends. Instances that were drained by
//! name stay so when it returns. One that is evacuated hands over the prefixes it is asked for, too.

use super::{auth, body, instances};
use crate::error::{ErrorKind, RequestError};
use crate::evacuate::{self, EvacuationBounds, Progress};
use crate::site::Site;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use portolan_base::Bytes;
use portolan_ports::{OperationKind, Service};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// How long prefixes are handed over when the operator does not say: what `portolan site evacuate` waits.
const WITHIN_S: u64 = 60;

/// The longest that may be: an hour.
const WITHIN_MOST_S: u64 = 3600;

/// MiB that are handed over when the operator does not say: a minute of a link of 500 Mbit/s.
const MIB: u64 = 4096;

/// Longest body of an order: a reason and some JSON around it.
const ORDER_MAX_BYTES: usize = 4096;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServiceOrder {
    #[serde(default)]
    reason: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct EvacuateOrder {
    #[serde(default)]
    reason: String,
    /// How long prefixes are handed over, in seconds.
    within_s: Option<u64>,
    /// How much at most.
    mib: Option<u64>,
}

/// The site, and what it still has to do.
#[derive(Debug, Serialize)]
pub(super) struct SiteBody {
    site: String,
    /// `open` or `draining`.
    service: &'static str,
    /// Clients' requests in flight.
    in_flight: usize,
    /// Prompts that wait or are computed, for other sites too.
    prefill_queued_requests: u32,
    /// Answers that are generated.
    decode_running: u32,
    /// Nothing is left to do.
    idle: bool,
    /// Prefixes that are handed over, or were when it was evacuated last.
    #[serde(skip_serializing_if = "Option::is_none")]
    evacuation: Option<Progress>,
}

pub(super) async fn look(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
) -> Result<Json<SiteBody>, RequestError> {
    auth::operator(&site, &headers)?;
    Ok(Json(told(&site)))
}

pub(super) async fn drain(
    state: State<Arc<Site>>,
    headers: HeaderMap,
    order: Body,
) -> Result<Json<SiteBody>, RequestError> {
    change(state, headers, order, OperationKind::Drain, Service::Draining).await
}

pub(super) async fn reopen(
    state: State<Arc<Site>>,
    headers: HeaderMap,
    order: Body,
) -> Result<Json<SiteBody>, RequestError> {
    change(state, headers, order, OperationKind::Resume, Service::Open).await
}

/// Drains the site, and begins to hand over what it is asked for.
pub(super) async fn evacuate(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
    order: Body,
) -> Result<Json<SiteBody>, RequestError> {
    let actor = auth::operator(&site, &headers)?.actor();
    let order: EvacuateOrder = read(order).await?;
    let within = order.within_s.unwrap_or(WITHIN_S);
    if !(1..=WITHIN_MOST_S).contains(&within) {
        let text = format!("1 to {WITHIN_MOST_S} seconds are possible");
        return Err(RequestError::bad_field("within_s", text));
    }
    let most = order.mib.unwrap_or(MIB).checked_mul(1 << 20).map(Bytes);
    let most =
        most.ok_or_else(|| RequestError::bad_field("mib", "so many bytes cannot be counted".to_owned()))?;
    let subject = format!("site {}, with the prefixes it is asked for", site.parts.name);
    instances::note(&site, actor, OperationKind::Drain, subject, order.reason).await?;
    serve_as(&site, Service::Draining)?;
    let until = site.parts.clock.now() + Duration::from_secs(within);
    evacuate::begin(&site, EvacuationBounds { until, most });
    Ok(Json(told(&site)))
}

async fn change(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
    order: Body,
    kind: OperationKind,
    service: Service,
) -> Result<Json<SiteBody>, RequestError> {
    let actor = auth::operator(&site, &headers)?.actor();
    let order: ServiceOrder = read(order).await?;
    let subject = format!("site {}", site.parts.name);
    instances::note(&site, actor, kind, subject, order.reason).await?;
    if service == Service::Open {
        site.evacuation.cancel();
    }
    serve_as(&site, service)?;
    Ok(Json(told(&site)))
}

/// An order; what is usual where nothing was sent.
async fn read<T: Default + DeserializeOwned>(order: Body) -> Result<T, RequestError> {
    let order = body::read(order, ORDER_MAX_BYTES).await?;
    match order.is_empty() {
        true => Ok(T::default()),
        false => serde_json::from_slice(&order)
            .map_err(|e| RequestError::bad_field("body", format!("the order cannot be read: {e}"))),
    }
}

fn serve_as(site: &Site, service: Service) -> Result<(), RequestError> {
    let gone = |error: portolan_ports::NoSuchInstance| {
        RequestError::new(ErrorKind::Internal, "an instance left meanwhile").with_detail(error)
    };
    site.serve_as(service).map_err(gone)
}

fn told(site: &Site) -> SiteBody {
    let loads = site.parts.engines.values().map(|engine| engine.load());
    let (queued, running) = loads.fold((0, 0), |(queued, running), load| {
        (
            queued + load.prefill_queued_requests,
            running + load.decode_running,
        )
    });
    let in_flight = site.in_flight();
    SiteBody {
        site: site.parts.name.to_string(),
        service: match site.is_draining() {
            true => "draining",
            false => "open",
        },
        in_flight,
        prefill_queued_requests: queued,
        decode_running: running,
        idle: in_flight == 0 && queued == 0 && running == 0,
        evacuation: site.evacuation.progress(),
    }
}
