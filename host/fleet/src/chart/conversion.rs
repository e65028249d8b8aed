//! The slow loop's turn, and what it makes of a site's instances that can do both.

use super::{Chart, Known};
use crate::duties::{Convertible, next_turn};
use portolan_base::{Duty, InstanceName, Role, SiteName};
use portolan_decide::FleetView;
use portolan_planner::Outlook;

/// Whether a site's instances that can do both are divided between prefill and decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conversion {
    /// They do both.
    #[default]
    Never,
    /// As the plan says; each turns once the work it had is done.
    ByPlan,
}

impl Chart {
    /// The same with another way of dividing instances.
    #[must_use]
    pub fn with_conversion(mut self, conversion: Conversion) -> Self {
        self.conversion = conversion;
        self
    }

    /// The slow loop's turn: ends what has drained, plans anew where that is due, and turns an instance where that serves
    /// more.
    pub fn plan_if_due(&self) {
        let mut fleet = self.fleet();
        let turned = self.settle_duties(&fleet);
        if turned {
            fleet = self.fleet();
        }
        let planned = self
            .slow
            .plan_if_due(&fleet, self.here, self.kv, self.clock.now());
        // The next one's turn comes when the last one has ended its own.
        if (planned || turned) && self.conversion == Conversion::ByPlan {
            self.turn_one(fleet);
        }
    }

    /// What an own instance does, where it could do something else.
    pub fn duty(&self, instance: &InstanceName) -> Option<Duty> {
        let (_, known) = self.convertible().find(|(_, known)| known.name == *instance)?;
        Some(known.duty())
    }

    /// Takes what another site says that an instance of it does.
    pub fn heard_duty(&self, site: &SiteName, instance: &InstanceName, duty: Duty) {
        let specs = self.topology.instances().map(|(_, spec)| spec);
        let number = self.number_of(site, instance).map(|number| number as usize);
        let named = number.and_then(|number| self.instances.iter().zip(specs).nth(number));
        if let Some((known, _)) = named.filter(|(_, spec)| spec.role == Role::Both) {
            known.set_duty(duty);
        }
    }

    /// This site's instances that can do both and whose KV is the host's to move, with their index.
    fn convertible(&self) -> impl Iterator<Item = (usize, &Known)> {
        let specs = self.topology.instances().map(|(_, spec)| spec);
        let both = self.instances.iter().zip(specs).enumerate();
        both.filter(|(_, (known, spec))| known.site == self.here && spec.role == Role::Both)
            .filter(|(_, (_, spec))| spec.serving.is_pieces())
            .map(|(index, (known, _))| (index, known))
    }

    /// Lets those that have drained take up their new role. Returns whether one did.
    fn settle_duties(&self, fleet: &FleetView) -> bool {
        let mut changed = false;
        for (index, known) in self.convertible() {
            let duty = known.duty();
            let settled = fleet
                .instances
                .get(index)
                .map_or(duty, |view| Convertible::new(duty, view).settled());
            changed |= settled != duty;
            known.set_duty(settled);
        }
        changed
    }

    /// Turns the one instance that should, if any.
    fn turn_one(&self, mut fleet: FleetView) {
        let own: Vec<_> = self.convertible().collect();
        let each = own.iter().filter_map(|(index, known)| {
            let duty = known.duty();
            fleet
                .instances
                .get(*index)
                .map(|view| Convertible::new(duty, view))
        });
        let each: Vec<_> = each.collect();
        for (index, _) in &own {
            if let Some(view) = fleet.instances.get_mut(*index) {
                view.role = Role::Both;
            }
        }
        let Some(division) = self.slow.division(&fleet, self.here, self.kv) else {
            // Nobody to offload to: what can do both, does.
            for (_, known) in own {
                known.set_duty(known.duty().turned(Role::Both));
            }
            return;
        };
        let capacity = self.slow.outlook().map_or(0.0, |outlook| outlook.capacity);
        let Some((position, to)) = next_turn(&each, &division, capacity) else {
            return;
        };
        if let Some((_, known)) = own.get(position) {
            let duty = known.duty();
            tracing::info!(instance = %known.name, from = ?duty.role(), ?to, "turns once its work is done");
            known.set_duty(duty.turned(to));
        }
    }

    /// The slow loop's plan; none while too little is known.
    pub fn outlook(&self) -> Option<Outlook> {
        self.slow.outlook()
    }
}
