//! The log lines of a tenant's policies, for whoever wrote them.

use super::inspect::list_length;
use super::models::List;
use super::{admin, errors};
use crate::error::RequestError;
use crate::site::Site;
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use portolan_policy::QuestionKind;
use portolan_ports::PolicyLogLine;
use serde::Deserialize;
use std::sync::Arc;

/// Which lines are wanted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogQuery {
    question: Option<String>,
    limit: Option<usize>,
}

/// The newest first.
pub(super) async fn lines(
    State(site): State<Arc<Site>>,
    tenant: Result<Path<String>, PathRejection>,
    query: Result<Query<LogQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Json<List<PolicyLogLine>>, RequestError> {
    let tenant = errors::path(tenant)?;
    let (scope, _) = admin::scope(&site, &tenant, &headers)?;
    let query = errors::query(query)?;
    let question = query.question.as_deref().map(str::parse::<QuestionKind>);
    let question = question
        .transpose()
        .map_err(|error| RequestError::bad_field("question", error.to_string()))?;
    let mut lines = site.parts.desk.log_lines(&scope);
    lines.retain(|line| question.is_none_or(|question| line.question == question));
    lines.reverse();
    lines.truncate(list_length(query.limit));
    Ok(Json(List::of(lines)))
}
