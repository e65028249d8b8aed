//! The admin doors of the policies. A tenant's own key or the operator's opens its slots; the tenant `_platform`
//! stands for the platform, which only the operator may change.

use super::auth::{self, operator_only};
use super::{body, errors};
use crate::error::{ErrorKind, RequestError};
use crate::in_flight::TenantPass;
use crate::policies::{
    Activation, By, CountedUpload, Counts, DeskError, Done, Order, PolicyDesk, PolicySlot, Sender, Stored,
    Upload, UploadDone,
};
use crate::site::Site;
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use portolan_base::TenantName;
use portolan_decide::Budget;
use portolan_policy::{QuestionKind, Scope};
use portolan_ports::{
    BindingRecord, Finding, Principal, ProposalRecord, Reuse, RolloutRecord, SharedError, VersionRecord,
};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Stands for the platform's scope in a path. No tenant can have this name: names begin with a letter or digit.
pub(super) const PLATFORM: &str = "_platform";

/// Largest component taken over HTTP in bytes. An interpreted guest with its engine has 10 to 15 MB; the check has a
/// bound of its own and says more about what it finds.
const COMPONENT_MAX_BYTES: usize = 32 << 20;

/// The header of an upload that holds its signatures: lines of `NAME.wasm.sig`, joined by commas.
const SIGNATURE: &str = "x-portolan-signature";

/// Longest body of an activation: the configuration has at most 64 KiB, JSON escapes may double it.
pub(super) const ACTIVATION_MAX_BYTES: usize = 256 << 10;

/// Longest reason kept, in bytes: a sentence and a link. Audit answers hold a thousand of them.
const REASON_MAX_BYTES: usize = 1024;

/// Shortest prefix of a SHA-256 that may stand for it, in digits.
const PREFIX_MIN_DIGITS: usize = 6;

/// When to send a component again that found the compiler busy: what most components take, however large.
const COMPILER_FREE_AGAIN: Duration = Duration::from_secs(30);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UploadQuery {
    name: Option<String>,
    /// The one in force stays when it is left out.
    config: Option<String>,
    /// The configuration is so many bytes at the beginning of the body: a long one does not fit into a URL.
    config_bytes: Option<usize>,
    #[serde(default)]
    reason: String,
    activate: Option<bool>,
    /// A budget as JSON.
    budget: Option<String>,
    /// `fresh`, `warm` or `by-class`.
    reuse: Option<String>,
}

impl UploadQuery {
    /// The configuration and the component.
    fn parts(&self, mut body: Bytes) -> Result<(Option<String>, Bytes), RequestError> {
        let Some(bytes) = self.config_bytes else {
            return Ok((self.config.clone(), body));
        };
        let bad = |message: &str| RequestError::bad_field("config_bytes", message);
        if self.config.is_some() {
            return Err(bad(
                "send the configuration in the query or at the beginning of the body, not both",
            ));
        }
        if bytes > body.len() {
            return Err(bad("config_bytes is more than the body has"));
        }
        let config = body.split_to(bytes);
        let config = std::str::from_utf8(&config).map_err(|_| bad("the configuration is not UTF-8"))?;
        Ok((Some(config.to_owned()), body))
    }

    fn reuse(&self) -> Result<Reuse, RequestError> {
        let parsed = self.reuse.as_deref().map_or(Ok(Reuse::ByClass), str::parse);
        parsed.map_err(|error| RequestError::bad_field("reuse", error.to_string()))
    }

    fn budget(&self) -> Result<Option<Budget>, RequestError> {
        let parsed = self.budget.as_deref().map(serde_json::from_str).transpose();
        parsed.map_err(|error| {
            let message = format!(
                "budget must be JSON such as {{\"window\": 100, \"max_fault_permille\": 50}}: {error}"
            );
            RequestError::bad_field("budget", message)
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReasonQuery {
    #[serde(default)]
    pub(super) reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ActivateBody {
    version: String,
    config: Option<String>,
    budget: Option<Budget>,
    reuse: Option<Reuse>,
    #[serde(default)]
    reason: String,
}

/// What an upload is answered.
#[derive(Debug, Serialize)]
struct UploadedBody {
    /// SHA-256 of the component.
    version: String,
    name: String,
    question: QuestionKind,
    bytes: u64,
    /// Absent when the version was stored without being made active.
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
    /// The configuration that it is bound with, or was checked with.
    config: String,
    /// Present when making it active waits for a second operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    proposal: Option<Box<ProposalRecord>>,
    findings: Vec<Finding>,
}

/// One slot with all that is stored for it.
#[derive(Debug, Serialize)]
pub(super) struct SlotBody {
    question: QuestionKind,
    binding: Option<BindingRecord>,
    /// Why the bound policy does not answer at present, if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    unavailable: Option<String>,
    versions: Vec<VersionRecord>,
    /// What is on trial and what is held.
    rollout: RolloutRecord,
    /// Why the version in force could not be made active again, where its signatures are wanting.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    signature_findings: Vec<Finding>,
    /// Calls of each version since the slot's last change, by SHA-256, at this host.
    counts: HashMap<String, Counts>,
    /// Every binding that was made, oldest first; only where one slot is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<BindingRecord>>,
}

/// Every slot of a scope.
#[derive(Debug, Serialize)]
pub(super) struct PoliciesBody {
    tenant: String,
    policies: Vec<SlotBody>,
}

pub(super) type SlotPath = Result<Path<(String, String)>, PathRejection>;

pub(super) async fn upload(
    State(site): State<Arc<Site>>,
    path: SlotPath,
    query: Result<Query<UploadQuery>, QueryRejection>,
    headers: HeaderMap,
    component: Body,
) -> Result<Response, RequestError> {
    let (slot, actor) = enter(&site, path, &headers)?;
    let query = errors::query(query)?;
    let by = by(&actor, &query.reason)?;
    let turn = turn(&site, &slot.scope)?;
    let (budget, reuse) = (query.budget()?, query.reuse()?);
    let counted = match count(&site, auth::principal(&site, &headers)?).await? {
        Ok(counted) => counted,
        Err(error) => return Ok(refusal(error)),
    };
    let body = body::read(component, COMPONENT_MAX_BYTES).await?;
    let (config, component) = query.parts(body)?;
    if component.is_empty() {
        return Err(RequestError::new(
            ErrorKind::BadRequest,
            "the body is empty; send the component's bytes",
        ));
    }
    let name = query.name.unwrap_or_else(|| slot.question.to_string());
    let upload = Upload {
        slot,
        name,
        component,
        config,
        budget,
        reuse,
        signature: signature(&headers)?,
    };
    // Gone with this future, which ends with its client.
    let waits = Arc::new(());
    let active = query.activate.unwrap_or(true);
    let sender = active.then(|| Sender::Waits(Arc::downgrade(&waits)));
    let stored = on_desk(&site, turn, move |desk| {
        let stored = keep(desk, upload, &by, sender);
        if let (Some(counted), Err(refused)) = (&counted, &stored) {
            desk.excuse_upload(counted, refused);
        }
        stored
    });
    let stored = stored.await?;
    drop(waits);
    match stored {
        Ok((stored, done)) => {
            let status = match &done {
                Some(Done::Proposed(_)) => StatusCode::ACCEPTED,
                _ => StatusCode::CREATED,
            };
            Ok((status, uploaded(stored, done)).into_response())
        }
        Err(error) => Ok(refusal(error)),
    }
}

/// What the desk says of an upload: the version, what was found, and what came of making it active.
type Kept = (Stored, Option<Done>);

/// Has the desk keep an upload, and make it active where a sender waits for that.
fn keep(desk: &PolicyDesk, upload: Upload, by: &By, sender: Option<Sender>) -> Result<Kept, DeskError> {
    match sender {
        Some(sender) => {
            let UploadDone { stored, done } = desk.submit_upload(upload, by, &sender)?;
            Ok((stored, Some(done)))
        }
        None => Ok((desk.push(upload, by)?, None)),
    }
}

/// Counts an upload that a tenant sends with its own key; the operator's are not counted.
async fn count(
    site: &Arc<Site>,
    sender: Principal,
) -> Result<Result<Option<CountedUpload>, DeskError>, RequestError> {
    match sender {
        Principal::Operator => Ok(Ok(None)),
        Principal::Tenant(tenant) => {
            on_desk(site, Turn(None), move |desk| desk.count_upload(&tenant).map(Some)).await
        }
    }
}

/// What the header says of signatures; empty when there is none.
fn signature(headers: &HeaderMap) -> Result<String, RequestError> {
    let mut lines = Vec::new();
    for value in headers.get_all(SIGNATURE) {
        let line = value.to_str().map_err(|_| {
            let message = format!("the header {SIGNATURE} holds something else than text");
            RequestError::new(ErrorKind::BadRequest, message)
        })?;
        lines.push(line);
    }
    Ok(lines.join(","))
}

fn uploaded(stored: Stored, done: Option<Done>) -> Json<UploadedBody> {
    let Stored {
        version,
        report,
        config,
    } = stored;
    let (generation, proposal) = match done {
        Some(Done::Bound(binding)) => (Some(binding.generation), None),
        Some(Done::Proposed(proposal)) => (None, Some(proposal)),
        Some(Done::Rollout(_) | Done::Unbound) | None => (None, None),
    };
    Json(UploadedBody {
        version: version.sha256,
        name: version.name,
        question: version.question,
        bytes: version.bytes,
        generation,
        config,
        proposal,
        findings: report.findings,
    })
}

pub(super) async fn activate(
    State(site): State<Arc<Site>>,
    path: SlotPath,
    headers: HeaderMap,
    order: Body,
) -> Result<Response, RequestError> {
    let (slot, actor) = enter(&site, path, &headers)?;
    body::expect_json(&headers)?;
    let turn = turn(&site, &slot.scope)?;
    let order = body::read(order, ACTIVATION_MAX_BYTES).await?;
    let order: ActivateBody = serde_json::from_slice(&order).map_err(|error| {
        let message = format!(
            "the body must be {{\"version\", \"config\", \"budget\", \"reuse\", \"reason\"}}: {error}"
        );
        RequestError::new(ErrorKind::BadRequest, message)
    })?;
    let by = by(&actor, &order.reason)?;
    let done = on_desk(&site, turn, move |desk| {
        let sha256 = match full_version(&desk.versions(&slot)?, &order.version) {
            Ok(sha256) => sha256,
            Err(error) => return Ok(Err(error)),
        };
        let activation = Activation {
            slot,
            sha256,
            config: order.config,
            budget: order.budget,
            reuse: order.reuse,
        };
        desk.submit(Order::Activate(activation), &by).map(Ok)
    });
    match done.await? {
        Ok(done) => Ok(told(done?)),
        Err(error) => Ok(refusal(error)),
    }
}

/// What a change is answered: the record that it made, or the proposal that waits.
pub(super) fn told(done: Done) -> Response {
    match done {
        Done::Bound(binding) => Json(binding).into_response(),
        Done::Rollout(rollout) => Json(rollout).into_response(),
        Done::Unbound => StatusCode::NO_CONTENT.into_response(),
        Done::Proposed(proposal) => {
            let body = serde_json::json!({ "proposal": proposal });
            (StatusCode::ACCEPTED, Json(body)).into_response()
        }
    }
}

pub(super) async fn unbind(
    State(site): State<Arc<Site>>,
    path: SlotPath,
    query: Result<Query<ReasonQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, RequestError> {
    let (slot, actor) = enter(&site, path, &headers)?;
    let by = by(&actor, &errors::query(query)?.reason)?;
    let turn = turn_to_change(&site, &slot.scope, &headers)?;
    match on_desk(&site, turn, move |desk| desk.submit(Order::Unbind(slot), &by)).await? {
        Ok(done) => Ok(told(done)),
        Err(error) => Ok(refusal(error)),
    }
}

pub(super) async fn slot(
    State(site): State<Arc<Site>>,
    path: SlotPath,
    headers: HeaderMap,
) -> Result<Response, RequestError> {
    let (slot, _) = enter(&site, path, &headers)?;
    let turn = turn(&site, &slot.scope)?;
    let body = on_desk(&site, turn, move |desk| {
        let body = slot_body(desk, &slot, &desk.list()?)?;
        let history = Some(desk.history(&slot)?);
        Ok(SlotBody { history, ..body })
    });
    match body.await? {
        Ok(body) => Ok(Json(body).into_response()),
        Err(error) => Ok(refusal(error)),
    }
}

pub(super) async fn list(
    State(site): State<Arc<Site>>,
    tenant: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, RequestError> {
    let tenant = errors::path(tenant)?;
    let (scope, _) = scope(&site, &tenant, &headers)?;
    let turn = turn(&site, &scope)?;
    let policies = on_desk(&site, turn, move |desk| {
        let bindings = desk.list()?;
        let slots = QuestionKind::ALL.map(|question| PolicySlot::new(scope.clone(), question));
        slots
            .iter()
            .map(|slot| slot_body(desk, slot, &bindings))
            .collect::<Result<Vec<_>, _>>()
    });
    match policies.await? {
        Ok(policies) => Ok(Json(PoliciesBody { tenant, policies }).into_response()),
        Err(error) => Ok(refusal(error)),
    }
}

fn slot_body(
    desk: &PolicyDesk,
    slot: &PolicySlot,
    bindings: &[BindingRecord],
) -> Result<SlotBody, DeskError> {
    let binding = bindings
        .iter()
        .find(|b| b.scope == slot.scope && b.question == slot.question);
    let versions = desk.versions(slot)?;
    let in_force = binding.and_then(|b| versions.iter().find(|version| version.sha256 == b.sha256));
    Ok(SlotBody {
        question: slot.question,
        binding: binding.cloned(),
        signature_findings: in_force
            .map(|version| desk.signature_findings(slot, version))
            .unwrap_or_default(),
        versions,
        unavailable: desk.missing(slot),
        rollout: desk.rollout(slot)?,
        counts: desk.counts(slot),
        history: None,
    })
}

/// The slot of a path, when the caller may change it, and the name the audit log gives the caller.
pub(super) fn enter(
    site: &Site,
    path: SlotPath,
    headers: &HeaderMap,
) -> Result<(PolicySlot, String), RequestError> {
    let (tenant, question) = errors::path(path)?;
    let (scope, actor) = scope(site, &tenant, headers)?;
    let question = question.parse::<QuestionKind>().map_err(|error| {
        RequestError::new(ErrorKind::NotFound, error.to_string()).with_code("unknown_question")
    })?;
    Ok((PolicySlot::new(scope, question), actor))
}

pub(super) fn scope(site: &Site, tenant: &str, headers: &HeaderMap) -> Result<(Scope, String), RequestError> {
    let key = auth::key(site, headers)?;
    let actor = key.actor();
    if tenant == PLATFORM {
        return match key.principal {
            Principal::Operator => Ok((Scope::Platform, actor)),
            Principal::Tenant(_) => Err(operator_only()),
        };
    }
    let named = TenantName::new(tenant).ok();
    match key.principal {
        Principal::Tenant(own) if named.as_ref() == Some(&own) => Ok((Scope::Tenant(own), actor)),
        // Whether another tenant exists is none of the caller's business.
        Principal::Tenant(_) => Err(RequestError::new(
            ErrorKind::Forbidden,
            "this key opens its own tenant's policies only",
        )),
        Principal::Operator => {
            let missing = || {
                RequestError::new(ErrorKind::NotFound, "there is no such tenant")
                    .with_code("tenant_not_found")
            };
            let name = named.ok_or_else(missing)?;
            let known = site.parts.store.tenant(&name).map_err(|error| {
                RequestError::new(ErrorKind::Internal, "the tenant could not be looked up").with_detail(error)
            })?;
            known.ok_or_else(missing)?;
            Ok((Scope::Tenant(name), actor))
        }
    }
}

/// One of a tenant's places at the desk; the operator's are not counted.
pub(super) struct Turn(#[expect(dead_code, reason = "held until it is dropped")] Option<TenantPass>);

/// Takes a place, before the request's body is read: work at the desk compiles, and waits for the disk.
pub(super) fn turn(site: &Site, scope: &Scope) -> Result<Turn, RequestError> {
    let Scope::Tenant(tenant) = scope else {
        return Ok(Turn(None));
    };
    let pass = site.at_desk.enter(tenant).ok_or_else(|| {
        let text = "this tenant has too many policy calls under way; wait for some to end";
        let error = RequestError::new(ErrorKind::RateLimited, text).with_code("tenant_limit");
        RequestError {
            retry_after: Some(Duration::from_secs(1)),
            ..error
        }
    })?;
    Ok(Turn(Some(pass)))
}

/// The same, for a change that is no upload: those of a tenant's own keys are counted.
pub(super) fn turn_to_change(site: &Site, scope: &Scope, headers: &HeaderMap) -> Result<Turn, RequestError> {
    if let Principal::Tenant(tenant) = auth::principal(site, headers)?
        && !site.may_change(&tenant)
    {
        let text = "a tenant may change its policies 240 times an hour with its own keys; one more is possible every 15 s";
        return Err(RequestError {
            retry_after: Some(Duration::from_secs(15)),
            ..RequestError::new(ErrorKind::RateLimited, text).with_code("change_quota")
        });
    }
    turn(site, scope)
}

/// Who asks, and why, for the audit log.
pub(super) fn by(actor: &str, reason: &str) -> Result<By, RequestError> {
    if reason.len() > REASON_MAX_BYTES {
        let message = format!(
            "reason has {} bytes, at most {REASON_MAX_BYTES} are kept",
            reason.len()
        );
        return Err(RequestError::bad_field("reason", message));
    }
    Ok(By::new(actor, reason))
}

/// Runs what blocks on the disk or on a compiler off the serving threads.
pub(super) async fn on_desk<T: Send + 'static>(
    site: &Arc<Site>,
    turn: Turn,
    work: impl FnOnce(&PolicyDesk) -> Result<T, DeskError> + Send + 'static,
) -> Result<Result<T, DeskError>, RequestError> {
    let desk = Arc::clone(&site.parts.desk);
    // The turn goes along: a client that left has work under way all the same.
    let work = move || {
        let _turn = turn;
        work(&desk)
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        RequestError::new(ErrorKind::Internal, "the change broke inside the gateway").with_detail(error)
    })
}

/// The whole SHA-256 that `asked`, its beginning, stands for.
pub(super) fn full_version(versions: &[VersionRecord], asked: &str) -> Result<String, RequestError> {
    let asked = asked.to_ascii_lowercase();
    if asked.len() < PREFIX_MIN_DIGITS {
        let message = format!("version must be a SHA-256 or at least its first {PREFIX_MIN_DIGITS} digits");
        return Err(RequestError::bad_field("version", message));
    }
    let mut found = versions
        .iter()
        .map(|version| &version.sha256)
        .filter(|sha256| sha256.starts_with(&asked));
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(only.clone()),
        (Some(_), Some(_)) => Err(RequestError::bad_field(
            "version",
            "version begins several stored versions; send more digits",
        )),
        (None, _) => {
            let message = "no stored version of this question begins with that";
            Err(RequestError {
                param: Some("version".to_owned()),
                ..RequestError::new(ErrorKind::NotFound, message)
            }
            .with_code("version_not_found"))
        }
    }
}

/// What a client is told when the desk did not do it: OpenAI's error, and beside it what the check found.
pub(super) fn refusal(error: DeskError) -> Response {
    let text = error.to_string();
    match error {
        DeskError::Rejected(report) => {
            let error = RequestError::new(ErrorKind::BadRequest, text).with_code("policy_rejected");
            with_findings(StatusCode::UNPROCESSABLE_ENTITY, error, &report.findings)
        }
        DeskError::CompileLimit(report) => {
            let error = RequestError::new(ErrorKind::TooLarge, text).with_code("compile_limit");
            with_findings(StatusCode::PAYLOAD_TOO_LARGE, error, &report.findings)
        }
        DeskError::CompilerBusy(_) => RequestError::unavailable(text, COMPILER_FREE_AGAIN)
            .with_code("compiler_busy")
            .into_response(),
        DeskError::NotFound(_) => RequestError::new(ErrorKind::NotFound, text)
            .with_code("policy_not_found")
            .into_response(),
        DeskError::BadName(_) => RequestError::bad_field("name", text).into_response(),
        DeskError::BadBudget(_) => RequestError::bad_field("budget", text).into_response(),
        DeskError::Pinned { .. } => RequestError::new(ErrorKind::Conflict, text)
            .with_code("policy_pinned")
            .into_response(),
        DeskError::NeedsApproval(_) => RequestError::new(ErrorKind::Conflict, text)
            .with_code("approval_needed")
            .into_response(),
        DeskError::NotYours(_) => RequestError::new(ErrorKind::Forbidden, text)
            .with_code("own_proposal")
            .into_response(),
        DeskError::TooManyUploads { frees_in, .. } => RequestError {
            retry_after: Some(frees_in),
            ..RequestError::new(ErrorKind::RateLimited, text)
        }
        .with_code("upload_quota")
        .into_response(),
        DeskError::StoreFull { .. } => RequestError::new(ErrorKind::Conflict, text)
            .with_code("stored_quota")
            .into_response(),
        DeskError::NotCompiled | DeskError::Conflict(_) => RequestError::new(ErrorKind::Conflict, text)
            .with_code("policy_conflict")
            .into_response(),
        DeskError::NotShared(SharedError::ChangedElsewhere) => RequestError::new(ErrorKind::Conflict, text)
            .with_code("changed_elsewhere")
            .into_response(),
        DeskError::NotShared(_) => RequestError::new(ErrorKind::Unavailable, text)
            .with_code("fleet_unreachable")
            .into_response(),
        DeskError::ConfigTooLong(_) => RequestError::bad_field("config", text).into_response(),
        DeskError::Store(error) => {
            let message = "the policy store failed; nothing was changed";
            RequestError::new(ErrorKind::Internal, message)
                .with_detail(error)
                .into_response()
        }
    }
}

fn with_findings(status: StatusCode, error: RequestError, findings: &[Finding]) -> Response {
    let body = serde_json::json!({
        "error": {
            "message": error.message,
            "type": "invalid_request_error",
            "param": null,
            "code": error.code,
        },
        "findings": findings,
    });
    let mut response = (status, Json(body)).into_response();
    errors::describe(&mut response, error);
    response
}
