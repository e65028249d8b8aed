//! What happened and what is: path records, the fleet, the audit log.

use super::models::List;
use super::{auth, errors};
use crate::error::{ErrorKind, RequestError};
use crate::site::Site;
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use portolan_base::{Moment, RequestId};
use portolan_decide::record::SiteVerdict;
use portolan_decide::{FleetView, InstanceView, LinkView, PathRecord, SiteIndex, SiteView};
use portolan_policy::NameTables;
use portolan_ports::{AuditRecord, Member, Principal, QuarantinedSet};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Entries of a list when the client names no number: one screen.
const LIST_DEFAULT: usize = 20;

/// Most entries of a list: a path record has some 10 kB, so that the longest list stays near 10 MB.
const LIST_MAX: usize = 1000;

/// How many entries are given when so many are asked for.
pub(super) fn list_length(asked: Option<usize>) -> usize {
    asked.unwrap_or(LIST_DEFAULT).min(LIST_MAX)
}

pub(super) async fn request(
    State(site): State<Arc<Site>>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Json<Arc<PathRecord>>, RequestError> {
    record_of(&site, id, &headers).map(Json)
}

/// Which sites were allowed to see the data of a request, and why.
#[derive(Debug, Serialize)]
pub(super) struct ResidencyBody {
    request_id: String,
    tenant: String,
    /// The jurisdiction that the data was bound to; empty: none.
    jurisdiction: String,
    status: String,
    /// In the order of the configuration; empty: the request ended before residency was asked.
    sites: Vec<SiteVerdict>,
}

pub(super) async fn residency(
    State(site): State<Arc<Site>>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Json<ResidencyBody>, RequestError> {
    let record = record_of(&site, id, &headers)?;
    let names = site.parts.fleet.names();
    let bound = record.request.jurisdiction;
    let jurisdiction = names.jurisdictions.get(bound as usize).filter(|_| bound != 0);
    Ok(Json(ResidencyBody {
        request_id: record.request_id.as_str().to_owned(),
        tenant: record.tenant.to_string(),
        jurisdiction: jurisdiction.cloned().unwrap_or_default(),
        status: record.status.clone(),
        sites: record.verdicts.clone(),
    }))
}

fn record_of(
    site: &Site,
    id: Result<Path<String>, PathRejection>,
    headers: &HeaderMap,
) -> Result<Arc<PathRecord>, RequestError> {
    let principal = auth::principal(site, headers)?;
    let id = RequestId::from_client(&errors::path(id)?);
    // Another tenant's request looks exactly like one that never was.
    let record = id.and_then(|id| match &principal {
        Principal::Operator => site.records.find(&id),
        Principal::Tenant(tenant) => site.records.get(tenant, &id),
    });
    record.ok_or_else(|| {
            let message = "no request of this id is remembered here: ask the site that took it; of several answers \
                           each has its own, ID-1 and so on; a request that was not understood has none, and the \
                           oldest are forgotten first";
            RequestError::new(ErrorKind::NotFound, message).with_code("request_not_found")
    })
}

/// Which lines of the audit log are wanted.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditQuery {
    limit: Option<usize>,
    /// Whose: a tenant, or `_platform`.
    tenant: Option<String>,
    /// Not older than so many seconds.
    since_s: Option<u64>,
}

impl AuditQuery {
    fn wants(&self, line: &AuditRecord, now: Moment) -> bool {
        let age = now.0.saturating_sub(line.at.0) / 1_000_000;
        self.since_s.is_none_or(|since| age <= since)
            && self.tenant.as_deref().is_none_or(|tenant| line.is_about(tenant))
    }
}

pub(super) async fn audit(
    State(site): State<Arc<Site>>,
    query: Result<Query<AuditQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Json<List<AuditRecord>>, RequestError> {
    auth::operator(&site, &headers)?;
    let query = errors::query(query)?;
    let limit = list_length(query.limit);
    let (store, now) = (Arc::clone(&site.parts.store), site.parts.clock.now());
    // What is left out is read as well.
    let read = if query.tenant.is_none() { limit } else { usize::MAX };
    let chosen = move || {
        let mut lines = store.audit(read)?;
        lines.retain(|line| query.wants(line, now));
        lines.truncate(limit);
        Ok::<_, portolan_ports::StoreError>(lines)
    };
    let lines = tokio::task::spawn_blocking(chosen).await;
    let broken = |detail: String| {
        RequestError::new(ErrorKind::Internal, "the audit log could not be read").with_detail(detail)
    };
    let lines = lines.map_err(|error| broken(error.to_string()))?;
    lines
        .map(|lines| Json(List::of(lines)))
        .map_err(|error| broken(error.to_string()))
}

/// KV sets that came damaged twice, with what was found wrong.
pub(super) async fn quarantine(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
) -> Result<Json<List<QuarantineBody>>, RequestError> {
    auth::operator(&site, &headers)?;
    let sets = site.parts.transport.quarantine();
    Ok(Json(List::of(sets.into_iter().map(quarantine_body).collect())))
}

#[derive(Debug, Serialize)]
pub(super) struct QuarantineBody {
    set: String,
    site: String,
    tenant: String,
    model: String,
    model_version: u64,
    instance: String,
    age_s: u64,
    evidence: Vec<EvidenceBody>,
}

#[derive(Debug, Serialize)]
struct EvidenceBody {
    transfer: String,
    request: String,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    layer: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<(u32, u32)>,
    /// As text: JSON numbers end at 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    expected_checksum: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    found_checksum: Option<String>,
}

fn quarantine_body(set: QuarantinedSet) -> QuarantineBody {
    let hex = |sum: u64| format!("{sum:016x}");
    let evidence = set.evidence.into_iter().map(|e| EvidenceBody {
        transfer: e.transfer,
        request: e.request.as_str().to_owned(),
        detail: e.detail,
        chunk: e.chunk,
        layer: e.layer,
        tokens: e.tokens,
        expected_checksum: e.expected_checksum.map(hex),
        found_checksum: e.found_checksum.map(hex),
    });
    QuarantineBody {
        set: set.id,
        site: set.peer.to_string(),
        tenant: set.tenant.to_string(),
        model: set.model.to_string(),
        model_version: set.model_version,
        instance: set.instance.to_string(),
        age_s: set.age.as_secs(),
        evidence: evidence.collect(),
    }
}

/// The fleet as JSON, indices replaced by names.
#[derive(Debug, Serialize)]
pub(super) struct FleetBody {
    sites: Vec<SiteBody>,
    instances: Vec<InstanceBody>,
    links: Vec<LinkBody>,
    offload_threshold_tokens: u32,
    congestion_mark_permille: u32,
}

#[derive(Debug, Serialize)]
struct SiteBody {
    name: String,
    region: String,
    jurisdiction: String,
    #[serde(flatten)]
    presence: Option<PresenceBody>,
}

/// Whether a site is there, as this one knows it.
#[derive(Debug, Serialize)]
struct PresenceBody {
    /// `here`, `up`, `draining`, `left`, `silent` or `unheard`.
    state: &'static str,
    /// Greater at each of its starts. As text: JSON numbers end at 2^53.
    incarnation: String,
    /// How long ago it was heard of.
    heard_ms_ago: Option<u64>,
}

#[derive(Debug, Serialize)]
struct InstanceBody {
    name: String,
    site: String,
    model: String,
    role: portolan_ports::Role,
    ready: bool,
    /// `ready`, `returning`, `warming_up`, `draining`, `broken` or `silent`.
    standing: &'static str,
    prefill_queued_requests: u32,
    prefill_queued_tokens: u32,
    decode_running: u32,
    decode_slots: u32,
    kv_used_permille: u32,
    prefill_busy_permille: u32,
    decode_busy_permille: u32,
    prefill_ns_per_token: u64,
    decode_step_us: u32,
    price_micros_per_kilotoken: u32,
    /// How old its load is; none where it was never heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    load_age_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
struct LinkBody {
    from: String,
    to: String,
    up: bool,
    rtt_us: u64,
    capacity_bits_per_second: u64,
    busy_permille: u32,
    loss_permille: u32,
    throughput_bits_per_second: u64,
    delivery_bits_per_second: u64,
    retransmits_permille: u32,
    quarantined_sets: u64,
    price_micros_per_gib: u32,
}

pub(super) async fn fleet(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
) -> Result<Json<FleetBody>, RequestError> {
    auth::operator(&site, &headers)?;
    let (view, names) = (site.parts.fleet.view(), site.parts.fleet.names());
    let (members, ages) = (site.parts.fleet.members(), site.parts.fleet.load_ages());
    let sites = (0..)
        .zip(&view.sites)
        .map(|(i, s)| site_body(s, (i, members.get(i)), &names))
        .collect();
    let instances = (0..)
        .zip(&view.instances)
        .map(|(i, instance)| InstanceBody {
            load_age_ms: ages.get(i).copied().flatten().map(millis),
            ..instance_body(instance, &view, &names)
        })
        .collect();
    let links = view
        .links
        .iter()
        .map(|(ends, link)| link_body(*ends, link, &view))
        .collect();
    Ok(Json(FleetBody {
        sites,
        instances,
        links,
        offload_threshold_tokens: view.offload_threshold.0,
        congestion_mark_permille: view.congestion_mark.0,
    }))
}

fn site_body(site: &SiteView, (index, member): (usize, Option<&Member>), names: &NameTables) -> SiteBody {
    SiteBody {
        name: site.name.to_string(),
        region: names
            .sites
            .get(index)
            .map(|entry| entry.region.clone())
            .unwrap_or_default(),
        jurisdiction: named(&names.jurisdictions, site.jurisdiction),
        presence: member.map(|member| PresenceBody {
            state: member.state.as_str(),
            incarnation: member.incarnation.to_string(),
            heard_ms_ago: member.age.map(millis),
        }),
    }
}

fn millis(age: Duration) -> u64 {
    u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
}

fn instance_body(instance: &InstanceView, view: &FleetView, names: &NameTables) -> InstanceBody {
    InstanceBody {
        name: instance.name.to_string(),
        site: site_name(view, instance.site),
        model: named(&names.models, instance.model),
        role: instance.role,
        ready: instance.standing.is_ready(),
        standing: instance.standing.as_str(),
        prefill_queued_requests: instance.prefill_queued_requests,
        prefill_queued_tokens: instance.prefill_queued_tokens,
        decode_running: instance.decode_running,
        decode_slots: instance.decode_slots,
        kv_used_permille: instance.kv_used.0,
        prefill_busy_permille: instance.prefill_busy.0,
        decode_busy_permille: instance.decode_busy.0,
        prefill_ns_per_token: instance.prefill_ns_per_token,
        decode_step_us: instance.decode_step_us,
        price_micros_per_kilotoken: instance.price_micros_per_kilotoken,
        load_age_ms: None,
    }
}

fn link_body((from, to): (SiteIndex, SiteIndex), link: &LinkView, view: &FleetView) -> LinkBody {
    LinkBody {
        from: site_name(view, from),
        to: site_name(view, to),
        up: link.up,
        rtt_us: u64::try_from(link.rtt.as_micros()).unwrap_or(u64::MAX),
        capacity_bits_per_second: link.capacity.0,
        busy_permille: link.busy.0,
        loss_permille: link.loss.0,
        throughput_bits_per_second: link.measured.throughput.0,
        delivery_bits_per_second: link.measured.delivery.0,
        retransmits_permille: link.measured.retransmits.0,
        quarantined_sets: link.measured.quarantined,
        price_micros_per_gib: link.price_micros_per_gib,
    }
}

fn site_name(view: &FleetView, index: SiteIndex) -> String {
    view.site(index)
        .map(|site| site.name.to_string())
        .unwrap_or_default()
}

fn named(names: &[String], index: u32) -> String {
    names.get(index as usize).cloned().unwrap_or_default()
}
