//! One ordered transfer at its holder: what waits, what is under way, and what may go next.

use super::opening::Opening;
use crate::carrier::Slots;
use crate::codec::Judge;
use crate::frame::{Announcement, ChunkHead, Frame, Outcome, Part, Totals};
use crate::landing::Claims;
use bytes::Bytes;
use portolan_base::TransferId;
use portolan_base::kv::{KvManifest, LayerKv};
use portolan_ports::PrefillReport;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::time::Instant;

/// What was found out about a chunk when it was sent.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    /// Where in the receiver's window its bytes lie.
    pub(crate) slot: OnceLock<u32>,
    /// Kept for resends: memory that changed meanwhile shows at the receiver.
    pub(crate) checksum: OnceLock<u64>,
    /// Bytes it took on the wire.
    pub(crate) wire: AtomicU64,
    /// The receiver asked for its bytes, whatever it said it had.
    pub(crate) asked_for: AtomicBool,
}

/// On which terms an order is served.
pub(crate) struct Terms {
    /// Its class, 0 first.
    pub(crate) priority: u8,
    /// Bytes the receiver has room for.
    pub(crate) credit: u64,
    /// Says whether chunks are compressed.
    pub(crate) judge: Arc<Judge>,
    /// What the receiver says it has.
    pub(crate) claims: Arc<Claims>,
    /// The receiver's window, where a carrier serves the link.
    pub(crate) slots: Option<Arc<Slots>>,
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// Nothing but the manifest, so that the receiver knows what comes while the first piece is computed.
    Manifest,
    Chunk {
        head: ChunkHead,
        payload: Bytes,
        carried: Arc<Carried>,
    },
    Final(Outcome),
}

/// Something the peer has to acknowledge.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) part: Part,
    pub(crate) attempt: u32,
    /// Goes before the rest of its class.
    pub(crate) urgent: bool,
    pub(crate) body: Body,
}

impl Item {
    pub(super) fn again(self) -> Self {
        Self {
            attempt: self.attempt + 1,
            ..self
        }
    }

    /// Bytes that begin with this item: those of a piece, with its first chunk.
    pub(super) fn begins(&self) -> u64 {
        match &self.body {
            Body::Chunk { head, .. } if head.offset == 0 && self.attempt == 0 => head.piece_len,
            _ => 0,
        }
    }

    pub(super) fn wire_len(&self) -> u64 {
        match &self.body {
            Body::Chunk { carried, .. } => carried.wire.load(Ordering::Relaxed),
            Body::Manifest | Body::Final(_) => 0,
        }
    }

    pub(super) fn len(&self) -> u64 {
        match &self.body {
            Body::Chunk { payload, .. } => payload.len() as u64,
            Body::Manifest | Body::Final(_) => 0,
        }
    }
}

/// What a lane is to send next.
pub(crate) struct Outgoing {
    pub(crate) transfer: TransferId,
    /// Goes first when this lane has not carried it yet: TCP keeps the order, so no chunk is ever before it.
    pub(crate) manifest: Option<Frame>,
    pub(crate) item: Item,
    /// Says whether chunks of this transfer are compressed.
    pub(crate) judge: Arc<Judge>,
    /// What the receiver says it has.
    pub(crate) claims: Arc<Claims>,
    pub(crate) slots: Option<Arc<Slots>>,
}

/// Something sent and not acknowledged.
#[derive(Debug)]
pub(super) struct Unacked {
    pub(super) lane: u64,
    pub(super) item: Item,
    pub(super) sent: Instant,
}

/// Which of a class's two rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// Recurrent states: small, last to be computed, and decoding cannot begin without them.
    Urgent = 0,
    Plain = 1,
}

impl Urgency {
    pub(super) const BOTH: [Self; 2] = [Self::Urgent, Self::Plain];
}

#[derive(Debug)]
pub(super) struct Outbound {
    pub(super) priority: u8,
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) manifest: Option<KvManifest>,
    pub(super) announced: HashSet<u64>,
    pub(super) judge: Arc<Judge>,
    pub(super) claims: Arc<Claims>,
    pub(super) slots: Option<Arc<Slots>>,
    /// What waits, urgent items apart.
    pub(super) ready: [VecDeque<Item>; 2],
    /// In the rings of its class.
    pub(super) queued: [bool; 2],
    pub(super) unacked: HashMap<Part, Unacked>,
    /// Bytes the receiver has room for, and bytes of pieces begun, both from the start.
    pub(super) credit: u64,
    pub(super) begun: u64,
    /// Bytes not acknowledged yet.
    pub(super) held: u64,
    /// Chunks whose checksum is in the digest.
    pub(super) hashed: u32,
    pub(super) totals: Totals,
    /// Until its first piece has arrived, on a short path.
    pub(super) opening: Option<Opening>,
    /// The source did not keep to manifest first.
    pub(super) misuse: bool,
    pub(super) ended: bool,
}

impl Outbound {
    pub(super) fn new(terms: Terms, cancelled: Arc<AtomicBool>) -> Self {
        let Terms {
            priority,
            credit,
            judge,
            claims,
            slots,
        } = terms;
        Self {
            priority,
            cancelled,
            manifest: None,
            announced: HashSet::new(),
            judge,
            claims,
            slots,
            ready: Default::default(),
            queued: [false; 2],
            unacked: HashMap::new(),
            credit,
            begun: 0,
            held: 0,
            hashed: 0,
            opening: None,
            totals: Totals {
                report: PrefillReport::default(),
                chunks: 0,
                pieces: 0,
                bytes: 0,
                digest: 0,
            },
            misuse: false,
            ended: false,
        }
    }

    /// Whether the first item of a queue may go: a new piece only into room that the receiver has, the last word only
    /// when every chunk before it is in the digest.
    pub(super) fn may_send(&self, queue: usize) -> bool {
        self.ready[queue].front().is_some_and(|item| match &item.body {
            Body::Final(Outcome::Whole(totals)) => self.hashed == totals.chunks,
            Body::Chunk { .. } if self.opening.is_some_and(|opening| opening.is_full()) => false,
            _ => item.begins() == 0 || self.begun < self.credit,
        })
    }

    /// A chunk is acknowledged: its place in the receiver's window is free.
    pub(super) fn let_go(&self, item: &Item) {
        if let (Some(slots), Body::Chunk { carried, .. }) = (&self.slots, &item.body)
            && let Some(slot) = carried.slot.get()
        {
            slots.free(*slot);
        }
    }

    /// Queues something once more, before all that was not sent yet.
    pub(super) fn put_back(&mut self, item: Item) {
        if let Some(opening) = &mut self.opening {
            opening.lost(item.len());
        }
        self.ready[usize::from(!item.urgent)].push_front(item.again());
    }

    /// A chunk of so many bytes arrived.
    pub(super) fn arrived(&mut self, len: u64) {
        if self.opening.as_mut().is_some_and(|opening| opening.arrived(len)) {
            self.opening = None;
        }
    }

    pub(super) fn is_recurrent(&self, layer: u16) -> bool {
        let layers = self.manifest.as_ref().map(|manifest| &manifest.layout.layers);
        let layer = layers.and_then(|layers| layers.get(usize::from(layer)));
        matches!(layer, Some(LayerKv::Recurrent { .. }))
    }

    /// The manifest, when `lane` has not carried it yet or it is what is asked for.
    pub(super) fn manifest_for(&mut self, lane: u64, id: TransferId, part: Part) -> Option<Frame> {
        let manifest = self.manifest.as_ref()?;
        if !self.announced.insert(lane) && part != Part::Manifest {
            return None;
        }
        let announcement = Announcement {
            coding: self.judge.coding(),
            manifest: manifest.clone(),
        };
        Some(Frame::Manifest(id, Box::new(announcement)))
    }
}
