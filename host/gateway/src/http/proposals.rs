//! The doors of what waits for a second operator.

use super::models::List;
use super::{admin, auth, body, errors};
use crate::error::{ErrorKind, RequestError};
use crate::policies::Done;
use crate::site::Site;
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use portolan_policy::Scope;
use portolan_ports::{BindingRecord, ProposalRecord, ProposalState, RolloutRecord, VerdictKind};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Longest body of a verdict: a reason and some JSON around it.
const VERDICT_MAX_BYTES: usize = 4096;

/// Proposals of a list: more than are open at a time, and the latest of those that were.
const LIST_MAX: usize = 200;

#[derive(Debug, Serialize)]
pub(super) struct ProposalBody {
    state: ProposalState,
    #[serde(flatten)]
    proposal: ProposalRecord,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct VerdictBody {
    #[serde(default)]
    reason: String,
}

/// What a verdict is answered: the proposal, and the record that the change made.
#[derive(Debug, Serialize)]
struct DecidedBody {
    proposal: ProposalRecord,
    #[serde(skip_serializing_if = "Option::is_none")]
    binding: Option<Box<BindingRecord>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rollout: Option<Box<RolloutRecord>>,
}

pub(super) async fn list(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
) -> Result<Response, RequestError> {
    auth::operator(&site, &headers)?;
    let turn = admin::turn(&site, &Scope::Platform)?;
    match admin::on_desk(&site, turn, |desk| desk.proposals()).await? {
        Ok(proposals) => {
            let bodies = proposals.into_iter().take(LIST_MAX);
            let bodies = bodies.map(|(proposal, state)| ProposalBody { state, proposal });
            Ok(Json(List::of(bodies.collect())).into_response())
        }
        Err(error) => Ok(admin::refusal(error)),
    }
}

pub(super) async fn decide(
    State(site): State<Arc<Site>>,
    path: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
    order: Body,
) -> Result<Response, RequestError> {
    let (id, verdict) = errors::path(path)?;
    let key = auth::operator(&site, &headers)?;
    let missing = |what: String| RequestError::new(ErrorKind::NotFound, what);
    let id: u64 = id
        .parse()
        .map_err(|_| missing(format!("{id:?} is no proposal's number")).with_code("policy_not_found"))?;
    let kind = match verdict.as_str() {
        "approve" => VerdictKind::Approved,
        "reject" => VerdictKind::Rejected,
        other => {
            let text = format!("{other:?} is nothing that can be done to a proposal: approve or reject");
            return Err(missing(text).with_code("unknown_change"));
        }
    };
    if key.holder.is_none() {
        let text = "this key names no operator; give it a name under operator_keys in the configuration";
        return Err(RequestError::new(ErrorKind::Forbidden, text).with_code("unnamed_key"));
    }
    let order = body::read(order, VERDICT_MAX_BYTES).await?;
    let by = admin::by(&key.actor(), &read(&headers, &order)?.reason)?;
    let turn = admin::turn(&site, &Scope::Platform)?;
    match admin::on_desk(&site, turn, move |desk| desk.decide(id, kind, &by)).await? {
        Ok(decision) => {
            let (binding, rollout) = match decision.done {
                Some(Done::Bound(binding)) => (Some(binding), None),
                Some(Done::Rollout(rollout)) => (None, Some(rollout)),
                Some(Done::Unbound | Done::Proposed(_)) | None => (None, None),
            };
            let body = DecidedBody {
                proposal: decision.proposal,
                binding,
                rollout,
            };
            Ok(Json(body).into_response())
        }
        Err(error) => Ok(admin::refusal(error)),
    }
}

/// An empty body gives no reason.
fn read(headers: &HeaderMap, order: &[u8]) -> Result<VerdictBody, RequestError> {
    if order.is_empty() {
        return Ok(VerdictBody::default());
    }
    body::expect_json(headers)?;
    serde_json::from_slice(order).map_err(|error| {
        let text = format!("the body must be {{\"reason\"}}: {error}");
        RequestError::new(ErrorKind::BadRequest, text)
    })
}
