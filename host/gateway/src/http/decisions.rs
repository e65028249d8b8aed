//! `/v1/portolan/kv/decisions`: what invalidation policies were asked and said lately. A tenant sees its own policy's.

use super::auth;
use super::models::List;
use crate::error::RequestError;
use crate::reaction::ReactionRecord;
use crate::site::Site;
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use portolan_base::Scope;
use portolan_ports::Principal;
use std::sync::Arc;

pub(super) async fn list(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
) -> Result<Json<List<ReactionRecord>>, RequestError> {
    let of = match auth::principal(&site, &headers)? {
        Principal::Operator => None,
        Principal::Tenant(tenant) => Some(Scope::Tenant(tenant)),
    };
    Ok(Json(List::of(site.decisions.latest(of.as_ref()))))
}
