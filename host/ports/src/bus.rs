//! Tells the other sites: load and prefix summaries. Nothing on the bus holds a token id.

use crate::EngineLoad;
use crate::control::StreamId;
use portolan_base::{Bytes, Duty, InstanceName, Moment, PatternId, Sequence, SiteName};
use portolan_decide::Standing;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::sync::broadcast;

/// An instance's load at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceLoadReport {
    /// Where.
    pub site: SiteName,
    /// Which.
    pub instance: InstanceName,
    /// How loaded.
    pub load: EngineLoad,
    /// What its own site thinks of it.
    #[serde(default)]
    pub standing: Standing,
    /// What it does of what it can do; none where that is all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duty: Option<Duty>,
    /// When it was measured.
    pub at: Moment,
}

/// What an instance holds, told to one other site: a snapshot or changes in `portolan_kv::summary`'s form, under the
/// receiver's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixSummary {
    /// Where.
    pub from: SiteName,
    /// Which.
    pub instance: InstanceName,
    /// Who may read it.
    pub to: SiteName,
    /// The message.
    pub summary: Arc<[u8]>,
}

/// A summary's reader missed something, and asks its writer for a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRequest {
    /// Who asks.
    pub by: SiteName,
    /// Whose instance.
    pub of: SiteName,
    /// Which.
    pub instance: InstanceName,
    /// The incarnation of the message that showed the gap.
    pub incarnation: u64,
    /// Its number: a snapshot with a later one answers the request.
    pub sequence: u64,
}

/// Patterns of requests that a site was asked by, told to one other site under the receiver's key: only those of requests
/// whose data the receiver may see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Visits {
    /// Where.
    pub from: SiteName,
    /// Who may read it.
    pub to: SiteName,
    /// Each request's patterns, in the order the requests came.
    pub patterns: Vec<PatternId>,
}

/// A site has applied everything in the control stream up to an entry: it begins nothing on what those entries are
/// about. Once lost it is not told again; whoever waits for it then waits until the site's lease is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedReport {
    /// Which site.
    pub site: SiteName,
    /// Which process of it.
    pub incarnation: u64,
    /// The stream.
    pub stream: StreamId,
    /// The last entry that was applied.
    pub sequence: Sequence,
    /// When that entry came, by the site's clock.
    pub received_at: Moment,
    /// When it was applied, by the site's clock.
    pub applied_at: Moment,
    /// Copies of blocks that went with that entry.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: Bytes,
}

/// What sites tell each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BusMessage {
    /// An instance's load.
    Load(InstanceLoadReport),
    /// What an instance holds.
    Prefixes(PrefixSummary),
    /// A snapshot is wanted.
    SnapshotWanted(SnapshotRequest),
    /// Who asked.
    Visits(Visits),
    /// A site is up to date as far as an entry of the control stream.
    Applied(AppliedReport),
}

/// Publishes to every subscriber, the publisher's own included. A subscriber that falls behind is told so by its
/// receiver and misses messages; it never slows the publisher.
pub trait Bus: Send + Sync {
    /// Tells everyone.
    fn publish(&self, message: BusMessage);
    /// Hears everything published from now on.
    fn subscribe(&self) -> broadcast::Receiver<BusMessage>;
}
