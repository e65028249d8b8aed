//! What a tenant used of what it may, and the removal of versions it does not need.

use super::admin::{by, full_version, on_desk, refusal, scope, turn};
use super::{admin, errors};
use crate::error::{ErrorKind, RequestError};
use crate::policies::{PolicySlot, Usage};
use crate::site::Site;
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use portolan_policy::QuestionKind;
use serde::Serialize;
use std::sync::Arc;

/// What a scope used.
#[derive(Debug, Serialize)]
struct UsageBody {
    tenant: String,
    #[serde(flatten)]
    usage: Usage,
}

pub(super) async fn usage(
    State(site): State<Arc<Site>>,
    tenant: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, RequestError> {
    let tenant = errors::path(tenant)?;
    let (scope, _) = scope(&site, &tenant, &headers)?;
    let turn = turn(&site, &scope)?;
    match on_desk(&site, turn, move |desk| desk.usage(&scope)).await? {
        Ok(usage) => Ok(Json(UsageBody { tenant, usage }).into_response()),
        Err(error) => Ok(refusal(error)),
    }
}

/// Forgets a stored version.
pub(super) async fn remove(
    State(site): State<Arc<Site>>,
    path: Result<Path<(String, String, String)>, PathRejection>,
    query: Result<Query<admin::ReasonQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, RequestError> {
    let (tenant, question, version) = errors::path(path)?;
    let (scope, actor) = scope(&site, &tenant, &headers)?;
    let question = question.parse::<QuestionKind>().map_err(|error| {
        RequestError::new(ErrorKind::NotFound, error.to_string()).with_code("unknown_question")
    })?;
    let slot = PolicySlot::new(scope, question);
    let by = by(&actor, &errors::query(query)?.reason)?;
    let turn = turn(&site, &slot.scope)?;
    let removed = on_desk(&site, turn, move |desk| {
        match full_version(&desk.versions(&slot)?, &version) {
            Ok(sha256) => desk.remove(&slot, &sha256, &by).map(Ok),
            Err(error) => Ok(Err(error)),
        }
    });
    match removed.await? {
        Ok(removed) => removed.map(|()| StatusCode::NO_CONTENT.into_response()),
        Err(error) => Ok(refusal(error)),
    }
}
