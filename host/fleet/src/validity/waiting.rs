//! When an order holds everywhere.

use super::LeaseRules;
use super::peers::{Peers, Process};
use portolan_base::{Bytes, Moment, Sequence, SiteName};
use portolan_ports::{AppliedReport, StreamId};
use std::collections::BTreeMap;

/// What a site said of an order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Confirmed {
    /// Which site.
    pub site: SiteName,
    /// When its word came here.
    pub at: Moment,
    /// Copies of blocks that went.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: Bytes,
}

/// Waits until an order holds everywhere: every process that could hold a lease has applied it, or every such lease is
/// over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiting {
    order: Sequence,
    /// When the order was acknowledged.
    acknowledged: Moment,
    rules: LeaseRules,
    /// The stream in which the site that waits has itself come to the order: it has met every beat before it. A position
    /// in any other stream says nothing of the order.
    met_in: Option<StreamId>,
    /// By process and stream, what it said.
    confirmed: BTreeMap<(Process, StreamId), Confirmed>,
}

impl Waiting {
    /// Begins to wait for an order that was acknowledged at this moment.
    pub fn new(order: Sequence, acknowledged: Moment, rules: LeaseRules) -> Self {
        Self {
            order,
            acknowledged,
            rules,
            met_in: None,
            confirmed: BTreeMap::new(),
        }
    }

    /// A process has applied a stream up to here.
    pub fn heard(&mut self, report: &AppliedReport, now: Moment) {
        if report.sequence < self.order {
            return;
        }
        // What went with a later entry did not go with this one.
        let of_order = report.sequence == self.order;
        let confirmed = Confirmed {
            site: report.site.clone(),
            at: now,
            blocks: if of_order { report.blocks } else { 0 },
            bytes: if of_order { report.bytes } else { Bytes(0) },
        };
        let process = (report.site.clone(), report.incarnation);
        let said = (process, report.stream.clone());
        self.confirmed.entry(said).or_insert(confirmed);
    }

    /// The site that waits has applied the order, which it met in this stream.
    pub fn met_in(&mut self, stream: &StreamId) {
        self.met_in = Some(stream.clone());
    }

    /// Whether nothing begins on what the order is about any more, anywhere.
    pub fn is_over(&self, peers: &Peers, now: Moment) -> bool {
        if now.since(self.acknowledged) >= self.rules.longest() {
            return true;
        }
        let Some(stream) = &self.met_in else { return false };
        let said = |process: &Process| self.confirmed.contains_key(&(process.clone(), stream.clone()));
        peers.knows_all(now) && peers.may_hold(now).all(said)
    }

    /// When it is over at the latest.
    pub fn until(&self) -> Moment {
        self.acknowledged + self.rules.longest()
    }

    /// What sites said, in the order of their names.
    pub fn confirmed(&self) -> impl Iterator<Item = &Confirmed> {
        let of_stream = |(_, stream): &&(Process, StreamId)| Some(stream) == self.met_in.as_ref();
        let said = self.confirmed.iter();
        said.filter(move |(by, _)| of_stream(by))
            .map(|(_, confirmed)| confirmed)
    }
}
