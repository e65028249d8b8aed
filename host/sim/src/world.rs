//! The events and what they do.
//!
//! `arrive → (decide) → queue → prefill → transfer → decode → finish`. A request to another site takes half a
//! round trip to get there, its KV the other half back.

use crate::clock::VirtualClock;
use crate::fate::{Fate, Served};
use crate::machine::{Job, Machine};
use crate::pipe::Pipe;
use crate::report::{Latency, Report};
use crate::scenario::{Scenario, ScenarioError};
use crate::traffic::{Draws, SimRequest};
use portolan_base::{Bytes, Clock, Moment, Permille, RequestId, Tokens};
use portolan_decide::{
    DecideInput, Decision, DecisionRecord, FleetView, InstanceIndex, KvSize, LinkView, PrefillMode,
    RequestFacts, RequestKind, Route, SiteIndex, SiteView, decide,
};
use portolan_kv::PrefixIndex;
use std::collections::BTreeMap;
use std::time::Duration;

/// A request deferred this often is refused: a policy that always defers must not keep the simulation from ending.
const MAX_DEFERRALS: u32 = 16;

/// Large enough for thirty million blocks, so that what is found is what is cached.
const INDEX_BUDGET: Bytes = Bytes(1 << 30);

/// Plays `traffic` through `scenario`.
pub fn simulate(scenario: &Scenario, traffic: &[SimRequest]) -> Result<Report, ScenarioError> {
    rehearse(scenario, traffic, &VirtualClock::default()).map(|rehearsal| rehearsal.report)
}

/// What came of a simulation, request by request.
#[derive(Clone, Debug, PartialEq)]
pub struct Rehearsal {
    /// All together.
    pub report: Report,
    /// What became of each request, in the order of the traffic.
    pub fates: Vec<Fate>,
}

/// Plays `traffic` through `scenario`, whose policies may read `clock` too.
pub fn rehearse(
    scenario: &Scenario,
    traffic: &[SimRequest],
    clock: &VirtualClock,
) -> Result<Rehearsal, ScenarioError> {
    scenario.check()?;
    let mut world = World::new(scenario, traffic, clock);
    for (request, facts) in traffic.iter().enumerate() {
        world.at(
            facts.arrival,
            Event::Arrives {
                request,
                deferrals: 0,
            },
        );
    }
    while let Some(((now, _), event)) = world.events.pop_first() {
        clock.set(now);
        world.handle(event);
    }
    Ok(world.finish())
}

#[derive(Clone, Copy)]
enum Event {
    Arrives { request: usize, deferrals: u32 },
    Queues(Job),
    Prefilled(Job),
    Delivered(Job),
    Finished(Job),
}

struct World<'a> {
    scenario: &'a Scenario,
    traffic: &'a [SimRequest],
    clock: &'a VirtualClock,
    /// By time, then in the order in which they were scheduled.
    events: BTreeMap<(Moment, u64), Event>,
    scheduled: u64,
    machines: Vec<Machine>,
    pipes: BTreeMap<(SiteIndex, SiteIndex), Pipe>,
    index: PrefixIndex,
    report: Report,
    fates: Vec<Fate>,
    last_tokens: Vec<Duration>,
    answered_tokens: u64,
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, traffic: &'a [SimRequest], clock: &'a VirtualClock) -> Self {
        let machines = (0u32..)
            .zip(&scenario.instances)
            .map(|(i, config)| Machine::new(i, config, scenario));
        Self {
            scenario,
            traffic,
            clock,
            events: BTreeMap::new(),
            scheduled: 0,
            machines: machines.collect(),
            pipes: scenario
                .links
                .keys()
                .map(|ends| (*ends, Pipe::default()))
                .collect(),
            index: PrefixIndex::new(INDEX_BUDGET),
            report: Report::default(),
            fates: vec![Fate::default(); traffic.len()],
            last_tokens: Vec::new(),
            answered_tokens: 0,
        }
    }

    fn finish(mut self) -> Rehearsal {
        let served = self.fates.iter().filter_map(|fate| fate.outcome.as_ref().ok());
        self.report.ttft = Latency::of(served.map(Served::ttft).collect());
        self.report.completed = self.last_tokens.len() as u64;
        self.report.end_to_end = Latency::of(self.last_tokens);
        Rehearsal {
            report: self.report,
            fates: self.fates,
        }
    }

    fn at(&mut self, when: Moment, event: Event) {
        self.events.insert((when, self.scheduled), event);
        self.scheduled += 1;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrives { request, deferrals } => self.arrive(request, deferrals),
            Event::Queues(job) => self.queue(job),
            Event::Prefilled(job) => self.prefilled(job),
            Event::Delivered(job) => self.delivered(job),
            Event::Finished(job) => self.finished(job),
        }
    }

    fn machine(&mut self, instance: InstanceIndex) -> &mut Machine {
        &mut self.machines[instance.0 as usize]
    }

    fn arrive(&mut self, request: usize, deferrals: u32) {
        let now = self.clock.now();
        let (facts, held, fleet) = (self.facts(request), self.held(request), self.fleet(now));
        let scenario = self.scenario;
        let kv = KvSize {
            fixed: scenario.kv.fixed,
            per_token: scenario.kv.per_token,
        };
        let input = DecideInput {
            request: &facts,
            fleet: &fleet,
            kv,
            held: &held,
            policies: &scenario.policies,
        };
        let (decision, record) = decide(&input, self.clock);
        self.report.note_decision(&record);
        self.note_faults(request, &record);
        match decision {
            Decision::Go(plan) => {
                let route = plan.routes[0];
                let cached = held.get(route.prefill.0 as usize).copied().unwrap_or(0);
                let job = Job {
                    request,
                    route,
                    expected_tokens: facts.prompt_tokens - cached,
                };
                let price = record.taken().map_or(0, |taken| taken.facts.price_micros);
                self.fates[request].outcome = Ok(Served::on(route, price));
                let machine = self.machine(route.prefill);
                machine.assigned_requests += 1;
                machine.assigned_tokens += u64::from(job.expected_tokens);
                self.at(now + self.half_round_trip(route), Event::Queues(job));
            }
            Decision::Defer(ms) if deferrals < MAX_DEFERRALS => {
                // At least a millisecond, so that time passes.
                let again = now + Duration::from_millis(u64::from(ms.max(1)));
                self.at(
                    again,
                    Event::Arrives {
                        request,
                        deferrals: deferrals + 1,
                    },
                );
            }
            Decision::Defer(_) => self.refuse(request, format!("deferred more than {MAX_DEFERRALS} times")),
            Decision::Refuse(refusal) => self.refuse(request, refusal.to_string()),
        }
    }

    fn refuse(&mut self, request: usize, reason: String) {
        *self.report.refused.entry(reason.clone()).or_default() += 1;
        self.fates[request].outcome = Err(reason);
    }

    fn note_faults(&mut self, request: usize, record: &DecisionRecord) {
        let said = |f: &portolan_decide::Fallback| format!("{}: {}, so {} answered", f.from, f.reason, f.to);
        self.fates[request]
            .faults
            .extend(record.fallbacks.iter().map(said));
    }

    /// Accounts for the time of a request up to now.
    fn account(&mut self, request: usize, part: fn(&mut Served) -> &mut Duration) {
        let (now, arrival) = (self.clock.now(), self.traffic[request].arrival);
        if let Ok(served) = &mut self.fates[request].outcome {
            let spent = now.since(served.accounted(arrival));
            *part(served) += spent;
        }
    }

    fn queue(&mut self, job: Job) {
        self.machine(job.route.prefill).queue.push_back(job);
        self.start_prefill(job.route.prefill);
    }

    fn start_prefill(&mut self, at: InstanceIndex) {
        let (now, traffic, block_tokens) = (self.clock.now(), self.traffic, self.scenario.block_tokens.0);
        let machine = self.machine(at);
        if machine.prefilling.is_some() {
            return;
        }
        let Some(job) = machine.queue.pop_front() else {
            return;
        };
        let request = &traffic[job.request];
        let lease = machine.lookup(&request.blocks);
        let hits = lease.blocks.len();
        let cached = cached_tokens(hits, block_tokens, request.prompt_tokens);
        let tokens = request.prompt_tokens - cached;
        let time = machine.config.prefill.time(Tokens(tokens));
        machine.measure(time, tokens);
        machine.busy.note(now, now + time);
        machine.prefilling = Some((lease, time));
        self.report.blocks += request.blocks.len() as u64;
        self.report.hit_blocks += hits as u64;
        self.account(job.request, |served| &mut served.queue);
        if let Ok(served) = &mut self.fates[job.request].outcome {
            served.cached_tokens = cached;
        }
        self.at(now + time, Event::Prefilled(job));
    }

    fn prefilled(&mut self, job: Job) {
        self.account(job.request, |served| &mut served.prefill);
        let blocks = &self.traffic[job.request].blocks;
        let machine = &mut self.machines[job.route.prefill.0 as usize];
        let time = machine.prefilling.take().map_or(Duration::ZERO, |(_, time)| time);
        machine.assigned_requests -= 1;
        machine.assigned_tokens -= u64::from(job.expected_tokens);
        machine.keep(blocks, &mut self.index);
        self.transfer(job, time);
        self.start_prefill(job.route.prefill);
    }

    /// Sends the KV the decode instance lacks; it began to leave while prefill ran.
    fn transfer(&mut self, job: Job, prefill: Duration) {
        let now = self.clock.now();
        let ends = self.ends(job.route);
        let Some(link) = self.scenario.links.get(&ends).filter(|_| ends.0 != ends.1) else {
            return self.at(now, Event::Delivered(job));
        };
        let request = &self.traffic[job.request];
        let hits = self
            .machine(job.route.decode)
            .lookup(&request.blocks)
            .blocks
            .len();
        let held = cached_tokens(hits, self.scenario.block_tokens.0, request.prompt_tokens);
        let kv = self.scenario.kv;
        let size = kv.fixed + Bytes(kv.per_token.0 * u64::from(request.prompt_tokens - held));
        let time = size.time_at(link.capacity);
        let hidden = time
            .min(prefill)
            .mul_f64(f64::from(self.scenario.overlap.0.min(1000)) / 1000.0);
        let ready = Moment(now.0.saturating_sub(hidden.as_micros() as u64));
        let sent = self.pipes.entry(ends).or_default().send(ready, time);
        self.report.cross_site_bytes += size;
        if let Ok(served) = &mut self.fates[job.request].outcome {
            served.cross_site_bytes = size;
        }
        self.at(sent.max(now) + link.rtt / 2, Event::Delivered(job));
    }

    fn delivered(&mut self, job: Job) {
        self.account(job.request, |served| &mut served.transfer);
        if job.route.decode != job.route.prefill {
            let blocks = &self.traffic[job.request].blocks;
            self.machines[job.route.decode.0 as usize].keep(blocks, &mut self.index);
        }
        self.machine(job.route.decode).waiting.push_back(job);
        self.start_decode(job.route.decode);
    }

    fn start_decode(&mut self, at: InstanceIndex) {
        let now = self.clock.now();
        let machine = self.machine(at);
        if machine.decoding >= machine.config.decode_slots {
            return;
        }
        let Some(job) = machine.waiting.pop_front() else {
            return;
        };
        machine.decoding += 1;
        let step = machine.config.decode_step;
        self.account(job.request, |served| &mut served.decode);
        if let Ok(served) = &mut self.fates[job.request].outcome {
            served.decode += step;
        }
        let tokens = self.traffic[job.request].output_tokens.max(1);
        self.at(now + step * tokens, Event::Finished(job));
    }

    fn finished(&mut self, job: Job) {
        let now = self.clock.now();
        let request = &self.traffic[job.request];
        self.last_tokens.push(now.since(request.arrival));
        self.answered_tokens += u64::from(request.output_tokens);
        self.report.ended = now;
        self.machine(job.route.decode).decoding -= 1;
        self.start_decode(job.route.decode);
    }

    fn ends(&self, route: Route) -> (SiteIndex, SiteIndex) {
        let site = |instance: InstanceIndex| self.scenario.instances[instance.0 as usize].site;
        (site(route.prefill), site(route.decode))
    }

    fn half_round_trip(&self, route: Route) -> Duration {
        let ends = self.ends(route);
        let link = self.scenario.links.get(&ends).filter(|_| ends.0 != ends.1);
        link.map_or(Duration::ZERO, |link| link.rtt / 2)
    }

    /// Tokens of a prompt that each instance holds, as far as the index knows.
    fn held(&self, request: usize) -> Vec<u32> {
        let request = &self.traffic[request];
        let chain: Vec<_> = request
            .blocks
            .iter()
            .copied()
            .map(portolan_base::BlockHash)
            .collect();
        let mut held = vec![0; self.machines.len()];
        for found in self.index.matches(&chain) {
            held[found.place.instance as usize] = cached_tokens(
                found.blocks as usize,
                self.scenario.block_tokens.0,
                request.prompt_tokens,
            );
        }
        held
    }

    fn facts(&self, index: usize) -> RequestFacts {
        let request = &self.traffic[index];
        // Every prompt of a recorded trace shares the first block; the second tells conversations apart.
        let conversation = request.blocks.get(1).copied();
        let seed = self.scenario.seed;
        let draw = Draws(seed ^ conversation.unwrap_or(index as u64)).next();
        let origins = &self.scenario.origins;
        let origin = origins[(draw % origins.len() as u64) as usize];
        let mean_answer = self
            .answered_tokens
            .checked_div(self.last_tokens.len() as u64)
            .unwrap_or(0);
        RequestFacts {
            id: RequestId::from_client(&format!("sim-{index}")).expect("digits and dashes are printable"),
            tenant: 0,
            model: 0,
            session: conversation.map_or(0, |name| Draws(name).next()),
            origin: origin.site,
            jurisdiction: origin.jurisdiction,
            user_class: 0,
            kind: RequestKind::Interactive,
            prompt_tokens: request.prompt_tokens,
            max_output_tokens: request.output_tokens,
            expected_output_tokens: u32::try_from(mean_answer).unwrap_or(u32::MAX),
            prefill_mode: PrefillMode::Auto,
            priority: 0,
            ttft_slo_ms: 0,
            seed: Draws(seed.wrapping_add(index as u64)).next(),
            now: self.clock.now(),
            labels: BTreeMap::new(),
        }
    }

    fn fleet(&mut self, now: Moment) -> FleetView {
        let scenario = self.scenario;
        let site = |site: &crate::SimSite| SiteView {
            name: site.name.clone(),
            jurisdiction: site.jurisdiction,
        };
        let pipes = &mut self.pipes;
        let link = |(ends, link): (&(SiteIndex, SiteIndex), &crate::SimLink)| {
            let view = LinkView {
                up: true,
                rtt: link.rtt,
                capacity: link.capacity,
                busy: pipes
                    .get_mut(ends)
                    .map_or(Permille(0), |pipe| pipe.busy.share(now)),
                loss: Permille(0),
                price_micros_per_gib: link.price_micros_per_gib,
                measured: Default::default(),
            };
            (*ends, view)
        };
        FleetView {
            sites: scenario.sites.iter().map(site).collect(),
            instances: self
                .machines
                .iter_mut()
                .map(|machine| machine.view(now))
                .collect(),
            links: scenario.links.iter().map(link).collect(),
            elsewhere: Default::default(),
            offload_threshold: scenario.offload_threshold,
            congestion_mark: scenario.congestion_mark,
        }
    }
}

/// What `blocks` cached blocks save of a prompt; at least its last token is always computed.
fn cached_tokens(blocks: usize, block_tokens: u32, prompt_tokens: u32) -> u32 {
    let cached = u64::from(block_tokens) * blocks as u64;
    u32::try_from(cached)
        .unwrap_or(u32::MAX)
        .min(prompt_tokens.saturating_sub(1))
}
