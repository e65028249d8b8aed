//! The buffer of a piece, cut at chunk borders.

use super::Breach;
use crate::frame::ChunkHead;
use crate::memory::Memory;
use bytes::BytesMut;

#[derive(Debug)]
pub(super) enum Slot {
    /// Nothing came yet: empty, with room for the chunk.
    Free(BytesMut),
    /// A lane is reading into it, or broke while it did.
    Taken,
    /// Verified bytes.
    Filled(BytesMut),
}

#[derive(Debug)]
pub(super) enum Piece {
    Filling { slots: Vec<Slot>, missing: usize },
    Complete,
}

/// Bytes of the chunk at this head's offset.
pub(crate) fn slot_len(head: &ChunkHead, chunk: u32) -> usize {
    let rest = head.piece_len.saturating_sub(head.offset);
    usize::try_from(rest.min(u64::from(chunk))).unwrap_or(0)
}

/// One buffer for the whole piece, cut at chunk borders so that lanes can fill it side by side. It is not filled with
/// zeros first: that would take as long as receiving it, and all lanes would wait.
pub(super) fn begin_piece(memory: &Memory, len: u64, chunk: u32) -> Result<Piece, Breach> {
    let len = usize::try_from(len).map_err(|_| Breach::TooMuch)?;
    let chunk = chunk as usize;
    let count = len.div_ceil(chunk).max(1);
    let mut rest = memory.buffer(len);
    let mut slots = Vec::with_capacity(count);
    for _ in 1..count {
        let after = rest.split_off(chunk);
        slots.push(Slot::Free(std::mem::replace(&mut rest, after)));
    }
    slots.push(Slot::Free(rest));
    Ok(Piece::Filling {
        missing: slots.len(),
        slots,
    })
}

/// Puts the cut buffer together again: free of copies unless a broken lane kept a part.
pub(super) fn join(slots: Vec<Slot>) -> BytesMut {
    let mut filled = slots.into_iter().filter_map(|slot| match slot {
        Slot::Filled(bytes) => Some(bytes),
        _ => None,
    });
    let mut whole = filled.next().unwrap_or_default();
    for part in filled {
        whole.unsplit(part);
    }
    whole
}
