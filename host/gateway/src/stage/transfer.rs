//! transfer: prefill at another site, its KV streaming here while it runs.

use super::fetch::Brought;
use super::hedge::{Computed, First, Hedge, first};
use super::journey::{Fault, Journey, Leg, Prefiller, millis_between};
use crate::receive::{Arrival, BrokenOff, receive_within};
use portolan_base::{InstanceName, Tokens};
use portolan_decide::Route;
use portolan_ports::{
    AsOf, InstanceOutcome, KvOrder, KvPiece, KvSet, OrderPurpose, Retention, TransferError,
};
use std::sync::Arc;
use std::time::Duration;

impl Journey {
    /// Orders the KV from the prefill site and returns it whole and verified, with the leg to go on with: where the order
    /// was hedged, that may be the one of `rest` that computed the prompt here.
    pub(super) async fn transfer(
        &mut self,
        leg: Leg,
        rest: &[Route],
        brought: Brought,
    ) -> Result<(Leg, KvSet), Fault> {
        let Brought { held, sources } = brought;
        let tokens = self.prefill_tokens();
        let layout = Arc::clone(&leg.decoder.describe().layout);
        let Prefiller::At(peer) = &leg.prefiller else {
            return Err(Fault::InstanceGone(leg.names.prefill_instance.clone()));
        };
        if tokens.is_empty() {
            return Ok((leg, KvSet::empty(layout)));
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
            ..self.order(&leg, tokens, held.tokens)?
        };
        let parts = &self.site.parts;
        let limit = match leg.patience.prefill_elsewhere {
            true => self.site.live().timeouts.prefill(&leg.facts),
            false => Duration::MAX,
        };
        let (transport, clock) = (parts.transport.as_ref(), parts.clock.as_ref());
        let ordered = receive_within(limit, transport, peer, order, &layout, clock);
        let hedge = self.hedge(&leg, rest).map(|hedge| {
            let job = self.prefill_job(&hedge.leg, held.tokens);
            (hedge, job)
        });
        let won = first(ordered, hedge, |hedge| self.may_hedge(&hedge.leg)).await;
        let mut pieces = held.pieces;
        let leg = match won {
            First::Ordered(Ok(arrival)) => {
                pieces.extend(self.note_arrival(&leg, begun, held.tokens, arrival));
                leg
            }
            First::Ordered(Err(broken)) => return Err(self.note_broken(&leg, begun, broken)),
            First::Computed {
                hedge,
                computed,
                failed,
            } => {
                self.note_hedged(&leg, &hedge, begun, failed);
                let Computed {
                    pieces: computed,
                    report,
                } = computed;
                self.record.kv.cached_tokens = report.cached.max(held.tokens);
                self.record.kv.computed_tokens += report.computed;
                pieces.extend(computed);
                hedge.leg
            }
        };
        Ok((leg, KvSet::assemble(layout, count, pieces)?))
    }

    /// Writes down what came, and returns the pieces.
    fn note_arrival(&mut self, leg: &Leg, begun: f64, held: u32, arrival: Arrival) -> Vec<KvPiece> {
        let Arrival {
            pieces,
            report,
            first_piece,
            ..
        } = arrival;
        let ended = self.elapsed_ms();
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
        self.record.kv.cached_tokens = report.prefill.cached.max(held);
        self.record.kv.computed_tokens += report.prefill.computed;
        pieces
    }

    /// Writes down that the order brought nothing, and says whose fault it was.
    fn note_broken(&mut self, leg: &Leg, begun: f64, broken: BrokenOff) -> Fault {
        let BrokenOff { error, bytes, .. } = broken;
        self.record.kv.bytes_moved += bytes.0;
        self.note_stage("transfer", begun);
        let instance = leg.route.prefill;
        match error {
            TransferError::Late { deadline, .. } => Fault::Slow {
                instance,
                at: leg.prefill_at(),
                stage: "prefill and transfer",
                limit: deadline,
            },
            error => Fault::Transfer { instance, error },
        }
    }

    /// Whether the prompt may be computed a second time: it takes one of the second tries that are left.
    fn may_hedge(&self, leg: &Leg) -> bool {
        let may = self.site.retries.lock().take(self.now());
        if may {
            self.site.parts.fleet.begins(leg.route);
        }
        may
    }

    /// Writes down that the prompt was computed here before its order came.
    fn note_hedged(&mut self, slow: &Leg, hedge: &Hedge, begun: f64, failed: Option<BrokenOff>) {
        let hedged_at = begun + hedge.after.as_secs_f64() * 1000.0;
        match failed {
            Some(broken) => {
                let fault = self.note_broken(slow, begun, broken);
                self.note_route_failure(slow.route, Some(hedge.leg.route), &fault);
            }
            None => {
                self.note_stage("transfer", begun);
                self.note_overtaken(slow.route, hedge.leg.route, hedge.after);
            }
        }
        self.note_stage("prefill", hedged_at);
        let fleet = &self.site.parts.fleet;
        fleet.outcome(hedge.leg.route.prefill, InstanceOutcome::Served);
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
            // Whatever the other site has cached, what it has not heard of yet may be about it.
            as_of: match self.may_reuse() {
                true => self.site.parts.validity.place(),
                false => AsOf::NOTHING_CACHED,
            },
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
            fidelity: self.site.live().exact.fidelity(&tenant.name, &tenant.user_class),
            dependencies: Arc::clone(&self.about.dependencies),
            fetch_from: Arc::default(),
            purpose: OrderPurpose::Serve,
        }
    }
}
