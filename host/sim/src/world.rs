//! The events and what they do.
//!
//! `arrive → (decide) → queue → prefill → transfer → decode → finish`. A request to another site takes half a
//! round trip to get there, its KV the other half back.
//!
//! | file | holds |
//! |---|---|
//! | `arrive` | from a request to a decision |
//! | `serve` | from a decision to the last token |
//! | `watch` | what decisions see, kept up as things change |
//! | `happen` | links that change, sites that go and come back |
//! | `convert` | the slow loop: another division into prefill and decode |

mod arrive;
mod convert;
mod happen;
mod serve;
mod watch;

use crate::clock::VirtualClock;
use crate::fate::Fate;
use crate::flight::{Flights, Ticket};
use crate::machine::Machine;
use crate::pipe::Pipe;
use crate::report::{Report, Tally};
use crate::scenario::{Scenario, ScenarioError};
use crate::traffic::SimRequest;
use convert::Planning;
use portolan_base::{BlockHash, Bytes, Clock, Moment};
use portolan_decide::{Deferrals, FleetView, InstanceIndex, OffloadControl, SiteIndex};
use portolan_kv::{Lookup, PrefixIndex};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;
use watch::SAMPLE_INTERVAL;

/// Large enough for thirty million blocks, so that what is found is what is cached.
const INDEX_BUDGET: Bytes = Bytes(1 << 30);

/// Plays `traffic` through `scenario`.
pub fn simulate(scenario: &Scenario, traffic: &[SimRequest]) -> Result<Report, ScenarioError> {
    play(scenario, traffic, &VirtualClock::default(), None).map(|played| played.report)
}

/// What came of a simulation, request by request.
#[derive(Clone, Debug, PartialEq)]
pub struct Rehearsal {
    /// All together.
    pub report: Report,
    /// What became of each request, in the order of the traffic.
    pub fates: Vec<Fate>,
}

/// Plays `traffic` through `scenario`, whose policies may read `clock` too, and keeps what became of each request.
pub fn rehearse(
    scenario: &Scenario,
    traffic: &[SimRequest],
    clock: &VirtualClock,
) -> Result<Rehearsal, ScenarioError> {
    play(
        scenario,
        traffic,
        clock,
        Some(vec![Fate::default(); traffic.len()]),
    )
}

/// Plays `traffic` through `scenario`, whose policies may read `clock` too.
pub fn simulate_on(
    scenario: &Scenario,
    traffic: &[SimRequest],
    clock: &VirtualClock,
) -> Result<Report, ScenarioError> {
    play(scenario, traffic, clock, None).map(|played| played.report)
}

fn play(
    scenario: &Scenario,
    traffic: &[SimRequest],
    clock: &VirtualClock,
    fates: Option<Vec<Fate>>,
) -> Result<Rehearsal, ScenarioError> {
    scenario.check()?;
    let mut world = World::new(scenario, traffic, clock, fates);
    world.begin();
    while let Some((now, event)) = world.next() {
        clock.set(now);
        world.handle(event);
    }
    Ok(world.finish())
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrives {
        request: usize,
        deferrals: Deferrals,
    },
    /// A request whose site was lost is decided anew.
    Again(Ticket),
    Queues(Ticket),
    Prefilled(Ticket),
    /// The first of a link's queue is through, if the plan still holds.
    Sent {
        link: usize,
        plan: u32,
    },
    Delivered(Ticket),
    Finished(Ticket),
    /// Loads are reported and links are read.
    Sampled,
    Happens(usize),
    Replanned,
    /// An instance was told to stop what it did.
    Freed(InstanceIndex),
    /// An instance that drained is back in its new role.
    Converted(InstanceIndex),
}

/// An event with its time; of two at one time the one that was scheduled first.
#[derive(Clone, Copy, Debug)]
struct Timed {
    at: Moment,
    scheduled: u64,
    event: Event,
}

impl Ord for Timed {
    /// Reversed: a heap gives the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.scheduled).cmp(&(self.at, self.scheduled))
    }
}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Timed {}

/// A site's shared prefill queue.
#[derive(Default)]
struct PoolQueue {
    waiting: std::collections::VecDeque<Ticket>,
    /// Requests decided for the pool and not begun, those on their way too.
    assigned_requests: u32,
    /// Tokens those were expected to compute.
    assigned_tokens: u64,
}

struct World<'a> {
    scenario: &'a Scenario,
    traffic: &'a [SimRequest],
    clock: &'a VirtualClock,
    /// Positions of the traffic by arrival, and how many have come in.
    arrivals: Vec<usize>,
    arrived: usize,
    events: BinaryHeap<Timed>,
    scheduled: u64,
    machines: Vec<Machine>,
    /// Prefill and decode instances of each site.
    pools: Vec<PoolQueue>,
    pipes: Vec<((SiteIndex, SiteIndex), Pipe)>,
    links: BTreeMap<(SiteIndex, SiteIndex), usize>,
    index: PrefixIndex,
    lookup: Lookup,
    chain: Vec<BlockHash>,
    held: Vec<u32>,
    flights: Flights,
    fleet: FleetView,
    control: Option<OffloadControl>,
    planning: Planning,
    tally: Tally,
    fates: Option<Vec<Fate>>,
}

impl<'a> World<'a> {
    fn new(
        scenario: &'a Scenario,
        traffic: &'a [SimRequest],
        clock: &'a VirtualClock,
        fates: Option<Vec<Fate>>,
    ) -> Self {
        let machines = (0u32..).zip(&scenario.instances);
        let machines: Vec<_> = machines
            .map(|(i, config)| Machine::new(i, config, scenario))
            .collect();
        let mut arrivals: Vec<usize> = (0..traffic.len()).collect();
        arrivals.sort_by_key(|&request| traffic[request].arrival);
        let pipes: Vec<_> = scenario
            .links
            .iter()
            .map(|(ends, link)| (*ends, Pipe::new(*link)))
            .collect();
        Self {
            fleet: watch::first_view(scenario, &machines),
            links: pipes
                .iter()
                .enumerate()
                .map(|(i, (ends, _))| (*ends, i))
                .collect(),
            held: vec![0; machines.len()],
            pools: scenario.sites.iter().map(|_| PoolQueue::default()).collect(),
            control: watch::control(scenario),
            planning: Planning::default(),
            tally: Tally::new(scenario, traffic),
            scenario,
            traffic,
            clock,
            arrivals,
            arrived: 0,
            events: BinaryHeap::new(),
            scheduled: 0,
            machines,
            pipes,
            index: PrefixIndex::new(INDEX_BUDGET),
            lookup: Lookup::default(),
            chain: Vec::new(),
            flights: Flights::default(),
            fates,
        }
    }

    fn begin(&mut self) {
        for i in 0..self.scenario.changes.len() {
            self.at(self.scenario.changes[i].at, Event::Happens(i));
        }
        if let Some(slow) = self.scenario.slow_loop {
            self.at(Moment(0) + slow.period, Event::Replanned);
        }
        self.at(Moment(0), Event::Sampled);
    }

    /// The next event. Requests come in before anything else that happens at the same moment.
    fn next(&mut self) -> Option<(Moment, Event)> {
        let arrival = self
            .arrivals
            .get(self.arrived)
            .map(|&request| (self.traffic[request].arrival, request));
        if let Some((at, request)) = arrival
            && self.events.peek().is_none_or(|first| at <= first.at)
        {
            self.arrived += 1;
            return Some((
                at,
                Event::Arrives {
                    request,
                    deferrals: Deferrals::default(),
                },
            ));
        }
        self.events.pop().map(|first| (first.at, first.event))
    }

    fn finish(self) -> Rehearsal {
        Rehearsal {
            report: self.tally.report(self.scenario),
            fates: self.fates.unwrap_or_default(),
        }
    }

    fn at(&mut self, at: Moment, event: Event) {
        self.events.push(Timed {
            at,
            scheduled: self.scheduled,
            event,
        });
        self.scheduled += 1;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrives { request, deferrals } => self.arrive(request, deferrals),
            Event::Again(ticket) => self.again(ticket),
            Event::Queues(ticket) => self.queue(ticket),
            Event::Prefilled(ticket) => self.prefilled(ticket),
            Event::Sent { link, plan } => self.sent(link, plan),
            Event::Delivered(ticket) => self.delivered(ticket),
            Event::Finished(ticket) => self.finished(ticket),
            Event::Sampled => self.sample(),
            Event::Happens(change) => self.happen(change),
            Event::Replanned => self.replan(),
            Event::Freed(instance) => self.freed(instance),
            Event::Converted(instance) => self.converted(instance),
        }
    }

    /// Whether anything is still to be done for a request.
    fn is_busy(&self) -> bool {
        self.arrived < self.traffic.len() || !self.flights.is_empty() || self.tally.deferred > 0
    }

    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn machine(&mut self, instance: InstanceIndex) -> &mut Machine {
        &mut self.machines[instance.0 as usize]
    }

    fn site_of(&self, instance: InstanceIndex) -> SiteIndex {
        self.scenario.instances[instance.0 as usize].site
    }

    /// Samples again as long as there is something to see.
    fn sample_later(&mut self) {
        if self.is_busy() {
            self.at(self.now() + SAMPLE_INTERVAL, Event::Sampled);
        }
    }

    /// The link between two sites, by its number.
    fn link(&self, from: SiteIndex, to: SiteIndex) -> Option<usize> {
        (from != to)
            .then(|| self.links.get(&(from, to)).copied())
            .flatten()
    }

    fn half_round_trip(&self, from: SiteIndex, to: SiteIndex) -> Duration {
        self.link(from, to)
            .map_or(Duration::ZERO, |link| self.pipes[link].1.link.rtt / 2)
    }
}

/// What `blocks` cached blocks save of a prompt; at least its last token is always computed.
fn cached_tokens(blocks: usize, block_tokens: u32, prompt_tokens: u32) -> u32 {
    let cached = u64::from(block_tokens) * blocks as u64;
    u32::try_from(cached)
        .unwrap_or(u32::MAX)
        .min(prompt_tokens.saturating_sub(1))
}
