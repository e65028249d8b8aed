//! transfer: prefill at another site, its KV streaming here while it runs.

use super::fetch::Brought;
use super::journey::{Fault, Journey, Leg, Prefiller, millis_between};
use crate::receive::{Arrival, BrokenOff, receive_within};
use portolan_base::{InstanceName, Tokens};
use portolan_decide::Route;
use portolan_ports::{InstanceOutcome, KvOrder, KvSet, OrderPurpose, Retention, TransferError};
use std::sync::Arc;
use std::time::Duration;

impl Journey {
    /// Orders the KV from the prefill site and returns it whole and verified.
    pub(super) async fn transfer(&mut self, leg: &Leg, brought: Brought) -> Result<KvSet, Fault> {
        let Brought { held, sources } = brought;
        let tokens = self.prefill_tokens();
        let layout = Arc::clone(&leg.decoder.describe().layout);
        let Prefiller::At(peer) = &leg.prefiller else {
            return Err(Fault::InstanceGone(leg.names.prefill_instance.clone()));
        };
        if tokens.is_empty() {
            return Ok(KvSet::empty(layout));
        }
        let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let begun = self.enter("transfer");
        let uncached = self
            .record
            .prompt_tokens
            .saturating_sub(1)
            .saturating_sub(self.held_at(&leg.route));
        let _claim = self.site.parts.fleet.claim(leg.route.prefill, Tokens(uncached));
        let order = KvOrder {
            fetch_from: sources,
            ..self.order(leg, tokens, held.tokens)?
        };
        let parts = &self.site.parts;
        let limit = match leg.patience.prefill_elsewhere {
            true => parts.timeouts.prefill(&leg.facts),
            false => Duration::MAX,
        };
        let arrival = receive_within(
            limit,
            parts.transport.as_ref(),
            peer,
            order,
            &layout,
            parts.clock.as_ref(),
        )
        .await;
        let ended = self.elapsed_ms();
        let Arrival {
            mut pieces,
            report,
            first_piece,
            ..
        } = match arrival {
            Ok(arrival) => arrival,
            Err(BrokenOff { error, bytes, .. }) => {
                self.record.kv.bytes_moved += bytes.0;
                self.note_stage_between("transfer", begun, ended);
                let instance = leg.route.prefill;
                return Err(match error {
                    TransferError::Late { deadline, .. } => Fault::Slow {
                        instance,
                        at: leg.prefill_at(),
                        stage: "prefill and transfer",
                        limit: deadline,
                    },
                    error => Fault::Transfer { instance, error },
                });
            }
        };
        // The prefill ran from the order's arrival, half a round trip after it was sent, or from when what was fetched for
        // it was there; the transfer from its first piece. The two overlap, and the record shows by how much.
        let fetched_us: u64 = report.prefill.fetches.iter().map(|fetch| fetch.took_us).sum();
        let fetched = (begun + fetched_us as f64 / 1000.0).min(ended);
        if fetched_us > 0 {
            self.note_stage_between("fetch", begun, fetched);
        }
        let worked_ms = (report.prefill.queue_us + report.prefill.compute_us) as f64 / 1000.0;
        self.note_stage_between("prefill", fetched, (fetched + worked_ms).min(ended));
        let first_ms = first_piece.map_or(ended, |at| millis_between(self.request.at, at));
        self.note_stage_between("transfer", first_ms, ended);
        self.site
            .parts
            .fleet
            .outcome(leg.route.prefill, InstanceOutcome::Served);
        self.note_link(leg.route.prefill, InstanceOutcome::Served);
        self.record.kv.bytes_moved += report.bytes.0;
        self.note_fetches(leg, report.prefill.fetches);
        self.record.kv.chunks_resent += report.chunks_resent;
        self.record.kv.quantised = report.quantised;
        self.record.kv.cached_tokens = report.prefill.cached.max(held.tokens);
        self.record.kv.computed_tokens += report.prefill.computed;
        pieces.extend(held.pieces);
        Ok(KvSet::assemble(layout, count, pieces)?)
    }

    /// Tokens of the prompt that the prefill instance was thought to hold when the request was decided.
    fn held_at(&self, route: &Route) -> u32 {
        let names = portolan_decide::plan::route_record(&self.fleet, *route);
        let candidate = self.record.candidates.iter().find(|c| c.route == names);
        candidate.map_or(0, |c| c.facts.cached_tokens)
    }

    /// The order of the prompt's KV to the leg's prefill instance.
    pub(super) fn order(&self, leg: &Leg, tokens: Arc<[u32]>, held: u32) -> Result<KvOrder, Fault> {
        let instance = InstanceName::new(&leg.names.prefill_instance);
        let instance = instance.map_err(|_| Fault::InstanceGone(leg.names.prefill_instance.clone()))?;
        Ok(KvOrder {
            held,
            ..self.order_to(instance, tokens, leg.keep_there)
        })
    }

    /// An order for this request to an instance: whose data it is, of which nothing is held.
    pub(super) fn order_to(
        &self,
        instance: InstanceName,
        tokens: Arc<[u32]>,
        retention: Retention,
    ) -> KvOrder {
        let tenant = &self.request.tenant;
        KvOrder {
            request: self.id(),
            tenant: tenant.name.clone(),
            jurisdiction: tenant.jurisdiction.clone(),
            user_class: tenant.user_class.clone(),
            model: self.request.model.clone(),
            model_version: self.model().description.layout.model_version,
            instance,
            tokens,
            held: 0,
            retention,
            draw: self.policies.draw,
            fidelity: self.site.parts.exact.fidelity(&tenant.name, &tenant.user_class),
            dependencies: Arc::clone(&self.about.dependencies),
            fetch_from: Arc::default(),
            purpose: OrderPurpose::Serve,
        }
    }
}
