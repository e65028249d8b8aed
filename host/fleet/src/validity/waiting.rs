//! When an order holds everywhere.

use super::LeaseRules;
use super::peers::{Peers, Process};
use portolan_base::{Bytes, Moment, Sequence, SiteName};
use portolan_ports::AppliedReport;
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
    /// Whether the site that waits has itself come to the order: it has met every beat before it.
    knows_beats: bool,
    confirmed: BTreeMap<Process, Confirmed>,
}

impl Waiting {
    /// Begins to wait for an order that was acknowledged at this moment.
    pub fn new(order: Sequence, acknowledged: Moment, rules: LeaseRules) -> Self {
        Self {
            order,
            acknowledged,
            rules,
            knows_beats: false,
            confirmed: BTreeMap::new(),
        }
    }

    /// A process has applied the stream up to here.
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
        self.confirmed.entry(process).or_insert(confirmed);
    }

    /// The site that waits has taken everything in up to here.
    pub fn came_to(&mut self, applied: Sequence) {
        self.knows_beats |= applied >= self.order;
    }

    /// Whether nothing begins on what the order is about any more, anywhere.
    pub fn is_over(&self, peers: &Peers, now: Moment) -> bool {
        if now.since(self.acknowledged) >= self.rules.longest() {
            return true;
        }
        let all = || {
            peers
                .may_hold(now)
                .all(|process| self.confirmed.contains_key(process))
        };
        self.knows_beats && peers.knows_all(now) && all()
    }

    /// When it is over at the latest.
    pub fn until(&self) -> Moment {
        self.acknowledged + self.rules.longest()
    }

    /// What sites said, in the order of their names.
    pub fn confirmed(&self) -> impl Iterator<Item = &Confirmed> {
        self.confirmed.values()
    }
}
