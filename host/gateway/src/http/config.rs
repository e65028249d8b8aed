//! `/v1/portolan/config`: what is in force, what was, and changes. The operators'.

use super::{auth, body};
use crate::error::{ErrorKind, RequestError};
use crate::site::Site;
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use portolan_ports::{
    Changer, ConfigDone, ConfigOrder, ConfigRefusal, ConfigVersion, Configuration, Edits, FleetConfiguration,
    PendingConfig,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// Longest body of an order: a reason and some JSON around it.
const ORDER_MAX_BYTES: usize = 4096;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct OrderBody {
    #[serde(default)]
    reason: String,
    #[serde(default)]
    version: Option<u64>,
    #[serde(default)]
    force: bool,
}

impl OrderBody {
    fn edits(&self) -> Edits {
        match self.force {
            true => Edits::Overwrite,
            false => Edits::Keep,
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct PendingBody {
    pending: Option<PendingConfig>,
}

pub(super) async fn effective(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
) -> Result<Json<Value>, RequestError> {
    auth::operator(&site, &headers)?;
    Ok(Json(configuration(&site)?.effective()))
}

pub(super) async fn history(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
) -> Result<Json<super::models::List<ConfigVersion>>, RequestError> {
    auth::operator(&site, &headers)?;
    let configuration = configuration(&site)?;
    let versions = tokio::task::spawn_blocking(move || configuration.history()).await;
    let versions = versions.map_err(|error| broken(&error))?.map_err(refused)?;
    Ok(Json(super::models::List::of(versions)))
}

pub(super) async fn pending(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
) -> Result<Json<PendingBody>, RequestError> {
    auth::operator(&site, &headers)?;
    let pending = configuration(&site)?.pending();
    Ok(Json(PendingBody { pending }))
}

pub(super) async fn sites(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
) -> Result<Json<FleetConfiguration>, RequestError> {
    auth::operator(&site, &headers)?;
    let configuration = configuration(&site)?;
    let sites = tokio::task::spawn_blocking(move || configuration.sites()).await;
    sites.map(Json).map_err(|error| broken(&error))
}

pub(super) async fn change(
    State(site): State<Arc<Site>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    order: Body,
) -> Result<Json<ConfigDone>, RequestError> {
    let verb = super::errors::path(path)?;
    let key = auth::operator(&site, &headers)?;
    let order = body::read(order, ORDER_MAX_BYTES).await?;
    let order = read(&headers, &order)?;
    let wanted = match verb.as_str() {
        "reload" => ConfigOrder::Reload,
        "rollback" => ConfigOrder::Rollback(order.version, order.edits()),
        "approve" => ConfigOrder::Approve,
        "reject" => ConfigOrder::Reject,
        other => {
            let text = format!(
                "{other:?} is nothing that can be done to the configuration: reload, rollback, approve or reject"
            );
            return Err(RequestError::new(ErrorKind::NotFound, text).with_code("unknown_change"));
        }
    };
    let by = Changer {
        actor: key.actor(),
        holder: key.holder.clone(),
        reason: order.reason,
    };
    let configuration = configuration(&site)?;
    // In a task of its own: a change that has begun ends, whether the caller waits or not.
    let done = tokio::spawn(async move { configuration.change(wanted, by).await }).await;
    done.map_err(|error| broken(&error))?.map_err(refused).map(Json)
}

fn configuration(site: &Site) -> Result<Arc<dyn Configuration>, RequestError> {
    site.configuration().ok_or_else(|| {
        let text = "this host was started without a configuration file";
        RequestError::new(ErrorKind::NotFound, text).with_code("no_configuration")
    })
}

/// An empty body gives no reason.
fn read(headers: &HeaderMap, order: &[u8]) -> Result<OrderBody, RequestError> {
    if order.is_empty() {
        return Ok(OrderBody::default());
    }
    body::expect_json(headers)?;
    serde_json::from_slice(order).map_err(|error| {
        let text = format!("the body must be {{\"reason\", \"version\", \"force\"}}: {error}");
        RequestError::new(ErrorKind::BadRequest, text)
    })
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "made for `map_err`, which gives the error away"
)]
fn refused(refusal: ConfigRefusal) -> RequestError {
    let (kind, code) = match &refusal {
        ConfigRefusal::Bad(_) => (ErrorKind::BadRequest, "bad_configuration"),
        ConfigRefusal::NeedsRestart(_) => (ErrorKind::Conflict, "needs_restart"),
        ConfigRefusal::Edited(_) => (ErrorKind::Conflict, "unloaded_edits"),
        ConfigRefusal::Missing(_) => (ErrorKind::NotFound, "config_not_found"),
        ConfigRefusal::Forbidden(_) => (ErrorKind::Forbidden, "second_operator_needed"),
        ConfigRefusal::Broken(_) => (ErrorKind::Internal, "config_not_changed"),
        ConfigRefusal::NotAcknowledged(_) => (ErrorKind::Unavailable, "fleet_unreachable"),
        ConfigRefusal::ChangedElsewhere => (ErrorKind::Conflict, "changed_elsewhere"),
        ConfigRefusal::NotTakenOver(_) => (ErrorKind::Conflict, "not_taken_over"),
    };
    RequestError::new(kind, refusal.to_string()).with_code(code)
}

fn broken(error: &dyn std::fmt::Display) -> RequestError {
    RequestError::new(ErrorKind::Internal, "the change broke inside the host").with_detail(error)
}
