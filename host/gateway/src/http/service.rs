//! `/v1/portolan/site`: takes this whole site out of service, and back. The operator's.
//!
//! A site that is drained takes no new requests (503 `site_draining`, and `/health` says so, so that a load balancer goes
//! elsewhere), its instances get no more work from other sites, and what it has begun it ends.

use super::{auth, body, instances};
use crate::error::{ErrorKind, RequestError};
use crate::site::Site;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use portolan_ports::{OperationKind, Service};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Longest body of an order: a reason and some JSON around it.
const ORDER_MAX_BYTES: usize = 4096;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServiceOrder {
    #[serde(default)]
    reason: String,
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

async fn change(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
    order: Body,
    kind: OperationKind,
    service: Service,
) -> Result<Json<SiteBody>, RequestError> {
    let actor = auth::operator(&site, &headers)?.actor();
    let order = body::read(order, ORDER_MAX_BYTES).await?;
    let order: ServiceOrder = match order.is_empty() {
        true => ServiceOrder::default(),
        false => serde_json::from_slice(&order)
            .map_err(|e| RequestError::bad_field("body", format!("the order cannot be read: {e}")))?,
    };
    let subject = format!("site {}", site.parts.name);
    instances::note(&site, actor, kind, subject, order.reason).await?;
    site.serve_as(service);
    for instance in site.parts.engines.keys() {
        let gone = |error: portolan_ports::NoSuchInstance| {
            RequestError::new(ErrorKind::Internal, "an instance left meanwhile").with_detail(error)
        };
        site.parts.fleet.set_service(instance, service).map_err(gone)?;
    }
    Ok(Json(told(&site)))
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
    }
}
