//! transfer: prefill at another site, its KV streaming here while it runs.

use super::journey::{Fault, Journey, Leg, Prefiller};
use portolan_base::{InstanceName, SiteName};
use portolan_decide::InstanceIndex;
use portolan_ports::{HeldPrefix, InstanceOutcome, KvOrder, KvPiece, KvSet, PullEvent, PullReport, TransferError};
use std::sync::Arc;

/// What arrived.
struct Arrival {
    pieces: Vec<KvPiece>,
    report: PullReport,
    first_piece_ms: Option<f64>,
}

impl Journey {
    /// Orders the KV from the prefill site and returns it whole and verified.
    pub(super) async fn transfer(&mut self, leg: &Leg, held: HeldPrefix) -> Result<KvSet, Fault> {
        let tokens = self.prefill_tokens();
        let layout = Arc::clone(&leg.decoder.describe().layout);
        let Prefiller::At(peer) = &leg.prefiller else {
            return Err(Fault::InstanceGone(leg.names.prefill_instance.clone()));
        };
        if tokens.is_empty() {
            return Ok(KvSet::empty(layout));
        }
        let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let begun = self.elapsed_ms();
        let order = self.order(leg, tokens, held.tokens)?;
        let arrival = self.receive(peer, order, leg.route.prefill).await;
        let ended = self.elapsed_ms();
        let Arrival { mut pieces, report, first_piece_ms } = match arrival {
            Ok(arrival) => arrival,
            Err(fault) => {
                self.note_stage_between("transfer", begun, ended);
                return Err(fault);
            }
        };
        // The prefill ran from the order's arrival, half a round trip after it was sent; the transfer from its first
        // piece. The two overlap, and the record shows by how much.
        let worked_ms = (report.prefill.queue_us + report.prefill.compute_us) as f64 / 1000.0;
        self.note_stage_between("prefill", begun, (begun + worked_ms).min(ended));
        self.note_stage_between("transfer", first_piece_ms.unwrap_or(ended), ended);
        self.site.parts.fleet.outcome(leg.route.prefill, InstanceOutcome::Served);
        self.record.kv.bytes_moved += report.bytes.0;
        self.record.kv.chunks_resent += report.chunks_resent;
        self.record.kv.cached_tokens = report.prefill.cached.max(held.tokens);
        self.record.kv.computed_tokens += report.prefill.computed;
        pieces.extend(held.pieces);
        Ok(KvSet::assemble(layout, count, pieces)?)
    }

    fn order(&self, leg: &Leg, tokens: Arc<[u32]>, held: u32) -> Result<KvOrder, Fault> {
        let instance = InstanceName::new(&leg.names.prefill_instance);
        Ok(KvOrder {
            request: self.id(),
            tenant: self.request.tenant.name.clone(),
            jurisdiction: self.request.tenant.jurisdiction.clone(),
            user_class: self.request.tenant.user_class.clone(),
            model: self.request.model.clone(),
            model_version: self.model().description.layout.model_version,
            instance: instance.map_err(|_| Fault::InstanceGone(leg.names.prefill_instance.clone()))?,
            tokens,
            held,
        })
    }

    async fn receive(&self, peer: &SiteName, order: KvOrder, instance: InstanceIndex) -> Result<Arrival, Fault> {
        let fault = |error| Fault::Transfer { instance, error };
        let held = order.held;
        let tokens = u32::try_from(order.tokens.len()).unwrap_or(u32::MAX);
        let layout = &self.model().description.layout;
        let mut pull = self.site.parts.transport.pull(peer, order).await.map_err(fault)?;
        let mut pieces = Vec::new();
        let mut first_piece_ms = None;
        while let Some(event) = pull.events.recv().await {
            match event.map_err(fault)? {
                PullEvent::Manifest(manifest) => {
                    let fits = manifest.layout == **layout && manifest.tokens == tokens && manifest.held == held;
                    if !fits {
                        let detail = format!(
                            "the manifest announces {} tokens of {} version {} beyond {} held",
                            manifest.tokens, manifest.layout.model, manifest.layout.model_version, manifest.held
                        );
                        return Err(fault(TransferError::Protocol { peer: peer.clone(), detail }));
                    }
                }
                PullEvent::Piece(piece) => {
                    first_piece_ms.get_or_insert_with(|| self.elapsed_ms());
                    pieces.push(piece);
                }
                PullEvent::Done(report) => return Ok(Arrival { pieces, report, first_piece_ms }),
            }
        }
        Err(fault(TransferError::LinkDown { peer: peer.clone(), detail: "the transfer ended early".to_owned() }))
    }
}
