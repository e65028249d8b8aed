//! `/v1/portolan/instances/{name}/{drain,resume}`: takes an instance of this site out of service, and back. The operator's.

use super::{auth, body, errors};
use crate::error::{ErrorKind, RequestError};
use crate::site::Site;
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use portolan_base::InstanceName;
use portolan_decide::InstanceView;
use portolan_ports::{Operation, OperationKind, Service};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Longest reason that is written down, in bytes: a sentence and a ticket's address.
pub(super) const REASON_BYTES: usize = 500;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServiceOrder {
    #[serde(default)]
    reason: String,
}

/// An instance as the order left it.
#[derive(Debug, Serialize)]
pub(super) struct ServiceBody {
    site: String,
    instance: String,
    standing: &'static str,
    prefill_queued_requests: u32,
    decode_running: u32,
}

pub(super) async fn drain(
    state: State<Arc<Site>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    order: Body,
) -> Result<Json<ServiceBody>, RequestError> {
    change(
        state,
        path,
        (headers, order),
        OperationKind::Drain,
        Service::Draining,
    )
    .await
}

pub(super) async fn resume(
    state: State<Arc<Site>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    order: Body,
) -> Result<Json<ServiceBody>, RequestError> {
    change(
        state,
        path,
        (headers, order),
        OperationKind::Resume,
        Service::Open,
    )
    .await
}

async fn change(
    State(site): State<Arc<Site>>,
    path: Result<Path<String>, PathRejection>,
    (headers, order): (HeaderMap, Body),
    kind: OperationKind,
    service: Service,
) -> Result<Json<ServiceBody>, RequestError> {
    let name = errors::path(path)?;
    let actor = auth::operator(&site, &headers)?.actor();
    let order = read(&body::read(order, body::ORDER_MAX_BYTES).await?)?;
    if order.reason.len() > REASON_BYTES {
        let text = format!("a reason has at most {REASON_BYTES} bytes");
        return Err(RequestError::bad_field("reason", text));
    }
    let instance = own_instance(&site, &name)?;
    note(&site, actor, kind, format!("instance {instance}"), order.reason).await?;
    let missing = |error: portolan_ports::NoSuchInstance| not_here(error.to_string());
    site.serve_instance_as(&instance, service).map_err(missing)?;
    let view = site.parts.fleet.view();
    let mine = |i: &&InstanceView| i.site == site.parts.index && i.name == instance;
    let found = view.instances.iter().find(mine);
    let found = found.ok_or_else(|| not_here(format!("this site has no instance {instance}")))?;
    Ok(Json(ServiceBody {
        site: site.parts.name.to_string(),
        instance: instance.to_string(),
        standing: found.standing.as_str(),
        prefill_queued_requests: found.prefill_queued_requests,
        decode_running: found.decode_running,
    }))
}

/// An order without a body states no reason.
fn read(order: &[u8]) -> Result<ServiceOrder, RequestError> {
    if order.is_empty() {
        return Ok(ServiceOrder::default());
    }
    let refused = |error| RequestError::bad_field("body", format!("the order cannot be read: {error}"));
    serde_json::from_slice(order).map_err(refused)
}

fn own_instance(site: &Site, name: &str) -> Result<InstanceName, RequestError> {
    let own = site.parts.engines.keys();
    let found = own.clone().find(|instance| instance.as_str() == name);
    found.cloned().ok_or_else(|| {
        let names: Vec<&str> = own.map(InstanceName::as_str).collect();
        not_here(format!(
            "site {} has no instance {name:?}; its instances are {}",
            site.parts.name,
            names.join(", ")
        ))
    })
}

fn not_here(text: String) -> RequestError {
    RequestError::new(ErrorKind::NotFound, text).with_code("instance_not_found")
}

/// Writes an operation into the audit log, before it is done: what was done is never missing there.
pub(super) async fn note(
    site: &Arc<Site>,
    actor: String,
    kind: OperationKind,
    subject: String,
    reason: String,
) -> Result<(), RequestError> {
    let operation = Operation {
        at: site.parts.clock.now(),
        actor,
        kind,
        subject,
        reason,
    };
    let store = Arc::clone(&site.parts.store);
    let noted = tokio::task::spawn_blocking(move || store.note(operation)).await;
    let broken = |detail: String| {
        let text = "the audit log could not be written, so nothing was done";
        RequestError::new(ErrorKind::Internal, text).with_detail(detail)
    };
    noted
        .map_err(|error| broken(error.to_string()))?
        .map_err(|error| broken(error.to_string()))
}
