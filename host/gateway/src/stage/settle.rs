//! settle: on every exit, cancellation too: release what is held, write the path record, count.

use super::journey::{Fault, Journey};
use crate::rollout;
use portolan_ports::InstanceOutcome;

/// Ends a request.
pub(super) fn settle(journey: &mut Journey, end: &Result<(), Fault>) {
    let begun = journey.elapsed_ms();
    // Whoever still works for this request stops.
    journey.cancel.cancel();
    if let Err(fault) = end
        && let Some(instance) = fault.blames()
    {
        journey
            .site
            .parts
            .fleet
            .outcome(instance, InstanceOutcome::Failed);
    }
    let (status, error) = match end {
        Ok(()) => ("ok", None),
        Err(Fault::Cancelled) => ("cancelled", None),
        Err(fault) => ("failed", Some(fault.to_string())),
    };
    journey.record.status = status.to_owned();
    journey.record.error = error;
    if status == "ok" {
        let (tenant, produced) = (&journey.request.tenant.name, journey.record.completion_tokens);
        journey.site.outputs.observe(tenant, produced);
    }
    journey.note_stage("settle", begun);
    let record = journey.record.clone();
    tracing::info!(
        request = %record.request_id, tenant = %record.tenant, status,
        prompt_tokens = record.prompt_tokens, completion_tokens = record.completion_tokens,
        ttft_ms = record.ttft_ms, kv_bytes = record.kv.bytes_moved, fallbacks = record.fallbacks.len(),
        error = record.error, "settled"
    );
    journey.site.metrics.observe(&record);
    journey.site.records.put(record.clone());
    journey.passes.take();
    rollout::follow_up(&journey.site, &journey.policies.shadows, &record);
}
