//! MOVES KV between sites: the receiver orders, the holder streams.
//!
//! An order names the work (prefill this, or send what you hold); pieces come back while it is being done. Every
//! chunk is verified by checksum at the receiver; what arrives here is byte-identical to what was sent.

use crate::{AsOf, KvPiece, PrefillReport};
use async_trait::async_trait;
use portolan_base::kv::{KvManifest, KvQuant};
use portolan_base::{
    BitsPerSecond, Bytes, Dependency, InstanceName, ModelName, Permille, Provenance, RequestId, Scope,
    SiteName, TenantName, TransferId,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// What one site asks of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvOrder {
    /// The request it is for.
    pub request: RequestId,
    /// The tenant whose data it is.
    pub tenant: TenantName,
    /// Where the data may be processed; empty when no restriction was stated. The holder asks its own residency
    /// policy again before it computes.
    pub jurisdiction: String,
    /// The class of the user whose data it is, by name.
    pub user_class: String,
    /// The model.
    pub model: ModelName,
    /// The model version the receiver runs; a holder at another version refuses.
    pub model_version: u64,
    /// The instance that was chosen.
    pub instance: InstanceName,
    /// The prompt without its last token.
    pub tokens: Arc<[u32]>,
    /// Tokens whose attention KV the receiver holds.
    pub held: u32,
    /// Whether the holder may keep what it computes.
    pub retention: crate::Retention,
    /// The request's draw: the holder asks the same versions that decided.
    pub draw: portolan_decide::Draw,
    /// Whether the KV may come quantised. Not sent: the transport tells the holder what it takes for this order.
    #[serde(skip)]
    pub fidelity: Fidelity,
    /// What the KV depends on: who keeps it has to know when it is void.
    pub dependencies: Arc<[Dependency]>,
    /// Sites that the instance may fetch the beginning of the prompt from before it computes: what the request's
    /// residency answer allows, asked with purpose fetch by who orders. The holder asks its own policies again.
    pub fetch_from: Arc<[SiteName]>,
    /// How far the holder's site must have come for what is cached there to be used.
    pub as_of: AsOf,
    /// What it is for. Not sent with the order: the transport tells the holder the class it travels in.
    #[serde(skip)]
    pub purpose: OrderPurpose,
}

impl KvOrder {
    /// What a cache has to know of the KV.
    pub fn provenance(&self) -> Provenance {
        Provenance {
            scope: Scope::Tenant(self.tenant.clone()),
            model: self.model.clone(),
            model_version: self.model_version,
            jurisdiction: self.jurisdiction.clone(),
            dependencies: Arc::clone(&self.dependencies),
        }
    }
}

/// What an order is for. Each purpose is a class of transfers, the most urgent first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OrderPurpose {
    /// A client waits for the first token: what is not held is computed.
    #[default]
    Serve,
    /// A prefix that is cheaper to fetch than to compute: the holder sends what it holds, at most what was ordered, and
    /// computes nothing.
    Fetch,
    /// KV expected to be asked for at the other site soon: what that lacks it fetches or computes, and keeps. Nothing comes
    /// back; what is ordered is `held` already.
    Prewarm,
    /// A second copy of what the holder holds; nothing is computed.
    Replica,
    /// The site that orders is being emptied: the other one takes the KV from there and keeps it. Nothing is computed, and
    /// nothing comes back; what is ordered is `held` already.
    HandOver,
}

impl OrderPurpose {
    /// Whether the holder computes what it does not hold.
    pub const fn computes(self) -> bool {
        matches!(self, Self::Serve | Self::Prewarm)
    }

    /// Whether it brings what the holder holds, which may be less than was ordered.
    pub const fn brings_what_is_held(self) -> bool {
        matches!(self, Self::Fetch | Self::Replica)
    }
}

/// How true the KV of an order has to be to what was computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fidelity {
    /// Byte for byte.
    #[default]
    Exact,
    /// Quantised, where the link is configured for it.
    Quantised,
}

/// Why KV did not arrive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// There is no such peer.
    #[error("no link to site {0}")]
    UnknownPeer(SiteName),
    /// No connection could be made or all broke.
    #[error("the link to {peer} is down: {detail}")]
    LinkDown {
        /// The other site.
        peer: SiteName,
        /// What happened.
        detail: String,
    },
    /// Nothing came for too long.
    #[error("no progress from {peer} for {waited:?}")]
    Stalled {
        /// The other site.
        peer: SiteName,
        /// How long.
        waited: Duration,
    },
    /// A chunk was still damaged after the last resend.
    #[error("chunk {chunk} from {peer} was damaged {attempts} times")]
    Damaged {
        /// The other site.
        peer: SiteName,
        /// Number of the chunk within the transfer.
        chunk: u32,
        /// How often it was sent.
        attempts: u32,
    },
    /// The peer declined or failed the order.
    #[error("{peer} could not serve the order: {detail}")]
    Refused {
        /// The other site.
        peer: SiteName,
        /// Its reason.
        detail: String,
    },
    /// The peer broke the protocol.
    #[error("{peer} broke the transfer protocol: {detail}")]
    Protocol {
        /// The other site.
        peer: SiteName,
        /// How.
        detail: String,
    },
    /// This set came damaged before and is not asked for again for a while.
    #[error("the set that {peer} holds failed twice and is in quarantine")]
    Quarantined {
        /// The other site.
        peer: SiteName,
    },
    /// It did not come while waiting for it was worth it.
    #[error("what {peer} was to send did not come within {deadline:?}")]
    Late {
        /// The other site.
        peer: SiteName,
        /// How long it was waited for.
        deadline: Duration,
    },
    /// The order was cancelled.
    #[error("the transfer was cancelled")]
    Cancelled,
}

/// What comes of an order, in this sequence: one manifest, pieces in any order, one report. Nothing after an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PullEvent {
    /// What will come.
    Manifest(KvManifest),
    /// One verified piece.
    Piece(KvPiece),
    /// The transfer is complete.
    Done(PullReport),
}

/// How an order went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullReport {
    /// What the prefill at the other site did.
    pub prefill: PrefillReport,
    /// Payload bytes received, resends not counted; of quantised pieces, as they crossed.
    pub bytes: Bytes,
    /// Bytes of the set that lay here from a transfer that did not come to its end.
    pub landed: Bytes,
    /// Chunks that were asked for again.
    pub chunks_resent: u32,
    /// How attention KV was quantised on its way; none: what came is what was computed.
    pub quantised: Option<KvQuant>,
}

/// An order under way. Dropping it cancels the work at the other site.
#[derive(Debug)]
pub struct Pull {
    /// The transfer's id.
    pub transfer: TransferId,
    /// What comes.
    pub events: mpsc::Receiver<Result<PullEvent, TransferError>>,
}

/// How a link does, as last measured from this side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReading {
    /// Round-trip time; zero before the first measurement.
    pub rtt: Duration,
    /// Bytes received since the start.
    pub received: Bytes,
    /// Bytes sent since the start.
    pub sent: Bytes,
    /// Share of chunks that had to be sent again.
    pub loss: Permille,
    /// TCP segments the peer sent, and those it had to send again, since the start; zero where its kernel does not say.
    pub segments: (u64, u64),
    /// What the link delivered at best within the last ten seconds of sending, told by acknowledgements; zero before
    /// the first.
    pub delivery: BitsPerSecond,
    /// Sets in quarantine since the start.
    pub quarantined: u64,
    /// Bytes that did not cross since they lay here from a transfer that did not come to its end.
    pub landed: Bytes,
    /// Whether a connection is up.
    pub up: bool,
}

/// A set of KV that failed twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantinedSet {
    /// Names the set: a hash of holder, tenant, model and tokens.
    pub id: String,
    /// The site that holds it.
    pub peer: SiteName,
    /// The tenant whose data it is.
    pub tenant: TenantName,
    /// The model.
    pub model: ModelName,
    /// Its version.
    pub model_version: u64,
    /// The instance that computed it.
    pub instance: InstanceName,
    /// Time since its last failure.
    pub age: Duration,
    /// What was found, the first failure first.
    pub evidence: Vec<Evidence>,
}

/// What was found wrong with a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The transfer's id.
    pub transfer: String,
    /// The request it was for.
    pub request: RequestId,
    /// In words.
    pub detail: String,
    /// The chunk's number within the transfer.
    pub chunk: Option<u32>,
    /// The layer it belongs to.
    pub layer: Option<u16>,
    /// The tokens its piece covers.
    pub tokens: Option<(u32, u32)>,
    /// The checksum the holder computed.
    pub expected_checksum: Option<u64>,
    /// The checksum of what came.
    pub found_checksum: Option<u64>,
}

/// Sends KV to whoever ordered it.
pub trait PieceSink: Send {
    /// Announces what will come. Once, before the first piece.
    fn manifest(&mut self, manifest: KvManifest);
    /// Queues one piece. Never blocks: memory is bounded by the KV of one prompt.
    fn piece(&mut self, piece: KvPiece);
    /// Whether the receiver still wants it.
    fn is_cancelled(&self) -> bool;
}

/// Serves orders that peers send to this site.
#[async_trait]
pub trait KvSource: Send + Sync {
    /// Does the work of one order. The error text goes to the peer: it names what was wrong and nothing of any other
    /// tenant.
    async fn serve(
        &self,
        peer: SiteName,
        order: KvOrder,
        sink: Box<dyn PieceSink>,
    ) -> Result<PrefillReport, String>;
}

/// The links of one site.
#[async_trait]
pub trait Transport: Send + Sync {
    /// Sends an order to a peer and receives what comes of it.
    async fn pull(&self, peer: &SiteName, order: KvOrder) -> Result<Pull, TransferError>;

    /// How the link to a peer does; `None` when there is no such peer.
    fn link(&self, peer: &SiteName) -> Option<LinkReading>;

    /// A peer whose link is down was heard of another way: connections are tried at once instead of after the wait that
    /// grew while it was away.
    fn redial(&self, _peer: &SiteName) {}

    /// The sets in quarantine, the latest first.
    fn quarantine(&self) -> Vec<QuarantinedSet> {
        Vec::new()
    }
}
