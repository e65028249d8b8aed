//! What a settled request says about versions: it is counted against their budgets, and their shadows are asked.
//! Nothing here is on a request's way.

use crate::accepted::Accepted;
use crate::policies::Breach;
use crate::site::Site;
use portolan_base::{TenantKey, TenantName};
use portolan_decide::{Draw, PathRecord, PolicyRecord, ShadowRecord, shadow};
use portolan_policy::Policy;
use std::sync::Arc;

/// Requests whose shadows are asked at the same time at one site: half the threads of the runtime's slow lane, so that
/// slow shadows leave room for calls that count. One request more is not compared, and counted as dropped.
pub(crate) const SHADOWS_AT_ONCE: usize = 2;

/// The request's place in the draw between versions.
pub(crate) fn draw(secret: &[u8; 32], request: &Accepted) -> Draw {
    // No model is named by the empty text: the key is this draw's alone, and a conversation keeps its version when it
    // changes its model.
    let key = TenantKey::derive(secret, request.tenant.name.as_str(), "", 0);
    let drawn_by = request.session.as_deref().unwrap_or(request.id.as_str());
    Draw::of(key.opaque(drawn_by))
}

/// Takes note of calls: a tenant's are `tenant`'s. Where a budget is spent, its version is taken out of force.
pub(crate) fn count_calls(site: &Arc<Site>, tenant: Option<&TenantName>, calls: &[PolicyRecord]) {
    for breach in site.parts.desk.observe_calls(tenant, calls) {
        let site = Arc::clone(site);
        tokio::task::spawn_blocking(move || enforce(&site, &breach));
    }
}

/// Takes note of a request that was settled.
pub(crate) fn follow_up(site: &Arc<Site>, shadows: &[Arc<dyn Policy>], record: &PathRecord) {
    count_calls(site, Some(&record.tenant), &record.policies);
    if shadows.is_empty() {
        return;
    }
    let Ok(permit) = Arc::clone(&site.shadow_permits).try_acquire_owned() else {
        for shadow in shadows {
            site.metrics.shadow_dropped(shadow.descriptor().question);
        }
        return;
    };
    let (site, shadows, record) = (Arc::clone(site), shadows.to_vec(), record.clone());
    tokio::task::spawn_blocking(move || {
        ask(&site, &shadows, record);
        drop(permit);
    });
}

fn enforce(site: &Site, breach: &Breach) {
    match site.parts.desk.enforce(breach) {
        Ok(Some(done)) => site.metrics.enforced(breach.slot.question, done),
        Ok(None) => {}
        Err(error) => {
            let (slot, version) = (&breach.slot, &breach.version);
            tracing::error!(%slot, version, %error, "a policy whose budget is spent could not be taken out of force");
        }
    }
}

fn ask(site: &Site, shadows: &[Arc<dyn Policy>], record: PathRecord) {
    let clock = site.parts.clock.as_ref();
    let asked: Vec<ShadowRecord> = shadows
        .iter()
        .filter_map(|policy| shadow::ask(policy.as_ref(), &record, clock))
        .collect();
    if asked.is_empty() {
        return;
    }
    site.parts.desk.observe_shadows(&record, &asked);
    for shadow in &asked {
        site.metrics.shadow(shadow);
    }
    site.records.put(PathRecord {
        shadows: asked,
        ..record
    });
}
