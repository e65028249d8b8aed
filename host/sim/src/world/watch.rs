//! What decisions see, kept up as things change.
//!
//! Queues are what a router counts itself, to the request; speeds, busy shares and links are as of the last report,
//! as on a live host.

use super::World;
use crate::machine::Machine;
use crate::scenario::{Queueing, Scenario, ThresholdSource};
use portolan_base::{Permille, Tokens};
use portolan_decide::{
    Bandwidth, FleetView, InstanceIndex, LinkFigures, LinkView, OffloadControl, OffloadControlConfig,
    SiteIndex, SiteView,
};
use std::time::Duration;

/// How often loads are reported and links are read: as on a live host.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// What decisions see before anything happened.
pub(super) fn first_view(scenario: &Scenario, machines: &[Machine]) -> FleetView {
    let site = |site: &crate::SimSite| SiteView {
        name: site.name.clone(),
        jurisdiction: site.jurisdiction,
    };
    let link = |link: &crate::SimLink| LinkView {
        up: true,
        rtt: link.rtt,
        capacity: link.capacity,
        busy: Permille(0),
        loss: Permille(0),
        price_micros_per_gib: link.price_micros_per_gib,
        measured: LinkFigures::default(),
    };
    FleetView {
        sites: scenario.sites.iter().map(site).collect(),
        instances: machines.iter().map(Machine::view).collect(),
        links: scenario.links.iter().map(|(ends, l)| (*ends, link(l))).collect(),
        elsewhere: Default::default(),
        offload_threshold: match scenario.threshold {
            ThresholdSource::Static(tokens) => tokens,
            ThresholdSource::Adaptive => Tokens(0),
        },
        congestion_mark: scenario.congestion_mark,
        bandwidth: Bandwidth::default(),
    }
}

/// The control of a live host, where the scenario asks for it.
pub(super) fn control(scenario: &Scenario) -> Option<OffloadControl> {
    let config = OffloadControlConfig {
        congested: scenario.congestion_mark,
        relieved: Permille(scenario.congestion_mark.0.saturating_sub(100)),
        overlap: scenario.overlap,
        ..OffloadControlConfig::default()
    };
    matches!(scenario.threshold, ThresholdSource::Adaptive).then(|| OffloadControl::new(config))
}

impl World<'_> {
    /// Shows an instance as it is after something happened to it; in a shared queue, those it shares it with.
    pub(super) fn show(&mut self, instance: InstanceIndex) {
        let now = self.now();
        if self.scenario.queueing == Queueing::PerInstance {
            let at = instance.0 as usize;
            self.machines[at].show_queue(now, (0, 0), &mut self.fleet.instances[at]);
            return;
        }
        let site = self.site_of(instance);
        let takes = |m: &Machine| m.config.site == site && m.role.prefills() && m.is_ready();
        let sharers = self.machines.iter().filter(|m| takes(m)).count().max(1);
        let pool = &self.pools[site.0 as usize];
        let shared = (
            pool.assigned_requests.div_ceil(sharers as u32),
            pool.assigned_tokens.div_ceil(sharers as u64),
        );
        for (machine, view) in self.machines.iter().zip(&mut self.fleet.instances) {
            if machine.config.site == site {
                let shared = if takes(machine) { shared } else { (0, 0) };
                machine.show_queue(now, shared, view);
            }
        }
    }

    pub(super) fn show_backlog(&mut self, link: usize) {
        let (ends, pipe) = &self.pipes[link];
        if let Some(view) = self.fleet.links.get_mut(ends) {
            view.measured.backlog = pipe.backlog();
        }
    }

    /// Reads every load and every link.
    pub(super) fn sample(&mut self) {
        let now = self.now();
        for (machine, view) in self.machines.iter_mut().zip(&mut self.fleet.instances) {
            machine.report(now, view);
        }
        if self.scenario.queueing == Queueing::PerInstance {
            for (machine, view) in self.machines.iter().zip(&mut self.fleet.instances) {
                machine.show_queue(now, (0, 0), view);
            }
        } else {
            self.show_every_site();
        }
        for (ends, pipe) in &mut self.pipes {
            pipe.sample(now);
            if let Some(view) = self.fleet.links.get_mut(ends) {
                view.up = pipe.up;
                view.rtt = pipe.link.rtt;
                view.loss = pipe.loss;
                view.busy = pipe.busy();
                view.measured.delivery = pipe.delivery();
                view.measured.retransmits = pipe.loss;
                view.measured.backlog = pipe.backlog();
            }
        }
        if let Some(control) = &mut self.control {
            control.observe(now, &self.fleet, self.scenario.kv);
        }
        self.sample_later();
    }

    pub(super) fn show_every_site(&mut self) {
        let mut shown = Vec::new();
        for i in 0..self.machines.len() {
            let site = self.machines[i].config.site;
            if !shown.contains(&site) {
                shown.push(site);
                self.show(InstanceIndex(i as u32));
            }
        }
    }

    /// Sets the threshold in force for a request that came in at `origin`.
    pub(super) fn set_threshold(&mut self, origin: SiteIndex) {
        if let Some(control) = &self.control {
            let threshold = control.threshold(&self.fleet, origin, self.scenario.kv);
            self.fleet.offload_threshold = threshold;
            self.fleet.bandwidth = control.bandwidth(origin);
        }
    }
}
