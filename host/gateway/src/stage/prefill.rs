//! prefill: the uncached part of the prompt, computed at this site.

use super::hedge::{Computed, compute};
use super::journey::{Fault, Journey, Leg, Prefiller};
use portolan_ports::{HeldPrefix, InstanceOutcome, KvSet};
use std::sync::Arc;

impl Journey {
    /// Runs prefill on an instance of this site and returns the whole KV.
    pub(super) async fn prefill(&mut self, leg: &Leg, held: HeldPrefix) -> Result<KvSet, Fault> {
        let tokens = self.prefill_tokens();
        let layout = Arc::clone(&leg.decoder.describe().layout);
        let Prefiller::Here(engine) = &leg.prefiller else {
            return Err(Fault::InstanceGone(leg.names.prefill_instance.clone()));
        };
        if tokens.is_empty() {
            return Ok(KvSet::empty(layout));
        }
        let begun = self.enter("prefill");
        let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let limit = self.site.live().timeouts.prefill(&leg.facts);
        let prefill = compute(engine.as_ref(), self.prefill_job(leg, held.tokens));
        let computed = match leg.patience.prefill_elsewhere {
            true => tokio::time::timeout(limit, prefill).await,
            false => Ok(prefill.await),
        };
        self.note_stage("prefill", begun);
        let computed = computed.map_err(|_| Fault::Slow {
            instance: leg.route.prefill,
            at: leg.prefill_at(),
            stage: "prefill",
            limit,
        })?;
        let Computed {
            pieces: computed,
            report,
        } = computed.map_err(|error| Fault::Engine {
            instance: leg.route.prefill,
            error,
        })?;
        self.site
            .parts
            .fleet
            .outcome(leg.route.prefill, InstanceOutcome::Served);
        self.record.kv.cached_tokens = report.cached.max(held.tokens);
        self.record.kv.computed_tokens += report.computed;
        let mut pieces = held.pieces;
        pieces.extend(computed);
        Ok(KvSet::assemble(layout, count, pieces)?)
    }
}
