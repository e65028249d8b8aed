//! Links that change, sites that go and come back.

use super::{Event, World};
use crate::flight::{Stage, Ticket};
use crate::scenario::Happening;
use portolan_base::Moment;
use portolan_decide::SiteIndex;
use std::time::Duration;

/// From the loss of a site until requests that were being prefilled there go elsewhere: the floor of the time that a
/// remote prefill is waited for.
const NOTICED: Duration = Duration::from_millis(2_000);

impl World<'_> {
    pub(super) fn happen(&mut self, change: usize) {
        let now = self.now();
        match self.scenario.changes[change].what {
            Happening::Link {
                ends,
                capacity,
                rtt,
                loss,
            } => {
                if let Some(link) = self.link(ends.0, ends.1) {
                    let through = self.pipes[link].1.change(now, |pipe| {
                        (pipe.link.capacity, pipe.link.rtt, pipe.loss) = (capacity, rtt, loss);
                    });
                    self.plan_sent(link, through);
                }
            }
            Happening::SiteLost(site) => self.lose(site, now),
            Happening::SiteBack(site) => {
                let back = |m: &&mut crate::machine::Machine| m.config.site == site;
                self.machines.iter_mut().filter(back).for_each(|m| m.alive = true);
                self.join(site, true);
                self.show_every_instance();
            }
        }
    }

    fn lose(&mut self, site: SiteIndex, now: Moment) {
        let here = |instance| self.site_of(instance) == site;
        let touched: Vec<(Ticket, bool)> = self
            .flights
            .all()
            .filter_map(|(ticket, flight)| {
                let route = flight.served.route;
                let answering = here(route.decode);
                let computing = here(route.prefill) && flight.stage != Stage::Decoding;
                (answering || computing).then_some((ticket, answering))
            })
            .collect();
        for (ticket, answering) in touched {
            self.take_back(ticket, site);
            if answering {
                // Who waited for it there has lost the connection.
                if let Some(flight) = self.flights.remove(ticket) {
                    self.refuse(flight.request, "its site was lost".to_owned());
                }
            } else if let Some(flight) = self.flights.remove(ticket) {
                let again = self.flights.add(flight);
                self.at(now + NOTICED, Event::Again(again));
            }
        }
        let pool = &mut self.pools[site.0 as usize];
        *pool = super::PoolQueue::default();
        for machine in self.machines.iter_mut().filter(|m| m.config.site == site) {
            machine.lose(now, &mut self.index);
        }
        self.join(site, false);
        self.show_every_instance();
    }

    /// Undoes what a flight counts for at machines that stay.
    fn take_back(&mut self, ticket: Ticket, lost: SiteIndex) {
        let now = self.now();
        let Some(flight) = self.flights.get(ticket).copied() else {
            return;
        };
        let route = flight.served.route;
        if let Some(link) = self.link(self.site_of(route.prefill), self.site_of(route.decode)) {
            self.pipes[link].1.settle(flight.ordered);
        }
        if self.site_of(route.decode) != lost {
            self.machine(route.decode).assigned_decodes -= 1;
        }
        let site = self.site_of(route.prefill);
        if site == lost {
            return;
        }
        match flight.stage {
            Stage::Queued => {
                let tokens = u64::from(flight.expected_tokens);
                let per_pool = self.scenario.queueing == crate::scenario::Queueing::PerPool;
                let (requests, assigned) = if per_pool {
                    let pool = &mut self.pools[site.0 as usize];
                    (&mut pool.assigned_requests, &mut pool.assigned_tokens)
                } else {
                    let machine = self.machine(route.prefill);
                    (&mut machine.assigned_requests, &mut machine.assigned_tokens)
                };
                *requests -= 1;
                *assigned -= tokens;
            }
            Stage::Prefilling => {
                // Nobody waits for it: the cancelled prefill ends at once.
                let machine = self.machine(route.prefill);
                machine.end(now);
                self.at(now, Event::Freed(route.prefill));
            }
            Stage::Sending | Stage::Decoding => {}
        }
    }

    /// Links from and to a site.
    fn join(&mut self, site: SiteIndex, up: bool) {
        let now = self.now();
        for (ends, pipe) in &mut self.pipes {
            if ends.0 == site || ends.1 == site {
                pipe.up = up;
                if !up {
                    pipe.drop_all(now);
                }
            }
        }
    }

    fn show_every_instance(&mut self) {
        for i in 0..self.machines.len() {
            self.show(portolan_decide::InstanceIndex(i as u32));
        }
    }
}
