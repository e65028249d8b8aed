//! From a decision to the last token.

use super::{Event, World, cached_tokens};
use crate::fate::Served;
use crate::flight::{Flight, Stage, Ticket};
use crate::scenario::{FirstToken, Queueing};
use portolan_base::{Bytes, Moment};
use portolan_decide::{InstanceIndex, SiteIndex};
use std::time::Duration;

impl World<'_> {
    pub(super) fn queue(&mut self, ticket: Ticket) {
        let Some(flight) = self.flights.get(ticket) else {
            return;
        };
        let prefill = flight.served.route.prefill;
        match self.scenario.queueing {
            Queueing::PerInstance => {
                self.machine(prefill).queue.push_back(ticket);
                self.start_prefill(prefill);
            }
            Queueing::PerPool => {
                let site = self.site_of(prefill);
                self.pools[site.0 as usize].waiting.push_back(ticket);
                self.start_pool(site);
            }
        }
    }

    /// Gives the first of a pool's queue to an instance that is free.
    pub(super) fn start_pool(&mut self, site: SiteIndex) {
        let free = |m: &crate::machine::Machine| {
            m.config.site == site && m.is_ready() && m.role.prefills() && m.prefilling.is_none()
        };
        while let Some(at) = self.machines.iter().position(free) {
            let Some(ticket) = self.pools[site.0 as usize].waiting.pop_front() else {
                return;
            };
            let Some(flight) = self.flights.get(ticket) else {
                continue;
            };
            flight.served.route.prefill = InstanceIndex(at as u32);
            let tokens = u64::from(flight.expected_tokens);
            let pool = &mut self.pools[site.0 as usize];
            pool.assigned_requests -= 1;
            pool.assigned_tokens -= tokens;
            self.prefill(ticket, InstanceIndex(at as u32));
        }
    }

    fn start_prefill(&mut self, at: InstanceIndex) {
        loop {
            let machine = self.machine(at);
            if machine.prefilling.is_some() {
                return;
            }
            let Some(ticket) = machine.queue.pop_front() else {
                return;
            };
            let Some(flight) = self.flights.get(ticket) else {
                continue;
            };
            let tokens = u64::from(flight.expected_tokens);
            let machine = self.machine(at);
            machine.assigned_requests -= 1;
            machine.assigned_tokens -= tokens;
            self.prefill(ticket, at);
        }
    }

    fn prefill(&mut self, ticket: Ticket, at: InstanceIndex) {
        let now = self.now();
        let Some(flight) = self.flights.get(ticket) else {
            return;
        };
        let request = &self.traffic[flight.request];
        let machine = &mut self.machines[at.0 as usize];
        let lease = machine.lookup(&request.blocks);
        let hits = lease.blocks.len();
        let cached = cached_tokens(hits, self.scenario.block_tokens.0, request.prompt_tokens);
        let time = machine.begin(now, lease, request.prompt_tokens - cached);
        flight.stage = Stage::Prefilling;
        (flight.prefill_began, flight.prefill_time) = (now, time);
        flight.served.cached_tokens = cached;
        account(flight, request.arrival, now, |served| &mut served.queue);
        self.tally.looked_up(request.blocks.len(), hits);
        self.show(at);
        self.at(now + time, Event::Prefilled(ticket));
    }

    pub(super) fn prefilled(&mut self, ticket: Ticket) {
        let now = self.now();
        let Some(flight) = self.flights.get(ticket) else {
            return;
        };
        let request = &self.traffic[flight.request];
        account(flight, request.arrival, now, |served| &mut served.prefill);
        flight.stage = Stage::Sending;
        let (at, time) = (flight.served.route.prefill, flight.prefill_time);
        let machine = &mut self.machines[at.0 as usize];
        machine.end(now);
        machine.keep(&request.blocks, &mut self.index);
        self.tally.prefilled(now);
        self.transfer(ticket, time);
        match self.scenario.queueing {
            Queueing::PerInstance => self.start_prefill(at),
            Queueing::PerPool => self.start_pool(self.site_of(at)),
        }
        self.drained(at);
        self.show(at);
    }

    /// Goes on with the next prompt after one was given up.
    pub(super) fn freed(&mut self, at: InstanceIndex) {
        match self.scenario.queueing {
            Queueing::PerInstance => self.start_prefill(at),
            Queueing::PerPool => self.start_pool(self.site_of(at)),
        }
    }

    /// Sends the KV the decode instance lacks; it began to leave while prefill ran.
    fn transfer(&mut self, ticket: Ticket, prefill: Duration) {
        let now = self.now();
        let Some(flight) = self.flights.get(ticket) else {
            return;
        };
        let (route, flight_request) = (flight.served.route, flight.request);
        let request = &self.traffic[flight_request];
        let ends = (self.site_of(route.prefill), self.site_of(route.decode));
        let Some(link) = self.link(ends.0, ends.1) else {
            return self.at(now, Event::Delivered(ticket));
        };
        let hits = self.machine(route.decode).lookup(&request.blocks).blocks.len();
        let held = cached_tokens(hits, self.scenario.block_tokens.0, request.prompt_tokens);
        let size = self.kv_to_send(flight_request, held);
        let hidden = size
            .time_at(self.pipes[link].1.delivery())
            .min(prefill)
            .mul_f64(f64::from(self.scenario.overlap.0.min(1000)) / 1000.0);
        let ready = Moment(now.0.saturating_sub(hidden.as_micros() as u64));
        if let Some(flight) = self.flights.get(ticket) {
            flight.served.cross_site_bytes += size;
            self.pipes[link].1.settle(std::mem::take(&mut flight.ordered));
        }
        self.tally.sent(size);
        let through = self.pipes[link].1.send(now, ready, size, ticket);
        self.show_backlog(link);
        self.plan_sent(link, through);
    }

    /// KV of a prompt beyond what the other end holds.
    pub(super) fn kv_to_send(&self, request: usize, held: u32) -> Bytes {
        let (kv, prompt) = (self.scenario.kv, self.traffic[request].prompt_tokens);
        kv.fixed + Bytes(kv.per_token.0 * u64::from(prompt - held))
    }

    pub(super) fn plan_sent(&mut self, link: usize, through: Option<Moment>) {
        if let Some(at) = through {
            let plan = self.pipes[link].1.plan;
            self.at(at, Event::Sent { link, plan });
        }
    }

    pub(super) fn sent(&mut self, link: usize, plan: u32) {
        let (now, pipe) = (self.now(), &mut self.pipes[link].1);
        if pipe.plan != plan {
            return;
        }
        let (ticket, next) = pipe.sent(now);
        let way = pipe.link.rtt / 2;
        self.show_backlog(link);
        self.plan_sent(link, next);
        if let Some(ticket) = ticket {
            self.at(now + way, Event::Delivered(ticket));
        }
    }

    pub(super) fn delivered(&mut self, ticket: Ticket) {
        let now = self.now();
        let Some(flight) = self.flights.get(ticket) else {
            return;
        };
        let request = &self.traffic[flight.request];
        account(flight, request.arrival, now, |served| &mut served.transfer);
        flight.stage = Stage::Decoding;
        let route = flight.served.route;
        if route.decode != route.prefill {
            self.machines[route.decode.0 as usize].keep(&request.blocks, &mut self.index);
        }
        self.machine(route.decode).waiting.push_back(ticket);
        self.start_decode(route.decode);
    }

    fn start_decode(&mut self, at: InstanceIndex) {
        let (now, first) = (self.now(), self.scenario.first_token);
        while self.machine(at).decoding < self.machine(at).config.decode_slots {
            let Some(ticket) = self.machine(at).waiting.pop_front() else {
                return;
            };
            let Some(flight) = self.flights.get(ticket) else {
                continue;
            };
            let request = &self.traffic[flight.request];
            let machine = &mut self.machines[at.0 as usize];
            machine.decoding += 1;
            let step = machine.config.decode_step;
            if first == FirstToken::Decode {
                account(flight, request.arrival, now, |served| &mut served.decode);
                flight.served.decode += step;
            }
            self.at(now + step * request.output_tokens.max(1), Event::Finished(ticket));
        }
    }

    pub(super) fn finished(&mut self, ticket: Ticket) {
        let Some(flight) = self.flights.remove(ticket) else {
            return;
        };
        let (now, decode) = (self.now(), flight.served.route.decode);
        let route = flight.served.route;
        let ends = (self.site_of(route.prefill), self.site_of(route.decode));
        self.tally
            .finished(&self.traffic[flight.request], &flight.served, ends, now);
        if let Some(fates) = &mut self.fates {
            fates[flight.request].outcome = Ok(flight.served);
        }
        let machine = self.machine(decode);
        machine.decoding -= 1;
        machine.assigned_decodes -= 1;
        self.start_decode(decode);
        self.drained(decode);
        self.show(decode);
    }
}

/// Accounts for the time of a request up to now.
fn account(flight: &mut Flight, arrival: Moment, now: Moment, part: fn(&mut Served) -> &mut Duration) {
    let spent = now.since(flight.served.accounted(arrival));
    *part(&mut flight.served) += spent;
}
