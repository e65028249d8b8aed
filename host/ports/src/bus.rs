//! Tells the other sites: load and prefix summaries. Nothing on the bus holds a token id.

use crate::{EngineLoad, KvEvent};
use portolan_base::{InstanceName, ModelName, Moment, SiteName};
use serde::{Deserialize, Serialize};
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
    /// When it was measured.
    pub at: Moment,
}

/// A change in what an instance holds, by keyed hashes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixChange {
    /// Where.
    pub site: SiteName,
    /// Which.
    pub instance: InstanceName,
    /// The model the hashes belong to.
    pub model: ModelName,
    /// Drawn when the instance started: a new one means all earlier entries are gone.
    pub incarnation: u64,
    /// Counts from 0 within an incarnation: a gap means changes were lost.
    pub sequence: u64,
    /// What changed.
    pub event: KvEvent,
}

/// What sites tell each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BusMessage {
    /// An instance's load.
    Load(InstanceLoadReport),
    /// A change in what an instance holds.
    Prefix(PrefixChange),
}

/// Publishes to every subscriber, the publisher's own included. A subscriber that falls behind is told so by its
/// receiver and misses messages; it never slows the publisher.
pub trait Bus: Send + Sync {
    /// Tells everyone.
    fn publish(&self, message: BusMessage);
    /// Hears everything published from now on.
    fn subscribe(&self) -> broadcast::Receiver<BusMessage>;
}
