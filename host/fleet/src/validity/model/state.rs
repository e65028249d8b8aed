//! What there is at a moment of a run: clocks, the stream, sites, what is on its way.

use super::{Flaw, PARIS};
use crate::validity::{Peers, SiteValidity, Taken, Waiting};
use portolan_base::{Moment, Scope, Sequence, SiteName};
use portolan_ports::{Begun, ControlEntry, ControlEvent, StreamId};
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    /// Of Paris and of Tokyo.
    pub(super) clocks: [u64; 2],
    /// What was appended, in order.
    pub(super) stream: Vec<ControlEvent>,
    /// What is on its way to the stream, in any order.
    pub(super) to_append: Vec<ControlEvent>,
    pub(super) sites: [SiteValidity; 2],
    /// The last entry that each site met.
    pub(super) met: [usize; 2],
    pub(super) beats: [u64; 2],
    /// Who holds the block, in memory or on disk.
    pub(super) holds: [bool; 2],
    /// What sites said, each heard any number of times, at any time.
    pub(super) said: BTreeSet<(usize, u64, u64)>,
    pub(super) ordered: bool,
    pub(super) peers: Peers,
    pub(super) waiting: Option<Waiting>,
    pub(super) fetch: Fetch,
    pub(super) restarts: u8,
}

/// Paris fetches the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fetch {
    NotYet,
    Asked(Begun),
    /// Tokyo has sent it.
    OnItsWay(Begun),
    Done,
}

pub(super) fn site(index: usize) -> SiteName {
    let name = ["paris", "tokyo"][index];
    SiteName::new(name).expect("a name")
}

pub(super) fn stream_id() -> StreamId {
    StreamId("s".to_owned())
}

impl State {
    pub(super) fn now(&self, site: usize) -> Moment {
        Moment(self.clocks[site])
    }

    pub(super) fn order_at(&self) -> Option<usize> {
        self.stream
            .iter()
            .position(|event| matches!(event, ControlEvent::Invalidation(_)))
    }

    pub(super) fn is_over(&self) -> bool {
        let waiting = self.waiting.as_ref();
        waiting.is_some_and(|waiting| waiting.is_over(&self.peers, self.now(PARIS)))
    }

    pub(super) fn could_begin(&self, site: usize) -> bool {
        self.holds[site] && self.sites[site].is_valid(self.now(site))
    }

    /// Whether Paris could begin on what it ordered from Tokyo.
    pub(super) fn could_take(&self, flaw: Flaw) -> bool {
        let Fetch::OnItsWay(begun) = self.fetch else {
            return false;
        };
        let paris = &self.sites[PARIS];
        let outdated = !paris.still(begun, &Scope::Public, |_| true) && flaw != Flaw::TakesWhatWasOnItsWay;
        paris.is_valid(self.now(PARIS)) && !outdated
    }

    pub(super) fn say(&mut self, site: usize) {
        let validity = &self.sites[site];
        self.said
            .insert((site, validity.incarnation(), validity.applied_to().0));
    }

    pub(super) fn meet(&mut self, site: usize, index: usize, flaw: Flaw) {
        let entry = ControlEntry {
            sequence: Sequence(index as u64 + 1),
            event: self.stream[index].clone(),
        };
        if let ControlEvent::Beat(beat) = &entry.event
            && site == PARIS
        {
            let now = self.now(PARIS);
            self.peers.heard(beat, now);
        }
        let taken = self.sites[site].take(&entry);
        if matches!(taken, Taken::Apply(_)) && flaw == Flaw::SaysSoTooEarly {
            self.sites[site].applied();
            self.say(site);
        }
        if matches!(taken, Taken::Renewed(_)) {
            self.say(site);
        }
        self.came_to();
    }

    pub(super) fn came_to(&mut self) {
        let order = self.order_at().map(|index| Sequence(index as u64 + 1));
        if let Some(waiting) = &mut self.waiting
            && order.is_some_and(|order| self.sites[PARIS].applied_to() >= order)
        {
            waiting.met_in(&stream_id());
        }
    }
}
