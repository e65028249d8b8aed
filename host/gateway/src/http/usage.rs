//! What a tenant used of what it may, and the removal of versions it does not need.

use super::admin::{by, full_version, on_desk, refusal, scope, turn, turn_to_change};
use super::models::List;
use super::{admin, auth, errors};
use crate::error::{ErrorKind, RequestError};
use crate::policies::{DeskError, PolicySlot, Usage};
use crate::site::Site;
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use portolan_policy::{QuestionKind, Scope};
use portolan_ports::Principal;
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

/// What every tenant used whom the key may see: its own, or all and the platform.
pub(super) async fn all(State(site): State<Arc<Site>>, headers: HeaderMap) -> Result<Response, RequestError> {
    let own = match auth::principal(&site, &headers)? {
        Principal::Operator => None,
        Principal::Tenant(tenant) => Some(Scope::Tenant(tenant)),
    };
    let turn = turn(&site, own.as_ref().unwrap_or(&Scope::Platform))?;
    let listed = on_desk(&site, turn, move |desk| {
        let scopes = match own {
            Some(own) => vec![own],
            None => desk.scopes()?,
        };
        let usage = scopes.into_iter().map(|scope| {
            let usage = desk.usage(&scope)?;
            let tenant = match scope {
                Scope::Platform => admin::PLATFORM.to_owned(),
                Scope::Tenant(tenant) => tenant.to_string(),
            };
            Ok(UsageBody { tenant, usage })
        });
        usage.collect::<Result<Vec<_>, DeskError>>()
    });
    match listed.await? {
        Ok(listed) => Ok(Json(List::of(listed)).into_response()),
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
    let turn = turn_to_change(&site, &slot.scope, &headers)?;
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
