//! settle: on every exit, cancellation too: release what is held, write the path record, count.

mod ahead;
mod replica;
mod served;

use super::journey::{Fault, Journey};
use crate::rollout;
use portolan_base::Tokens;
use portolan_decide::{PathRecord, RequestKind};
use portolan_policy::Placement;
use std::sync::Arc;

/// Ends a request; what it left.
pub(super) fn settle(mut journey: Journey, end: &Result<(), Fault>) -> Arc<PathRecord> {
    // A stage that was dropped in the middle has not noted itself.
    if matches!(end, Err(Fault::Cancelled | Fault::Stopping))
        && journey.record.stages.last().is_none_or(|s| s.name != journey.at)
    {
        journey.note_stage(journey.at, journey.since_ms);
    }
    let begun = journey.elapsed_ms();
    journey.release_offer();
    // Whoever still works for this request stops.
    journey.cancel.cancel();
    if let Err(fault) = end {
        journey.blame(fault);
    }
    let (status, error) = match end {
        Ok(()) => ("ok", None),
        Err(Fault::Cancelled) => (
            "cancelled",
            Some(format!("the client left during {}", journey.at)),
        ),
        Err(Fault::Refused(error)) => ("refused", Some(error.message.clone())),
        Err(fault) => ("failed", Some(fault.to_string())),
    };
    journey.record.status = status.to_owned();
    journey.record.error = error;
    if status == "ok" {
        learn(&journey);
        replica::note_ask(&journey);
        ahead::note_visit(&journey);
        served::note(&journey);
    }
    // A site that may not see the data keeps nothing that the client said about it either.
    if is_denied_here(&journey) {
        journey.record.labels.clear();
        journey.record.trace_id = None;
    }
    journey.note_stage("settle", begun);
    let record = Arc::new(journey.record);
    let route = record.route.as_ref();
    tracing::info!(
        request = %record.request_id, tenant = %record.tenant, site = %journey.site.parts.name, status,
        model = record.model,
        prefill = route.map(|r| format!("{}/{}", r.prefill_site, r.prefill_instance)),
        decode = route.map(|r| format!("{}/{}", r.decode_site, r.decode_instance)),
        prompt_tokens = record.prompt_tokens, completion_tokens = record.completion_tokens,
        ttft_ms = record.ttft_ms, total_ms = begun, kv_bytes = record.kv.bytes_moved,
        cached_tokens = record.kv.cached_tokens, fallbacks = record.fallbacks.len(),
        error = record.error, "settled"
    );
    journey.site.metrics.observe(&record);
    journey.site.records.put(Arc::clone(&record));
    drop(journey.passes);
    rollout::follow_up(&journey.site, &journey.policies.shadows, &record);
    record
}

/// Notes what the request computed and produced. A prompt that was computed ahead has no answer, and says nothing of how
/// long answers are.
fn learn(journey: &Journey) {
    if journey.request.kind == RequestKind::Prewarm {
        return;
    }
    let (tenant, produced) = (&journey.request.tenant.name, journey.record.completion_tokens);
    journey.site.outputs.observe(tenant, produced);
    let uncached = Tokens(journey.record.kv.computed_tokens);
    journey.site.parts.fleet.settled(uncached, produced);
}

/// Whether the residency answer denies the data of a request to the site that it came in at: no plan was made then.
fn is_denied_here(journey: &Journey) -> bool {
    let own = journey.site.parts.name.as_str();
    let mut verdicts = journey.record.verdicts.iter();
    verdicts.any(|verdict| verdict.site == own && verdict.placement == Placement::Denied)
}
