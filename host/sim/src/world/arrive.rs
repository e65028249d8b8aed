//! From a request to a decision.

use super::{Event, World, cached_tokens};
use crate::fate::Served;
use crate::flight::{Flight, Stage, Ticket};
use crate::scenario::Queueing;
use crate::traffic::Draws;
use portolan_base::{BlockHash, Bytes, Moment, RequestId, Tokens};
use portolan_decide::{
    DecideInput, Decision, DecisionRecord, Deferrals, PrefillMode, RequestFacts, RequestKind, Route,
    SiteIndex, decide,
};
use std::collections::BTreeMap;
use std::time::Duration;

impl World<'_> {
    pub(super) fn arrive(&mut self, request: usize, deferrals: Deferrals) {
        if deferrals.times() > 0 {
            self.tally.deferred -= 1;
        }
        match self.origin(request) {
            Some(origin) => self.decide(request, origin, deferrals, 0),
            None => self.refuse(request, "no site is there to take it".to_owned()),
        }
    }

    /// Decides a request anew whose prefill was lost. What it has waited so far counts as waiting.
    pub(super) fn again(&mut self, ticket: Ticket) {
        let Some(flight) = self.flights.remove(ticket) else {
            return;
        };
        let waited = self.now().since(self.traffic[flight.request].arrival);
        match self.origin(flight.request) {
            Some(origin) => {
                let micros = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
                self.decide(flight.request, origin, Deferrals::default(), micros);
            }
            None => self.refuse(flight.request, "its site was lost".to_owned()),
        }
    }

    fn decide(&mut self, request: usize, origin: (SiteIndex, u32), mut deferrals: Deferrals, waited_us: u64) {
        let facts = self.facts(request, origin);
        self.find_held(request);
        let most = self.held.iter().copied().max().unwrap_or(0);
        let uncached = facts.prompt_tokens - most.min(facts.prompt_tokens.saturating_sub(1));
        self.set_threshold(origin.0);
        let input = DecideInput {
            request: &facts,
            fleet: &self.fleet,
            kv: self.scenario.kv,
            held: &self.held,
            fetch_block: None,
            policies: &self.scenario.policies,
        };
        let (decision, record) = decide(&input, self.clock);
        if let Some(control) = &mut self.control {
            control.decided(Tokens(uncached));
        }
        self.planning.arrived(uncached);
        self.tally.decided(&record);
        self.note_faults(request, &record);
        match decision {
            Decision::Go(plan) => {
                let route = plan.routes[0];
                let price = record.taken().map_or(0, |taken| taken.facts.price_micros);
                let mut served = Served::on(route, price);
                served.queue = Duration::from_micros(waited_us);
                let cached = self.held[route.prefill.0 as usize];
                self.depart(request, route, served, facts.prompt_tokens - cached);
            }
            Decision::Defer(ms) => match deferrals.hold(ms, self.now()) {
                Some(hold) => {
                    self.tally.deferred += 1;
                    self.at(self.now() + hold, Event::Arrives { request, deferrals });
                }
                None => self.refuse(
                    request,
                    format!("held for too long, deferred {} times", deferrals.times()),
                ),
            },
            Decision::Refuse(refusal) => self.refuse(request, refusal.to_string()),
        }
    }

    /// Sends a request on its route.
    fn depart(&mut self, request: usize, route: Route, served: Served, expected_tokens: u32) {
        let site = self.site_of(route.prefill);
        let link = self.link(site, self.site_of(route.decode));
        let ordered = link.map_or(Bytes(0), |_| {
            self.kv_to_send(request, self.held[route.decode.0 as usize])
        });
        if let Some(link) = link {
            self.pipes[link].1.order(ordered);
            self.show_backlog(link);
        }
        let ticket = self.flights.add(Flight {
            request,
            epoch: 0,
            stage: Stage::Queued,
            served,
            expected_tokens,
            ordered,
            prefill_began: Moment(0),
            prefill_time: Duration::ZERO,
        });
        let (requests, tokens) = match self.scenario.queueing {
            Queueing::PerInstance => {
                let machine = self.machine(route.prefill);
                (&mut machine.assigned_requests, &mut machine.assigned_tokens)
            }
            Queueing::PerPool => {
                let pool = &mut self.pools[site.0 as usize];
                (&mut pool.assigned_requests, &mut pool.assigned_tokens)
            }
        };
        *requests += 1;
        *tokens += u64::from(expected_tokens);
        self.machine(route.decode).assigned_decodes += 1;
        self.show(route.prefill);
        self.show(route.decode);
        let way = self.half_round_trip(site, self.site_of(route.decode));
        self.at(self.now() + way, Event::Queues(ticket));
    }

    pub(super) fn refuse(&mut self, request: usize, reason: String) {
        self.tally.refused(&self.traffic[request], &reason);
        if let Some(fates) = &mut self.fates {
            fates[request].outcome = Err(reason);
        }
    }

    fn note_faults(&mut self, request: usize, record: &DecisionRecord) {
        if let Some(fates) = &mut self.fates {
            let said =
                |f: &portolan_decide::Fallback| format!("{}: {}, so {} answered", f.from, f.reason, f.to);
            fates[request].faults.extend(record.fallbacks.iter().map(said));
        }
    }

    /// Where a request comes in: each conversation at one of the origins; while that is gone at the next one.
    fn origin(&self, request: usize) -> Option<(SiteIndex, u32)> {
        let draw = self.conversation_draw(request);
        let origins = &self.scenario.origins;
        let first = (draw % origins.len() as u64) as usize;
        let turned = origins[first..].iter().chain(&origins[..first]);
        let there = |site: SiteIndex| self.machines.iter().any(|m| m.alive && m.config.site == site);
        let mut there = turned.filter(|origin| self.scenario.changes.is_empty() || there(origin.site));
        there.next().map(|origin| (origin.site, origin.jurisdiction))
    }

    fn conversation_draw(&self, request: usize) -> u64 {
        let key = self.traffic[request].conversation().unwrap_or(request as u64);
        Draws(self.scenario.seed ^ key).next()
    }

    /// Looks up how many tokens of a prompt each instance holds, as far as the index knows.
    fn find_held(&mut self, request: usize) {
        for found in self.lookup.matches() {
            self.held[found.place.instance as usize] = 0;
        }
        let request = &self.traffic[request];
        self.chain.clear();
        self.chain.extend(request.blocks.iter().copied().map(BlockHash));
        self.index.look_up(&self.chain, &mut self.lookup);
        for found in self.lookup.matches() {
            self.held[found.place.instance as usize] = cached_tokens(
                found.blocks as usize,
                self.scenario.block_tokens.0,
                request.prompt_tokens,
            );
        }
    }

    fn facts(&self, index: usize, (origin, jurisdiction): (SiteIndex, u32)) -> RequestFacts {
        let request = &self.traffic[index];
        let slo = self.scenario.ttft_slo.map_or(0, |slo| slo.as_millis());
        RequestFacts {
            id: RequestId::from_client(&format!("sim-{index}")).expect("digits and dashes are printable"),
            tenant: request.tenant,
            model: 0,
            session: request.conversation().map_or(0, |name| Draws(name).next()),
            origin,
            jurisdiction,
            user_class: 0,
            kind: RequestKind::Interactive,
            prompt_tokens: request.prompt_tokens,
            max_output_tokens: request.output_tokens,
            expected_output_tokens: self.tally.mean_answer(),
            prefill_mode: PrefillMode::Auto,
            manner: Default::default(),
            priority: 0,
            ttft_slo_ms: u32::try_from(slo).unwrap_or(u32::MAX),
            seed: Draws(self.scenario.seed.wrapping_add(index as u64)).next(),
            now: self.now(),
            labels: BTreeMap::new(),
        }
    }
}
