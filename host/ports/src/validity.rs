//! Whether cached KV may be used: what the stages of a request ask before they begin, and how an order is given.

use crate::Sample;
use crate::control::{ControlError, Invalidated, Invalidation, Running, StreamId};
use async_trait::async_trait;
use portolan_base::{Bytes, ModelName, Moment, Provenance, Sequence, SiteName};
use portolan_kv::Selector;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::sync::broadcast;

/// Where a site was in the control stream when something began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Begun {
    /// How often the site had begun to follow anew.
    pub generation: u64,
    /// Everything up to here was applied.
    pub applied: Sequence,
}

/// How far a site has applied which control stream. In an order for KV: what is cached at the holder's site may be used only
/// if that has come as far in the same stream, since the receiver knows of orders that the holder may not have heard of
/// yet. Positions of two streams say nothing of each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AsOf {
    /// Everything up to here was applied.
    pub applied: Sequence,
    /// The stream; none where there is none to follow, or none was found yet.
    pub stream: Option<StreamId>,
}

impl AsOf {
    /// Nothing cached is to be used: no site ever comes so far.
    pub const NOTHING_CACHED: Self = Self {
        applied: Sequence(u64::MAX),
        stream: None,
    };

    /// Whether a site that is here has heard of all that one at `other` has heard of.
    pub fn has_reached(&self, other: &Self) -> bool {
        self.stream == other.stream && self.applied >= other.applied
    }
}

/// KV that something is about to begin on.
#[derive(Clone, Copy, Debug)]
pub struct InUse<'a> {
    /// When what made it began.
    pub begun: Begun,
    /// Whose it is, which model made it, and what it depends on.
    pub about: &'a Provenance,
}

/// Why KV must not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stale {
    /// The site does not know whether it was invalidated.
    #[error(
        "the site's cache-validity lease has lapsed; what is cached or fetched is not used until it has caught up"
    )]
    Lapsed,
    /// It was invalidated.
    #[error("the KV was invalidated after the request began with it")]
    Invalidated,
}

/// An order to be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// What is wrong from now on.
    pub what: Invalidated,
    /// Who says so.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// What becomes of requests that run on it.
    pub running: Running,
}

/// What one site said of an order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteApplied {
    /// Which site.
    pub site: SiteName,
    /// Milliseconds from when the order was given until the site's word came that it has applied it; none: it did not
    /// say so before its lease was over.
    pub applied_ms: Option<f64>,
}

/// An order that was given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Given {
    /// Its position in the control stream: of a model, the part of its version that rises.
    pub id: Sequence,
    /// Copies of blocks that went, at the sites that said so.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: Bytes,
    /// What each site said, by name; empty when nobody waited for it.
    pub sites: Vec<SiteApplied>,
}

/// How long whoever orders waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Patience {
    /// Until the order cannot be lost.
    Acknowledged,
    /// Until it holds everywhere: no prefill, fetch or decode begins on what it is about.
    Everywhere,
}

/// What an order would do at a site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteEffect {
    /// Which site.
    pub site: SiteName,
    /// Copies of blocks that would go.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: Bytes,
}

/// Decides which blocks of a site die when a thing changes, beside what the host keeps to itself: a model's older
/// versions, a revoked prefix and a removed tenant die whatever anybody decides.
pub trait Deciding: Send + Sync {
    /// What dies. `rule` is what the built-in version rule says, which is the answer where nobody decides, or fails to.
    fn react(&self, to: &Invalidated, rule: Vec<Selector>) -> Vec<Selector>;

    /// What dies because of the time alone.
    fn tick(&self) -> Vec<Selector>;

    /// What goes because room runs out, where somebody else than the pools is to choose; asked twice a second.
    fn pressure(&self) -> Vec<Selector> {
        Vec::new()
    }
}

/// The built-in version rule, alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct VersionRule;

impl Deciding for VersionRule {
    fn react(&self, _to: &Invalidated, rule: Vec<Selector>) -> Vec<Selector> {
        rule
    }

    fn tick(&self) -> Vec<Selector> {
        Vec::new()
    }
}

/// What else a site keeps that an order may be about.
pub trait Applied: Send + Sync {
    /// An order was applied to what is cached.
    fn applied(&self, what: &Invalidated);
}

/// Whether cached KV may be used, and how that is ended.
#[async_trait]
pub trait CacheValidity: Send + Sync {
    /// Where the site is: what begins at this moment began there.
    fn begin(&self) -> Begun;

    /// How far the site has applied which stream.
    fn place(&self) -> AsOf;

    /// Whether what is cached, or fetched, may be used at this moment.
    ///
    /// # Errors
    /// [`Stale::Lapsed`].
    fn check(&self, now: Moment) -> Result<(), Stale>;

    /// Whether something may begin, at this moment, on KV that was cached or fetched. `has_block` says whether a block is
    /// among it.
    ///
    /// # Errors
    /// [`Stale`], with why not.
    fn check_kv(
        &self,
        kv: InUse<'_>,
        now: Moment,
        has_block: &dyn Fn(&portolan_base::BlockId) -> bool,
    ) -> Result<(), Stale>;

    /// The version of a model whose configured version is `configured`: it rises with every order about the model.
    fn version(&self, model: &ModelName, configured: u64) -> u64;

    /// The position of the latest order about less than a model that may be about KV like this: of something that it
    /// depends on, of its tenant, of a block; 0: none. Caches that cannot be searched are kept apart by it.
    fn epoch(&self, about: &Provenance) -> Sequence;

    /// Orders that end what runs on what they are about.
    fn aborts(&self) -> broadcast::Receiver<Arc<Invalidation>>;

    /// Gives an order.
    ///
    /// # Errors
    /// When the control stream did not acknowledge it.
    async fn invalidate(&self, order: Order, patience: Patience) -> Result<Given, ControlError>;

    /// What an order would do at each site that answers in time.
    async fn rehearse(&self, what: &Invalidated) -> Vec<SiteEffect>;

    /// Numbers of its own for the metrics page.
    fn samples(&self) -> Vec<Sample> {
        Vec::new()
    }
}

/// Where there is no control stream, and in tests: what is cached is always valid, and no order is taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlwaysValid;

#[async_trait]
impl CacheValidity for AlwaysValid {
    fn begin(&self) -> Begun {
        Begun::default()
    }

    fn place(&self) -> AsOf {
        AsOf::default()
    }

    fn check(&self, _now: Moment) -> Result<(), Stale> {
        Ok(())
    }

    fn check_kv(
        &self,
        _kv: InUse<'_>,
        _now: Moment,
        _has_block: &dyn Fn(&portolan_base::BlockId) -> bool,
    ) -> Result<(), Stale> {
        Ok(())
    }

    fn version(&self, _model: &ModelName, configured: u64) -> u64 {
        configured
    }

    fn epoch(&self, _about: &Provenance) -> Sequence {
        Sequence::NONE
    }

    fn aborts(&self) -> broadcast::Receiver<Arc<Invalidation>> {
        broadcast::channel(1).1
    }

    async fn invalidate(&self, _order: Order, _patience: Patience) -> Result<Given, ControlError> {
        Err(ControlError::NotAcknowledged(
            "there is no control stream that all sites follow; use `kv evict` at each site".to_owned(),
        ))
    }

    async fn rehearse(&self, _what: &Invalidated) -> Vec<SiteEffect> {
        Vec::new()
    }
}
