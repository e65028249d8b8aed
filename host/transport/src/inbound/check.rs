//! Whether a chunk is one that may come.

use super::{Breach, Inbound};
use crate::codec::Coding;
use crate::frame::{Carriage, ChunkHead, ChunkMeta};
use crate::landing::Ground;
use portolan_base::Bytes as ByteCount;
use portolan_base::kv::{KvQuant, LayerKv};
use portolan_kv::quant::PieceShape;

/// Largest piece: a layer of a prompt of a million tokens of the largest models. Room for it is made when it begins, so
/// this is what a holder that lies can make a receiver reserve.
const PIECE_MAX: u64 = 1 << 32;

impl Inbound {
    /// Whether what was begun lies within what was granted and one piece more.
    pub(crate) fn is_within_credit(&self) -> bool {
        self.begun <= self.ledger.granted().saturating_add(self.largest)
    }

    /// A holder begins a piece while it has begun fewer bytes than were granted. Pieces come over several lanes and so
    /// in any order: all that can be said here is that the grant was overrun by one piece at most.
    pub(super) fn begin_within_credit(&mut self, piece_len: u64) -> Result<(), Breach> {
        let begun = self.begun.saturating_add(piece_len);
        let largest = self.largest.max(piece_len);
        if begun > self.ledger.granted().saturating_add(largest) {
            return Err(Breach::NoCredit);
        }
        self.budget = self.budget.checked_sub(piece_len).ok_or(Breach::TooMuch)?;
        (self.begun, self.largest) = (begun, largest);
        Ok(())
    }

    pub(super) fn check(&self, meta: &ChunkMeta, len: u32, chunk: u32) -> Result<usize, Breach> {
        let manifest = self.manifest.as_ref().ok_or(Breach::NoManifest)?;
        let head = &meta.head;
        let tokens = &head.piece.tokens;
        let within = match manifest.layout.layers.get(usize::from(head.piece.layer)) {
            Some(LayerKv::FullAttention { .. }) => {
                manifest.held <= tokens.start && tokens.start <= tokens.end
            }
            Some(LayerKv::Recurrent { .. }) => tokens.start == tokens.end,
            None => false,
        };
        if head.piece_len > PIECE_MAX {
            return Err(Breach::TooMuch);
        }
        let expected = manifest.layout.piece_bytes(head.piece.layer, head.piece.len());
        let sound = expected == Some(ByteCount(head.piece_len)) || self.quantised_shape(head).is_some();
        if !within || tokens.end > manifest.tokens || !sound {
            return Err(Breach::ForeignPiece);
        }
        let chunk = u64::from(chunk);
        if meta.carriage == Carriage::Coded && !Coding::READ.contains(&self.coding) {
            return Err(Breach::ForeignCoding);
        }
        if meta.carriage == Carriage::Landed && !self.has_landed(head, chunk) {
            return Err(Breach::NotLanded);
        }
        if let Carriage::Beside(at) = meta.carriage
            && !self.is_in_window(at, head.piece_len.saturating_sub(head.offset).min(chunk))
        {
            return Err(Breach::NoWindow);
        }
        let rest = head
            .piece_len
            .checked_sub(head.offset)
            .ok_or(Breach::ForeignChunk)?;
        if !head.offset.is_multiple_of(chunk)
            || !(meta.carriage != Carriage::Plain || u64::from(len) == rest.min(chunk))
            || (rest == 0 && head.offset > 0)
        {
            return Err(Breach::ForeignChunk);
        }
        usize::try_from(head.offset / chunk).map_err(|_| Breach::ForeignChunk)
    }

    fn is_in_window(&self, at: u64, len: u64) -> bool {
        let end = at.checked_add(len);
        let window = self.window.as_ref();
        end.zip(window)
            .is_some_and(|(end, window)| end <= window.0.bytes())
    }

    /// Whether the order said that this chunk lies here.
    fn has_landed(&self, head: &ChunkHead, chunk: u64) -> bool {
        let rest = head.piece_len.saturating_sub(head.offset);
        let len = usize::try_from(rest.min(chunk)).unwrap_or(usize::MAX);
        let claim = |ground: &Ground| {
            let before = &ground.before;
            before.at(&head.piece, head.piece_len, head.offset, len).is_some()
        };
        self.ground.as_ref().is_some_and(claim)
    }

    /// The shape and coding of a piece that comes quantised. Its size tells: a quantised piece is always smaller.
    pub(super) fn quantised_shape(&self, head: &ChunkHead) -> Option<(PieceShape, KvQuant)> {
        let quant = self.coding.quant()?;
        let shape = PieceShape::of(&self.manifest.as_ref()?.layout, &head.piece)?;
        let len = u64::try_from(shape.coded_len(quant)?).ok()?;
        (len == head.piece_len).then_some((shape, quant))
    }
}
