//! Tells the other sites: who is there, load and prefix summaries. Nothing on the bus holds a token id.

use crate::control::{Invalidated, StreamId};
use crate::validity::SiteEffect;
use crate::{EngineLoad, Sample};
use portolan_base::{Bytes, Duty, InstanceName, Moment, PatternId, Sequence, SiteName};
use portolan_decide::Standing;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
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

/// A site asks all sites what an order would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectQuestion {
    /// Who asks.
    pub by: SiteName,
    /// Names the question.
    pub number: u64,
    /// The order.
    pub what: Invalidated,
}

/// What an order would do at a site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectReply {
    /// Who asked.
    pub to: SiteName,
    /// The question.
    pub number: u64,
    /// The answer.
    pub effect: SiteEffect,
}

/// How long a site that says nothing is taken to be there: ten heartbeats.
pub const PRESENCE_LEASE: Duration = Duration::from_secs(5);

/// What a site says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SiteState {
    /// It serves.
    Up,
    /// It finishes what it has and takes nothing more.
    Draining,
    /// It ends in order: its lease is over with this message.
    Left,
}

/// A site's heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SitePresence {
    /// Which.
    pub site: SiteName,
    /// Greater at each start of the site.
    pub incarnation: u64,
    /// Numbers its heartbeats from 0.
    pub sequence: u64,
    /// What it does.
    pub state: SiteState,
    /// How long this is good for, in ms, counted from when it is heard.
    pub lease_ms: u64,
}

/// What sites tell each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BusMessage {
    /// A site is there.
    Presence(SitePresence),
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
    /// Somebody wants to know what an order would do.
    EffectWanted(EffectQuestion),
    /// What it would do at a site.
    Effect(EffectReply),
}

impl BusMessage {
    /// The site that says it.
    pub fn from(&self) -> &SiteName {
        match self {
            Self::Presence(presence) => &presence.site,
            Self::Load(report) => &report.site,
            Self::Prefixes(told) => &told.from,
            Self::SnapshotWanted(request) => &request.by,
            Self::Visits(visits) => &visits.from,
            Self::Applied(report) => &report.site,
            Self::EffectWanted(question) => &question.by,
            Self::Effect(reply) => &reply.effect.site,
        }
    }

    /// The one site it is for; none: whoever routes to the one that says it.
    pub fn receiver(&self) -> Option<&SiteName> {
        match self {
            Self::Presence(_) | Self::Load(_) | Self::Applied(_) | Self::EffectWanted(_) => None,
            Self::Effect(reply) => Some(&reply.to),
            Self::Visits(visits) => Some(&visits.to),
            Self::Prefixes(told) => Some(&told.to),
            Self::SnapshotWanted(request) => Some(&request.of),
        }
    }
}

/// Publishes to every subscriber that may read it, the publisher's own process included. Messages of one site about
/// itself come in the order in which it published them, and so do its summaries to one receiver. A message may be lost:
/// whatever matters is numbered or said again. A subscriber that falls behind is told so by its receiver and misses
/// messages; it never slows the publisher.
pub trait Bus: Send + Sync {
    /// Tells everyone.
    fn publish(&self, message: BusMessage);
    /// Hears everything published from now on.
    fn subscribe(&self) -> broadcast::Receiver<BusMessage>;
    /// Numbers of its own for the metrics page.
    fn samples(&self) -> Vec<Sample> {
        Vec::new()
    }
}
