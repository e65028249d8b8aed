//! One transfer as its receiver sees it: chunks go to their place in a piece, whole pieces go out.
//!
//! | part | what it does |
//! |---|---|
//! | `check` | whether a chunk is one that the order, the manifest and the credit allow |
//! | `pieces` | the buffer of a piece, cut so that lanes can fill it side by side |

mod check;
mod pieces;

pub(crate) use pieces::slot_len;

use crate::carrier::Window;
use crate::codec::Coding;
use crate::frame::{Announcement, Carriage, ChunkHead, ChunkMeta, Outcome, Totals};
use crate::landing::Ground;
use crate::memory::Ledger;
use crate::spares::lend;
use bytes::{Bytes, BytesMut};
use pieces::{Piece, Slot, begin_piece, join};
use portolan_base::Bytes as ByteCount;
use portolan_base::kv::{KvManifest, KvQuant, LandedChunk, PieceId};
use portolan_kv::quant::PieceShape;
use portolan_ports::{KvOrder, KvPiece, PullEvent, PullReport, TransferError};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::DropGuard;

/// Most pieces a transfer may bring; zero-sized ones are not bounded by the size of the KV.
const PIECES_MAX: usize = 1 << 20;

/// Where events of a transfer go.
pub(crate) type Events = mpsc::UnboundedSender<Result<Arrived, TransferError>>;

/// What a transfer brought, as it crossed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Arrived {
    /// As its consumer gets it.
    Event(PullEvent),
    /// A piece that has to be made whole first.
    Quantised(QuantisedPiece),
}

impl Arrived {
    /// Bytes of the piece, if it is one.
    pub(crate) fn wire_len(&self) -> u64 {
        match self {
            Self::Event(PullEvent::Piece(piece)) => piece.bytes.len() as u64,
            Self::Event(_) => 0,
            Self::Quantised(piece) => piece.bytes.len() as u64,
        }
    }
}

/// A verified piece of attention KV in few bits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct QuantisedPiece {
    pub(crate) id: PieceId,
    pub(crate) bytes: Bytes,
    pub(crate) shape: PieceShape,
    pub(crate) quant: KvQuant,
}

/// How the holder broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Breach {
    #[error("a second, different manifest")]
    SecondManifest,
    #[error("a manifest for another model, version or length than was ordered")]
    OtherManifest,
    #[error("a chunk before the manifest")]
    NoManifest,
    #[error("a piece the manifest does not allow")]
    ForeignPiece,
    #[error("a chunk that does not fit its piece")]
    ForeignChunk,
    #[error("a coding that this site does not read")]
    ForeignCoding,
    #[error("a chunk without its bytes, which did not land here")]
    NotLanded,
    #[error("a chunk that lies where no window was opened")]
    NoWindow,
    #[error("a new piece without room for it")]
    NoCredit,
    #[error("more bytes than the manifest announced")]
    TooMuch,
    #[error("more pieces than a transfer may bring")]
    TooMany,
    #[error("other totals than what came")]
    OtherTotals,
}

/// Where the payload of a chunk goes.
#[derive(Debug)]
pub(crate) enum Place {
    /// Into this buffer, which is empty and has room for it.
    Fresh(BytesMut),
    /// Nowhere: its bytes are here already.
    Duplicate,
}

/// A window that is open for as long as the transfer is under way.
struct Opened(Arc<dyn Window>);

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Opened({} bytes)", self.0.bytes())
    }
}

/// One transfer under way.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) order: KvOrder,
    pub(crate) priority: u8,
    /// The listener's session it was ordered in.
    pub(crate) number: u128,
    /// When it was ordered.
    pub(crate) begun_at: Instant,
    pub(crate) ledger: Ledger,
    events: Events,
    /// What the receiver takes beside the lossless codings.
    lossy: Option<KvQuant>,
    /// Where its chunks may land.
    ground: Option<Ground>,
    /// Its chunks land.
    lands: bool,
    /// Where a carrier puts chunks.
    window: Option<Opened>,
    /// Bytes that lay here.
    landed: u64,
    /// Bytes that came and were verified, and since when.
    came: u64,
    came_since: Option<Instant>,
    manifest: Option<KvManifest>,
    coding: Coding,
    /// Set by the first piece that came quantised.
    quantised: Option<KvQuant>,
    /// Bytes of pieces that may still begin, and that have begun.
    budget: u64,
    begun: u64,
    largest: u64,
    digest: u64,
    pieces: HashMap<PieceId, Piece>,
    /// Number of each piece's first chunk.
    first_chunk: HashMap<PieceId, u32>,
    damaged: HashMap<u32, u32>,
    totals: Option<Totals>,
    complete: u32,
    chunks: u32,
    bytes: u64,
    resent: u32,
    _watcher: DropGuard,
}

impl Inbound {
    pub(crate) fn new(
        order: KvOrder,
        priority: u8,
        number: u128,
        ledger: Ledger,
        (events, watcher): (Events, DropGuard),
    ) -> Self {
        Self {
            begun_at: Instant::now(),
            ledger,
            lossy: None,
            ground: None,
            lands: false,
            window: None,
            landed: 0,
            came: 0,
            came_since: None,
            coding: Coding::Plain,
            quantised: None,
            begun: 0,
            largest: 0,
            digest: 0,
            order,
            priority,
            number,
            events,
            manifest: None,
            budget: 0,
            pieces: HashMap::new(),
            first_chunk: HashMap::new(),
            damaged: HashMap::new(),
            totals: None,
            complete: 0,
            chunks: 0,
            bytes: 0,
            resent: 0,
            _watcher: watcher,
        }
    }

    /// Takes KV that is quantised like this, too.
    pub(crate) fn accepting(mut self, lossy: Option<KvQuant>) -> Self {
        self.lossy = lossy;
        self
    }

    /// May land its chunks, and has some that landed.
    pub(crate) fn on(mut self, ground: Option<Ground>) -> Self {
        // Something landed before: what is still to come is worth as much.
        self.lands = ground.as_ref().is_some_and(|ground| !ground.before.is_empty());
        self.ground = ground;
        self
    }

    /// Takes chunks that a carrier puts here.
    pub(crate) fn beside(mut self, window: Option<Arc<dyn Window>>) -> Self {
        self.window = window.map(Opened);
        self
    }

    /// Where a carrier puts chunks.
    pub(crate) fn window(&self) -> Option<Arc<dyn Window>> {
        self.window.as_ref().map(|window| Arc::clone(&window.0))
    }

    /// What an order says of chunks that landed.
    pub(crate) fn claims(&self) -> Vec<LandedChunk> {
        self.ground
            .as_ref()
            .map(|ground| ground.before.list())
            .unwrap_or_default()
    }

    /// Bytes that have not come, of a transfer whose chunks may land and do not yet.
    pub(crate) fn could_land(&self) -> Option<u64> {
        self.manifest
            .as_ref()
            .filter(|_| self.ground.is_some() && !self.lands)?;
        let whole = self.budget.saturating_add(self.begun);
        Some(whole.saturating_sub(self.came).saturating_sub(self.landed))
    }

    /// Bytes a second at which it comes, measured over `least` or more.
    pub(crate) fn coming(&self, least: Duration) -> Option<u64> {
        let time = self.came_since?.elapsed();
        let rate = u128::from(self.came) * 1_000_000 / time.as_micros().max(1);
        (time >= least).then(|| u64::try_from(rate).unwrap_or(u64::MAX))
    }

    /// From here on its chunks land.
    pub(crate) fn land(&mut self) {
        self.lands = true;
    }

    /// Where a chunk that was verified lands, if it does.
    pub(crate) fn landing_of(&self) -> Option<Ground> {
        self.ground.clone().filter(|_| self.lands)
    }

    /// Where a chunk lies whose bytes did not come.
    pub(crate) fn ground(&self) -> Option<Ground> {
        self.ground.clone()
    }

    /// The codings that the holder may choose from.
    pub(crate) fn accepts(&self) -> Vec<Coding> {
        let lossy = self.lossy.map(Coding::from);
        Coding::READ.into_iter().chain(lossy).collect()
    }

    pub(crate) fn has_manifest(&self) -> bool {
        self.manifest.is_some()
    }

    /// Ends the transfer for its consumer.
    pub(crate) fn fail(self, error: TransferError) {
        let _ = self.events.send(Err(error));
    }

    fn emit(&self, event: PullEvent) {
        // When nobody listens, the watcher cancels.
        let _ = self.events.send(Ok(Arrived::Event(event)));
    }

    /// Takes the manifest; yields a new total of grants when there is one to tell.
    pub(crate) fn manifest(&mut self, announcement: Announcement) -> Result<Option<u64>, Breach> {
        let Announcement { coding, manifest } = announcement;
        match &self.manifest {
            Some(known) if *known == manifest && self.coding == coding => return Ok(None),
            Some(_) => return Err(Breach::SecondManifest),
            None => {}
        }
        if coding != Coding::Plain && !self.accepts().contains(&coding) {
            return Err(Breach::ForeignCoding);
        }
        let order = &self.order;
        let length = manifest.tokens as usize == order.tokens.len()
            || order.purpose.brings_what_is_held() && (manifest.tokens as usize) < order.tokens.len();
        let fits = manifest.layout.model == order.model
            && manifest.layout.model_version == order.model_version
            && length
            && manifest.held <= order.held.min(manifest.tokens);
        if !fits {
            return Err(Breach::OtherManifest);
        }
        self.budget = manifest.total_bytes().0;
        self.coding = coding;
        self.manifest = Some(manifest.clone());
        self.emit(PullEvent::Manifest(manifest));
        Ok(self.ledger.total(self.budget))
    }

    /// The coding of coded chunks.
    pub(crate) fn coding(&self) -> Coding {
        self.coding
    }

    /// Finds the place of a chunk of `len` bytes when chunks are `chunk` bytes long.
    pub(crate) fn place(&mut self, meta: &ChunkMeta, len: u32, chunk: u32) -> Result<Place, Breach> {
        if meta.attempt > 0 {
            self.resent = self.resent.saturating_add(1);
        }
        let index = self.check(meta, len, chunk)?;
        let head = &meta.head;
        if !self.pieces.contains_key(&head.piece) {
            self.begin_within_credit(head.piece_len)?;
            if self.pieces.len() >= PIECES_MAX {
                return Err(Breach::TooMany);
            }
            let piece = begin_piece(self.ledger.memory(), head.piece_len, chunk)?;
            self.pieces.insert(head.piece.clone(), piece);
        }
        // The chunks of a piece are numbered in sequence. The same number may come again, late or resent; another one
        // for the same bytes is a piece sent twice, which would count twice.
        let first = u32::try_from(index)
            .ok()
            .and_then(|index| head.no.checked_sub(index));
        let first = first.ok_or(Breach::ForeignChunk)?;
        if *self.first_chunk.entry(head.piece.clone()).or_insert(first) != first {
            return Err(Breach::ForeignChunk);
        }
        let Some(Piece::Filling { slots, .. }) = self.pieces.get_mut(&head.piece) else {
            return Ok(Place::Duplicate);
        };
        let slot = slots.get_mut(index).ok_or(Breach::ForeignChunk)?;
        Ok(match std::mem::replace(slot, Slot::Taken) {
            Slot::Free(buffer) => Place::Fresh(buffer),
            // Another lane has the place and may be broken: whichever copy is verified first counts.
            Slot::Taken => Place::Fresh(BytesMut::with_capacity(slot_len(head, chunk))),
            filled @ Slot::Filled(_) => {
                *slot = filled;
                Place::Duplicate
            }
        })
    }

    /// Takes verified bytes.
    pub(crate) fn fill(&mut self, meta: &ChunkMeta, chunk: u32, buffer: BytesMut) -> Result<(), Breach> {
        let Some(Piece::Filling { slots, missing }) = self.pieces.get_mut(&meta.head.piece) else {
            return Ok(());
        };
        let index = usize::try_from(meta.head.offset / u64::from(chunk)).map_err(|_| Breach::ForeignChunk)?;
        let slot = slots.get_mut(index).ok_or(Breach::ForeignChunk)?;
        if matches!(slot, Slot::Filled(_)) {
            return Ok(());
        }
        if meta.carriage == Carriage::Landed {
            self.landed += buffer.len() as u64;
        } else {
            self.came += buffer.len() as u64;
            self.came_since.get_or_insert_with(Instant::now);
        }
        *slot = Slot::Filled(buffer);
        *missing -= 1;
        self.chunks += 1;
        self.digest = self.digest.wrapping_add(meta.checksum);
        if *missing > 0 {
            return Ok(());
        }
        let slots = std::mem::take(slots);
        self.pieces.insert(meta.head.piece.clone(), Piece::Complete);
        self.complete += 1;
        self.bytes += meta.head.piece_len;
        let home = Arc::downgrade(self.ledger.memory());
        self.emit_piece(&meta.head, lend(join(slots), home));
        Ok(())
    }

    fn emit_piece(&mut self, head: &ChunkHead, bytes: Bytes) {
        let id = head.piece.clone();
        let Some((shape, quant)) = self.quantised_shape(head) else {
            return self.emit(PullEvent::Piece(KvPiece { id, bytes }));
        };
        self.quantised = Some(quant);
        let piece = QuantisedPiece {
            id,
            bytes,
            shape,
            quant,
        };
        // When nobody listens, the watcher cancels.
        let _ = self.events.send(Ok(Arrived::Quantised(piece)));
    }

    /// Gives a place back whose bytes turned out damaged; says how often that chunk was damaged.
    pub(crate) fn damaged(&mut self, meta: &ChunkMeta, chunk: u32, buffer: BytesMut) -> u32 {
        self.give_back(meta, chunk, buffer);
        let count = self.damaged.entry(meta.head.no).or_default();
        *count += 1;
        *count
    }

    /// Gives a place back that was not filled.
    pub(crate) fn give_back(&mut self, meta: &ChunkMeta, chunk: u32, mut buffer: BytesMut) {
        buffer.clear();
        if let Some(Piece::Filling { slots, .. }) = self.pieces.get_mut(&meta.head.piece) {
            let index = usize::try_from(meta.head.offset / u64::from(chunk)).unwrap_or(usize::MAX);
            if let Some(slot @ Slot::Taken) = slots.get_mut(index) {
                *slot = Slot::Free(buffer);
            }
        }
    }

    /// Takes the holder's last word; an error text fails the transfer.
    pub(crate) fn finish(&mut self, outcome: Outcome) -> Result<Option<String>, Breach> {
        match outcome {
            Outcome::Failed(text) => Ok(Some(text)),
            Outcome::Whole(_) if self.manifest.is_none() => Err(Breach::NoManifest),
            Outcome::Whole(totals) => {
                self.totals = Some(totals);
                Ok(None)
            }
        }
    }

    /// Reports and says `true` once everything that was sent has come.
    pub(crate) fn complete(&self) -> Result<bool, Breach> {
        let Some(totals) = &self.totals else {
            return Ok(false);
        };
        if self.complete > totals.pieces || self.chunks > totals.chunks || self.bytes > totals.bytes {
            return Err(Breach::OtherTotals);
        }
        if self.complete < totals.pieces {
            return Ok(false);
        }
        if self.chunks != totals.chunks
            || self.bytes != totals.bytes
            || self.digest != totals.digest
            || self.pieces.len() != self.complete as usize
        {
            return Err(Breach::OtherTotals);
        }
        let bytes = ByteCount(self.bytes.saturating_sub(self.landed));
        self.emit(PullEvent::Done(PullReport {
            prefill: totals.report.clone(),
            bytes,
            landed: ByteCount(self.landed),
            chunks_resent: self.resent,
            quantised: self.quantised,
        }));
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
