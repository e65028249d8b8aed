//! What happened in one schedule: what clients asked and were answered, what crossed between sites, what engines began
//! on, and what path records, audit logs and the control stream say. The checker sees this and nothing else.
//!
//! Whatever is *begun* is stamped before it looks, and whatever has *returned* is stamped after it came back, so that a
//! greater stamp proves an order of events whichever thread was first.

use portolan_base::{BlockId, Provenance};
use portolan_decide::PathRecord;
use portolan_ports::{AuditRecord, Invalidated};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Microseconds since the schedule began, by one clock for all sites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp(pub u64);

/// Everything that happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// Each site's jurisdiction.
    pub(crate) sites: BTreeMap<String, String>,
    /// Each tenant's jurisdiction; empty: any.
    pub(crate) tenants: BTreeMap<String, String>,
    pub(crate) asks: Vec<Ask>,
    pub(crate) orders: Vec<Ordered>,
    /// KV that was computed, by [`BirthId`].
    pub(crate) births: Vec<Birth>,
    pub(crate) begins: Vec<Begin>,
    /// Whatever of a request reached a site.
    pub(crate) reached: Vec<Reached>,
    /// What the control stream held at the end, by the reason that each order carries; none where nobody could look.
    pub(crate) stream: Option<BTreeMap<String, Appended>>,
    pub(crate) ends: Vec<End>,
    /// Versions that were bound to one slot of the fleet, in the order in which one client bound them.
    pub(crate) bound: Vec<Bound>,
    /// The version that each site has bound in the end.
    pub(crate) in_force: BTreeMap<String, Option<String>>,
    /// Each site's audit log, oldest first.
    pub(crate) audits: BTreeMap<String, Vec<AuditRecord>>,
    /// Sites whose folder was replaced by an older copy: what their logs had said since is gone with it.
    pub(crate) rolled_back: BTreeSet<String>,
    /// Requests and orders that had not ended long after everything was mended.
    pub(crate) never_ended: BTreeSet<String>,
    /// The longest that a request may take, whatever breaks; none: not looked at.
    pub(crate) patience: Option<Duration>,
}

/// A version that somebody asked to be bound.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) version: String,
    pub(crate) acknowledged: bool,
}

/// A request as its client saw it.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) request: String,
    pub(crate) tenant: String,
    pub(crate) site: String,
    /// Asks of one family send the same prompt.
    pub(crate) family: u32,
    pub(crate) sent: Stamp,
    pub(crate) ended: Stamp,
    /// What a site alone, without faults, would answer.
    pub(crate) expected: Vec<u32>,
    pub(crate) outcome: Outcome,
    /// Where it was asked, once it had settled.
    pub(crate) record: Option<PathRecord>,
    /// The site was killed before its record could be read.
    pub(crate) site_died: bool,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The whole answer.
    Answered(Vec<u32>),
    /// An error before the first token: status and code.
    Refused(u16, String),
    /// These tokens, then an error event.
    BrokenOff(Vec<u32>),
    /// These tokens, then nothing: the stream ended as if all were well.
    CutInSilence(Vec<u32>),
    /// The site was killed, or the client left.
    Gone,
}

/// An invalidation as whoever gave it saw it.
#[derive(Clone, Debug)]
pub(crate) struct Ordered {
    /// Its reason, which no other has.
    pub(crate) reason: String,
    pub(crate) site: String,
    /// None: no tenant's alone.
    pub(crate) tenant: Option<String>,
    pub(crate) waited: bool,
    /// Before it was given, and before anybody was told of the version that it tells.
    pub(crate) sent: Stamp,
    pub(crate) answered: Stamp,
    /// Whether it was acknowledged; with `waited`, whether the promise was given.
    pub(crate) acknowledged: bool,
    /// Families of prompts all of whose KV it is about, as they were when it was given.
    pub(crate) families: BTreeSet<u32>,
}

/// Names KV that was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BirthId(pub u64);

/// The KV of one block was computed.
#[derive(Clone, Debug)]
pub(crate) struct Birth {
    pub(crate) request: String,
    /// The blocks of its prompt up to it, by the names under which it was kept; empty where it was kept nowhere, or under
    /// several names: of an order about one block by its name nothing can be said then.
    pub(crate) chain: Vec<BlockId>,
    /// Whether it was kept under several names.
    pub(crate) has_aliases: bool,
    pub(crate) about: Arc<Provenance>,
    pub(crate) at: Stamp,
}

/// What was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Began {
    Prefill,
    Fetch,
    Decode,
}

/// Something was begun on KV that was not computed for it.
#[derive(Clone, Debug)]
pub(crate) struct Begin {
    pub(crate) what: Began,
    pub(crate) site: String,
    pub(crate) request: String,
    pub(crate) births: Vec<BirthId>,
    pub(crate) at: Stamp,
}

/// Something of a request was at a site.
#[derive(Clone, Debug)]
pub(crate) struct Reached {
    pub(crate) site: String,
    pub(crate) tenant: String,
    /// Where its data may be; empty: anywhere.
    pub(crate) jurisdiction: String,
    /// What was done with it there.
    pub(crate) how: &'static str,
}

/// An order in the control stream.
#[derive(Clone, Debug)]
pub(crate) struct Appended {
    pub(crate) what: Invalidated,
    /// Before it was appended.
    pub(crate) before: Stamp,
}

/// A site after everything was mended.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) site: String,
    /// Why it had not caught up with the control stream; none: it had.
    pub(crate) behind: Option<String>,
    /// KV that it would use.
    pub(crate) usable: Vec<BirthId>,
}
