//! Which processes could hold a lease.

use super::LeaseRules;
use portolan_base::{Moment, SiteName};
use portolan_ports::Beat;
use std::collections::BTreeMap;
use std::time::Duration;

/// A process of a site.
pub(super) type Process = (SiteName, u64);

/// The processes whose beats came by in the control stream. Whoever holds a lease asked for it by a beat.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peers {
    /// By process, when its latest beat came.
    heard: BTreeMap<Process, Moment>,
    longest: Duration,
    /// Beats that came before are not known.
    since: Moment,
}

impl Peers {
    /// Begins to listen.
    pub fn new(rules: LeaseRules, now: Moment) -> Self {
        Self {
            heard: BTreeMap::new(),
            longest: rules.longest(),
            since: now,
        }
    }

    /// The stream is another one from here on: beats of the one before may have gone by unheard.
    pub fn begins_anew(&mut self, now: Moment) {
        self.since = now;
    }

    /// A beat came by.
    pub fn heard(&mut self, beat: &Beat, now: Moment) {
        self.heard.insert((beat.site.clone(), beat.incarnation), now);
        let longest = self.longest;
        self.heard.retain(|_, at| now.since(*at) < longest);
    }

    /// The processes that may hold a lease.
    pub(super) fn may_hold(&self, now: Moment) -> impl Iterator<Item = &Process> {
        let recent = move |at: Moment| now.since(at) < self.longest;
        self.heard
            .iter()
            .filter(move |(_, at)| recent(**at))
            .map(|(process, _)| process)
    }

    /// Whether no lease is left of those whose beats came before listening began.
    pub(super) fn knows_all(&self, now: Moment) -> bool {
        now.since(self.since) >= self.longest
    }

    /// How many processes beat lately.
    pub fn count(&self, now: Moment) -> usize {
        self.may_hold(now).count()
    }
}
