//! The slow loop: from what was measured to another division into prefill and decode, instance by instance.

use super::{Event, World};
use portolan_base::{BitsPerSecond, Role};
use portolan_decide::{FleetView, InstanceIndex, InstanceView, SiteIndex};
use portolan_planner::{
    Averaging, DecodeProfile, Fleet, MeasuredLengths, Split, balanced_threshold, best_at_rate,
    best_threshold_at_rate, evaluate,
};
use std::collections::VecDeque;

/// Lengths that a plan is made from.
const KEPT: usize = 4096;

/// Fewer requests since the last plan tell too little.
const ENOUGH: u64 = 100;

/// What another division must gain in expected time to first token, or in throughput, to be worth the draining.
const WORTH: f64 = 0.05;

/// Weight of one period in the moving mean of the rate: 300 requests in a period tell the rate to 6 %, eight times as
/// many to 2 %, which no longer moves instances back and forth.
const RATE_WEIGHT: f64 = 0.25;

/// What a plan is made from.
#[derive(Default)]
pub(super) struct Planning {
    lengths: VecDeque<u32>,
    arrived: u64,
    /// Moving mean of the requests a second.
    rate: Option<f64>,
}

impl Planning {
    pub(super) fn arrived(&mut self, uncached: u32) {
        if self.lengths.len() == KEPT {
            self.lengths.pop_front();
        }
        self.lengths.push_back(uncached);
        self.arrived += 1;
    }
}

impl World<'_> {
    pub(super) fn replan(&mut self) {
        let Some(slow) = self.scenario.slow_loop else {
            return;
        };
        let arrived = std::mem::take(&mut self.planning.arrived);
        let lately = arrived as f64 / slow.period.as_secs_f64();
        let rate = self
            .planning
            .rate
            .map_or(lately, |mean| mean + (lately - mean) * RATE_WEIGHT);
        self.planning.rate = Some(rate);
        if arrived >= ENOUGH
            && let Some(split) = self.better_split(rate)
        {
            self.convert_towards(split);
        }
        if self.is_busy() {
            self.at(self.now() + slow.period, Event::Replanned);
        }
    }

    /// The division that is worth changing to, where there is one. Instances that are being converted count as what
    /// they become.
    fn better_split(&self, rate: f64) -> Option<Split> {
        let home = self.scenario.origins[0].site;
        let (fleet, now) = self.measured(home)?;
        let lengths = MeasuredLengths::new(self.planning.lengths.iter().copied().collect()).ok()?;
        let instances = now.prefill + now.decode;
        if let Some(best) = best_at_rate(&fleet, &lengths, instances, rate) {
            let present = best_threshold_at_rate(&fleet, &lengths, now, rate);
            let gains = present.is_none_or(|present| best.ttft_s < present.ttft_s * (1.0 - WORTH));
            return (gains && best.plan.split != now).then_some(best.plan.split);
        }
        // Nothing keeps up: what serves most.
        let most = |split| {
            evaluate(
                &fleet,
                &lengths,
                balanced_threshold(&fleet, &lengths, split),
                split,
            )
            .lambda_max
        };
        let splits = (1..instances).map(|prefill| Split {
            prefill,
            decode: instances - prefill,
        });
        let best = splits.max_by(|a, b| most(*a).total_cmp(&most(*b)))?;
        (most(best) > most(now) * (1.0 + WORTH)).then_some(best)
    }

    /// The fleet as the views tell it, and how it is divided.
    fn measured(&self, home: SiteIndex) -> Option<(Fleet, Split)> {
        let view = &self.fleet;
        let (from, link) = view.links.iter().find(|((from, to), link)| {
            *to == home && link.up && instances(view, *from).any(|i| i.role.prefills())
        })?;
        let remote = instances(view, from.0).find(|i| i.role.prefills())?;
        let local = instances(view, home).find(|i| i.role.prefills())?;
        let decoder = instances(view, home).find(|i| i.role.decodes())?;
        let delivered = link.measured.delivery.0;
        let usable = if delivered > 0 {
            delivered.min(link.capacity.0)
        } else {
            link.capacity.0
        };
        let fleet = Fleet {
            remote: remote.prefill_curve.into(),
            remote_instances: instances(view, from.0).filter(|i| i.role.prefills()).count() as u32,
            local: local.prefill_curve.into(),
            decode: DecodeProfile {
                batch: decoder.decode_slots,
                step_s: f64::from(decoder.decode_step_us) / 1e6,
                output_tokens: f64::from(self.tally.mean_answer().max(1)),
            },
            kv: self.scenario.kv,
            egress: BitsPerSecond(usable),
            averaging: Averaging::MeanOfTimes,
        };
        let at_home = self.machines.iter().filter(|m| m.config.site == home && m.alive);
        let roles: Vec<Role> = at_home.map(|m| m.becomes.unwrap_or(m.role)).collect();
        let count = |role| roles.iter().filter(|r| **r == role).count() as u32;
        let split = Split {
            prefill: count(Role::Prefill),
            decode: count(Role::Decode),
        };
        (split.prefill > 0 && split.decode > 0).then_some((fleet, split))
    }

    /// Has instances drain that are to change, those with the least to do first.
    fn convert_towards(&mut self, split: Split) {
        let home = self.scenario.origins[0].site;
        let settled = |m: &crate::machine::Machine| m.config.site == home && m.is_ready();
        loop {
            let count = |role| {
                let of = |m: &&crate::machine::Machine| {
                    m.config.site == home && m.alive && m.becomes.unwrap_or(m.role) == role
                };
                self.machines.iter().filter(of).count() as u32
            };
            let (from, to) = match count(Role::Prefill).cmp(&split.prefill) {
                std::cmp::Ordering::Less => (Role::Decode, Role::Prefill),
                std::cmp::Ordering::Equal => return,
                std::cmp::Ordering::Greater => (Role::Prefill, Role::Decode),
            };
            let numbered = (0u32..)
                .zip(&self.machines)
                .filter(|(_, m)| settled(m) && m.role == from);
            let idlest = numbered
                .min_by_key(|(_, m)| (m.assigned_decodes, m.assigned_tokens + m.running(self.now()).1));
            let Some((at, _)) = idlest else {
                return;
            };
            self.machines[at as usize].becomes = Some(to);
            self.show(InstanceIndex(at));
            self.drained(InstanceIndex(at));
        }
    }

    /// Lets an instance that has drained take its new role after the time that takes.
    pub(super) fn drained(&mut self, instance: InstanceIndex) {
        let machine = &self.machines[instance.0 as usize];
        if machine.becomes.is_some()
            && machine.has_drained()
            && let Some(slow) = self.scenario.slow_loop
        {
            self.at(self.now() + slow.conversion, Event::Converted(instance));
        }
    }

    pub(super) fn converted(&mut self, instance: InstanceIndex) {
        let machine = self.machine(instance);
        let Some(role) = machine.becomes.take() else {
            return;
        };
        machine.role = role;
        self.tally.converted();
        self.show(instance);
        if role.prefills() && self.scenario.queueing == crate::scenario::Queueing::PerPool {
            self.start_pool(self.site_of(instance));
        }
    }
}

fn instances(view: &FleetView, site: SiteIndex) -> impl Iterator<Item = &InstanceView> {
    view.instances.iter().filter(move |i| i.site == site)
}
