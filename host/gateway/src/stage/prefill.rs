//! prefill: the uncached part of the prompt, computed at this site.

use super::journey::{Fault, Journey, Leg, Prefiller};
use portolan_ports::{HeldPrefix, InstanceOutcome, KvPiece, KvSet, PrefillJob};
use std::sync::Arc;
use tokio::sync::mpsc;

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
        let job = PrefillJob {
            request: self.id(),
            key: self.key,
            about: Arc::clone(&self.about),
            tokens,
            held: held.tokens,
            retention: leg.keep_there,
            cancel: leg.cancel.clone(),
        };
        let (pieces_in, mut pieces_out) = mpsc::unbounded_channel::<KvPiece>();
        let limit = self.site.parts.timeouts.prefill(&leg.facts);
        let prefill = engine.prefill(job, pieces_in);
        let report = match leg.patience.prefill_elsewhere {
            true => tokio::time::timeout(limit, prefill).await,
            false => Ok(prefill.await),
        };
        self.note_stage("prefill", begun);
        let report = report.map_err(|_| Fault::Slow {
            instance: leg.route.prefill,
            at: leg.prefill_at(),
            stage: "prefill",
            limit,
        })?;
        let report = report.map_err(|error| Fault::Engine {
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
        while let Ok(piece) = pieces_out.try_recv() {
            pieces.push(piece);
        }
        Ok(KvSet::assemble(layout, count, pieces)?)
    }
}
