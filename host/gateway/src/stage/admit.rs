//! admit: the limit on requests in flight; the policies' versions are fixed here.

use super::journey::{Journey, millis_between};
use crate::accepted::Accepted;
use crate::answer::AnswerEvent;
use crate::error::{ErrorKind, RequestError};
use crate::records::RUNNING;
use crate::rollout;
use crate::site::Site;
use portolan_base::{Provenance, Scope};
use portolan_decide::PathRecord;
use portolan_decide::record::{KvRecord, StageRecord};
use portolan_policy::RequestRow;
use portolan_ports::Cancel;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// When a client that was turned away may come back. One second: about the time of one answer.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Lets a request in, or turns it away.
pub(super) fn admit(
    site: Arc<Site>,
    request: Accepted,
    cancel: Cancel,
    events: mpsc::UnboundedSender<AnswerEvent>,
) -> Result<Journey, RequestError> {
    let arrived = site.parts.clock.now();
    if site.is_draining() {
        let text = "this site is being taken out of service; send the request to another one";
        return Err(RequestError::unavailable(text, RETRY_AFTER).with_code("site_draining"));
    }
    let permit = Arc::clone(&site.permits).try_acquire_owned().map_err(|_| {
        let text = "too many requests are in flight at this site; try again";
        RequestError::unavailable(text, RETRY_AFTER).with_code("overloaded")
    })?;
    let answers = request.original.as_ref().map_or(1, |original| original.answers);
    let tenant_pass = site
        .tenants
        .enter_with(&request.tenant.name, answers)
        .ok_or_else(RequestError::tenant_limit)?;
    let Some(model) = site.parts.models.get(&request.model) else {
        let text = format!("the model {} is not served here", request.model);
        return Err(RequestError::new(ErrorKind::NotFound, text).with_code("model_not_found"));
    };
    let layout = &model.description.layout;
    // Taken once: the request finishes on the version it began with.
    let version = site.model_version(layout);
    let about = Arc::new(Provenance {
        scope: Scope::Tenant(request.tenant.name.clone()),
        model: request.model.clone(),
        model_version: version,
        jurisdiction: request.tenant.jurisdiction.clone(),
        dependencies: request.dependencies.as_slice().into(),
    });
    let key = site.cache_key(&request.tenant.name, (layout, version), &request.prompt);
    let key = match &request.cache_salt {
        Some(salt) => key.salted(salt),
        None => key,
    };
    let draw = rollout::draw(&site.parts.secret, &request);
    let policies = site.parts.desk.table().for_tenant(&request.tenant.name, draw);
    let mut record = blank_record(&request);
    let accept_end = millis_between(request.at, arrived);
    record.stages.push(stage("accept", 0.0, accept_end));
    record.stages.push(stage(
        "admit",
        accept_end,
        millis_between(request.at, site.parts.clock.now()),
    ));
    site.records.put(record.clone());
    site.retries.lock().request();
    let fleet = site.parts.fleet.view();
    Ok(Journey {
        site,
        request,
        policies,
        chain: Vec::new(),
        fleet,
        key,
        about,
        cancel,
        events,
        record,
        placements: None,
        offered: None,
        at: "admit",
        since_ms: 0.0,
        passes: Some((permit, tenant_pass)),
    })
}

fn stage(name: &str, start_ms: f64, end_ms: f64) -> StageRecord {
    StageRecord {
        name: name.to_owned(),
        start_ms,
        end_ms,
    }
}

fn blank_record(request: &Accepted) -> PathRecord {
    PathRecord {
        request_id: request.id.clone(),
        trace_id: request.trace_id.clone(),
        tenant: request.tenant.name.clone(),
        model: request.model.as_str().to_owned(),
        accepted_ms: request.at.millis(),
        prompt_tokens: u32::try_from(request.prompt.len()).unwrap_or(u32::MAX),
        completion_tokens: 0,
        ttft_ms: None,
        route: None,
        request: RequestRow::default(),
        labels: request.labels.clone(),
        candidates: Vec::new(),
        left_out: Vec::new(),
        policies: Vec::new(),
        shadows: Vec::new(),
        placements: Vec::new(),
        verdicts: Vec::new(),
        stages: Vec::new(),
        kv: KvRecord::default(),
        fetches: Vec::new(),
        fallbacks: Vec::new(),
        status: RUNNING.to_owned(),
        error: None,
    }
}
