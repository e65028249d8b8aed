//! What one site knows about all of them.

mod conversion;
mod known;
mod members;

use crate::foresight::Foresight;
use crate::link::{CONGESTION_MARK, LinkFloor, LinkMonitor};
use crate::prefixes::{Prefixes, Telling};
use crate::slow::Slow;
use crate::topology::Topology;
pub use conversion::Conversion;
use known::{Known, count};
use members::Attendance;
use parking_lot::Mutex;
use portolan_base::kv::KvSize;
use portolan_base::{
    BlockHash, Bytes, Clock, INDEX_BLOCK_TOKENS, InstanceName, ModelName, Permille, Provenance, SiteName,
    Tokens,
};
use portolan_decide::{
    Bandwidth, Breaker, BreakerConfig, FleetView, InstanceIndex, InstanceView, LinkFigures, LinkView,
    OffloadControl, OffloadControlConfig, Route, SiteIndex, SiteView, Standing,
};
use portolan_planner::SeenRequest;
use portolan_policy::NameTables;
use portolan_ports::{
    Bus, Claim, Engine, Fleet, Forecast, InstanceLoadReport, InstanceOutcome, LinkReading, Member,
    MemberState, NoSuchInstance, Sample, Service, Visit, Visits,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What one site knows. Reads take short locks; nothing here waits.
pub struct Chart {
    topology: Topology,
    here: SiteIndex,
    clock: Arc<dyn Clock>,
    names: Arc<NameTables>,
    instances: Vec<Known>,
    /// Which sites are there, by index.
    members: Vec<Attendance>,
    links: BTreeMap<SiteIndex, Mutex<Arriving>>,
    elsewhere: Arc<BTreeMap<(SiteIndex, SiteIndex), LinkView>>,
    prefixes: Prefixes,
    /// Size of the KV of the site's model, for the offload threshold.
    kv: KvSize,
    /// Keeps the offload threshold.
    offload: Mutex<OffloadControl>,
    slow: Slow,
    conversion: Conversion,
    /// Which site is asked next; none: nobody wants to know.
    foresight: Option<Foresight>,
    /// What the bus counts goes onto the site's metrics page.
    bus: Option<Arc<dyn Bus>>,
    /// What links to this site have to be like, by where they come from.
    floors: BTreeMap<SiteIndex, LinkFloor>,
}

/// A link to this site.
struct Arriving {
    monitor: LinkMonitor,
    breaker: Breaker,
}

impl Chart {
    /// The chart of site `here`, whose own instances are `engines`; `telling` says how others are told of their caches.
    pub fn new(
        topology: Topology,
        here: SiteIndex,
        engines: &BTreeMap<InstanceName, Arc<dyn Engine>>,
        clock: Arc<dyn Clock>,
        telling: &Telling,
    ) -> Self {
        let known = |(site, spec): (SiteIndex, &crate::InstanceSpec)| {
            let engine = (site == here).then(|| engines.get(&spec.name).cloned()).flatten();
            Known::new((site, spec), engine)
        };
        let instances: Vec<_> = topology.instances().map(known).collect();
        let arriving = topology
            .links()
            .iter()
            .filter(|l| topology.site_index(&l.to) == Some(here));
        let links = arriving
            .filter_map(|l| {
                let arriving = Arriving {
                    monitor: LinkMonitor::new(l.capacity, l.rtt),
                    breaker: Breaker::new(BreakerConfig::default()),
                };
                topology
                    .site_index(&l.from)
                    .map(|from| (from, Mutex::new(arriving)))
            })
            .collect();
        let names = Arc::new(topology.names().clone());
        let elsewhere = Arc::new(links_elsewhere(&topology, here));
        let prefixes = Prefixes::new(&topology, here, telling);
        let members = topology.sites().iter().map(|_| Attendance::default()).collect();
        Self {
            topology,
            here,
            clock,
            names,
            instances,
            members,
            links,
            elsewhere,
            prefixes,
            kv: engines
                .values()
                .next()
                .map(|e| KvSize::from(e.describe().layout.as_ref()))
                .unwrap_or_default(),
            offload: Mutex::new(OffloadControl::new(OffloadControlConfig {
                congested: CONGESTION_MARK,
                ..OffloadControlConfig::default()
            })),
            slow: Slow::default(),
            conversion: Conversion::Never,
            foresight: None,
            bus: None,
            floors: BTreeMap::new(),
        }
    }

    /// Learns which site is asked next, from its own requests and from what others tell. `secret` is the fleet's.
    #[must_use]
    pub fn with_foresight(mut self, secret: &[u8; 32]) -> Self {
        self.foresight = Some(Foresight::new(&self.topology, self.here, secret));
        self
    }

    /// Takes what another site tells of its requests.
    pub fn heard_visits(&self, visits: &Visits) {
        if let (Some(foresight), Some(from)) = (&self.foresight, self.topology.site_index(&visits.from)) {
            foresight.heard(self.clock.now(), from, &visits.patterns);
        }
    }

    /// What there is to tell other sites of this one's requests.
    pub fn visits_to_tell(&self) -> Vec<Visits> {
        self.foresight
            .as_ref()
            .map(Foresight::to_tell)
            .unwrap_or_default()
    }

    /// Shows what the bus counts among the site's own numbers.
    #[must_use]
    pub fn with_bus(mut self, bus: Arc<dyn Bus>) -> Self {
        self.bus = Some(bus);
        self
    }

    /// The same chart, where the link from a site counts as down while it is not like this.
    #[must_use]
    pub fn with_floor(mut self, from: &SiteName, floor: LinkFloor) -> Self {
        if let Some(from) = self.topology.site_index(from) {
            self.floors.insert(from, floor);
        }
        self
    }

    /// The sites KV can come from.
    pub fn peers(&self) -> impl Iterator<Item = &SiteName> {
        self.links
            .keys()
            .filter_map(|index| self.topology.sites().get(index.0 as usize))
            .map(|site| &site.name)
    }

    /// Takes a load report of another site's instance, with what that site thinks of it.
    pub fn heard_load(&self, report: &InstanceLoadReport) {
        // A site that left lets its last answers finish, and still reports what they cost.
        let gone = self.topology.site_index(&report.site).and_then(|index| {
            let member = self.members.get(index.0 as usize)?;
            Some(member.look(self.clock.now()).state == MemberState::Left)
        });
        let number = self.number_of(&report.site, &report.instance);
        if let Some(number) = number.filter(|_| gone != Some(true)) {
            self.instances[number as usize].heard(report, self.clock.now());
        }
    }

    /// An instance of this site as its own load report tells it.
    pub fn own_standing(&self, instance: &InstanceName) -> Standing {
        self.own(instance)
            .map_or(Standing::Silent, |known| known.look(self.clock.now()).1)
    }

    /// Says that an instance of this site is being warmed up, or that it is warm.
    pub fn set_warming_up(&self, instance: &InstanceName, warming_up: bool) {
        if let Some(known) = self.own(instance) {
            known.set_warming_up(warming_up);
        }
    }

    fn own(&self, instance: &InstanceName) -> Option<&Known> {
        let mut own = self.instances.iter().filter(|known| known.site == self.here);
        own.find(|known| known.name == *instance)
    }

    /// Who holds which prefix.
    pub fn prefixes(&self) -> &Prefixes {
        &self.prefixes
    }

    /// The number of an instance of a site.
    pub fn number_of(&self, site: &SiteName, instance: &InstanceName) -> Option<u32> {
        let site = self.topology.site_index(site)?;
        let mut numbered = (0u32..).zip(&self.instances);
        numbered
            .find(|(_, known)| known.site == site && known.name == *instance)
            .map(|(number, _)| number)
    }

    /// Takes a reading of the link from `peer`.
    pub fn read_link(&self, peer: &SiteName, reading: LinkReading) {
        let link = self
            .topology
            .site_index(peer)
            .and_then(|index| self.links.get(&index));
        if let Some(link) = link {
            link.lock().monitor.observe(self.clock.now(), reading);
        }
    }

    /// Takes a sample of loads and links for the offload threshold; every 500 ms.
    pub fn sample_offload(&self) {
        let view = self.view();
        self.offload.lock().observe(self.clock.now(), &view, self.kv);
    }

    fn instance_view(&self, spec: &crate::InstanceSpec, known: &Known) -> InstanceView {
        let (load, standing) = known.look(self.clock.now());
        let duty = known.duty();
        let model = self.names.models.iter().position(|m| m == spec.model.as_str());
        InstanceView {
            name: spec.name.clone(),
            site: known.site,
            model: model.and_then(|i| u32::try_from(i).ok()).unwrap_or(u32::MAX),
            role: duty.takes().unwrap_or(duty.role()),
            serving: spec.serving,
            standing: match duty.takes() {
                None if standing.is_ready() => Standing::Draining,
                _ => standing,
            },
            prefill_queued_requests: load.prefill_queued_requests,
            prefill_queued_tokens: load.prefill_queued_tokens,
            decode_running: load.decode_running,
            decode_slots: spec.decode_slots,
            kv_used: load.kv_used,
            prefill_busy: load.prefill_busy,
            decode_busy: load.decode_busy,
            prefill_ns_per_token: load.prefill_ns_per_token,
            prefill_curve: load.prefill_curve,
            decode_step_us: load.decode_step_us,
            price_micros_per_kilotoken: spec.price_micros_per_kilotoken,
        }
    }

    /// KV that was ordered from a site and has not come, as far as this site's own requests tell: what their prompts
    /// leave to compute.
    fn ordered_from(&self, site: SiteIndex) -> Bytes {
        let there = self.instances.iter().filter(|known| known.site == site);
        there
            .map(|known| {
                let (requests, tokens) = known.on_the_way.read();
                let fixed = self.kv.fixed.0.saturating_mul(u64::from(requests));
                Bytes(fixed.saturating_add(self.kv.per_token.0.saturating_mul(u64::from(tokens.0))))
            })
            .sum()
    }

    fn link_views(&self) -> BTreeMap<(SiteIndex, SiteIndex), LinkView> {
        let spec_of = |from: SiteIndex| {
            self.topology.links().iter().find(|l| {
                self.topology.site_index(&l.from) == Some(from)
                    && self.topology.site_index(&l.to) == Some(self.here)
            })
        };
        let now = self.clock.now();
        let view = |(&from, arriving): (&SiteIndex, &Mutex<Arriving>)| {
            let (spec, arriving) = (spec_of(from)?, arriving.lock());
            let monitor = &arriving.monitor;
            let measured = LinkFigures {
                backlog: self.ordered_from(from),
                ..monitor.figures()
            };
            let does = |measured: &LinkFigures, rtt| {
                let floor = self.floors.get(&from).copied().unwrap_or_default();
                floor.admits(measured.delivery, rtt)
            };
            let link = LinkView {
                up: monitor.is_up() && arriving.breaker.is_ready(now) && does(&measured, monitor.rtt()),
                rtt: monitor.rtt(),
                capacity: spec.capacity,
                busy: monitor.busy(),
                loss: monitor.loss(),
                price_micros_per_gib: spec.price_micros_per_gib,
                measured,
            };
            Some(((from, self.here), link))
        };
        self.links.iter().filter_map(view).collect()
    }

    /// Sites, instances and links, with no threshold.
    fn fleet(&self) -> FleetView {
        let sites = self.topology.sites().iter().zip(&self.names.sites);
        let specs = self.topology.instances().map(|(_, spec)| spec);
        FleetView {
            sites: sites
                .map(|(s, e)| SiteView {
                    name: s.name.clone(),
                    jurisdiction: e.jurisdiction,
                })
                .collect(),
            instances: specs
                .zip(&self.instances)
                .map(|(spec, known)| self.instance_view(spec, known))
                .collect(),
            links: self.link_views(),
            elsewhere: Arc::clone(&self.elsewhere),
            offload_threshold: Tokens(0),
            congestion_mark: CONGESTION_MARK,
            bandwidth: Bandwidth::default(),
        }
    }
}

impl Fleet for Chart {
    fn view(&self) -> Arc<FleetView> {
        let mut view = self.fleet();
        let offload = self.offload.lock();
        view.offload_threshold = offload.threshold(&view, self.here, self.kv);
        view.bandwidth = offload.bandwidth(self.here);
        drop(offload);
        Arc::new(view)
    }

    fn names(&self) -> Arc<NameTables> {
        Arc::clone(&self.names)
    }

    fn held(&self, _model: &ModelName, chain: &[BlockHash]) -> Vec<u32> {
        // Hashes are salted with the model, so that another model's entries cannot match.
        let mut held = vec![0; self.instances.len()];
        for (number, blocks) in self.prefixes.held(chain, self.clock.now()) {
            if let Some(tokens) = held.get_mut(number as usize) {
                *tokens = blocks.saturating_mul(INDEX_BLOCK_TOKENS as u32);
            }
        }
        held
    }

    fn predict(&self, instances: &[InstanceIndex], chain: &[BlockHash], about: &Provenance) {
        for instance in instances {
            self.prefixes.predict(instance.0, chain, about, self.clock.now());
        }
    }

    fn claim(&self, instance: InstanceIndex, tokens: Tokens) -> Claim {
        let known = self.instances.get(instance.0 as usize);
        known
            .map(|k| Arc::clone(&k.on_the_way))
            .unwrap_or_default()
            .claim(tokens)
    }

    fn begins(&self, route: Route) {
        let now = self.clock.now();
        let at = |index: InstanceIndex| self.instances.get(index.0 as usize);
        for known in [at(route.prefill), at(route.decode)].into_iter().flatten() {
            known.begins(now);
        }
        let from = at(route.prefill).and_then(|known| self.links.get(&known.site));
        if let Some(link) = from {
            link.lock().breaker.begins(now);
        }
    }

    fn outcome(&self, instance: InstanceIndex, outcome: InstanceOutcome) {
        if let Some(known) = self.instances.get(instance.0 as usize) {
            known.outcome(outcome, self.clock.now());
        }
    }

    fn link_outcome(&self, from: SiteIndex, outcome: InstanceOutcome) {
        if let Some(link) = self.links.get(&from) {
            count(&mut link.lock().breaker, outcome, self.clock.now());
        }
    }

    fn set_service(&self, instance: &InstanceName, service: Service) -> Result<(), NoSuchInstance> {
        let known = self.own(instance);
        known
            .map(|known| known.set_service(service))
            .ok_or_else(|| NoSuchInstance(instance.clone()))
    }

    fn decided(&self, uncached: Tokens) {
        self.offload.lock().decided(uncached);
    }

    fn settled(&self, uncached: Tokens, produced: u32) {
        self.slow.note(SeenRequest {
            at: self.clock.now(),
            // Decode computes the last token even where all of the prompt is cached.
            uncached: Tokens(uncached.0.max(1)),
            produced,
        });
    }

    fn visited(&self, visit: &Visit<'_>) -> Forecast {
        let foresight = self.foresight.as_ref();
        foresight.map_or_else(Forecast::default, |foresight| {
            foresight.visited(self.clock.now(), visit)
        })
    }

    fn members(&self) -> Vec<Member> {
        self.attendance()
    }

    fn load_ages(&self) -> Vec<Option<Duration>> {
        let now = self.clock.now();
        self.instances.iter().map(|known| known.age(now)).collect()
    }

    fn samples(&self) -> Vec<Sample> {
        let of_bus = self.bus.iter().flat_map(|bus| bus.samples());
        self.slow.samples().into_iter().chain(of_bus).collect()
    }
}

/// Links between other sites, as the operator wrote them down.
fn links_elsewhere(topology: &Topology, here: SiteIndex) -> BTreeMap<(SiteIndex, SiteIndex), LinkView> {
    let view = |spec: &crate::LinkSpec| {
        let ends = (topology.site_index(&spec.from)?, topology.site_index(&spec.to)?);
        let link = LinkView {
            up: true,
            rtt: spec.rtt,
            capacity: spec.capacity,
            busy: Permille(0),
            loss: Permille(0),
            price_micros_per_gib: spec.price_micros_per_gib,
            measured: LinkFigures::default(),
        };
        (ends.1 != here).then_some((ends, link))
    };
    topology.links().iter().filter_map(view).collect()
}

#[cfg(test)]
mod tests;
