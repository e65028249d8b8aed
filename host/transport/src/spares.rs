//! Receive buffers that are used again.
//!
//! The kernel clears every fresh page before it copies what came into it: a quarter of the processor time of a transfer.
//! So the buffer of a piece whose last reader is done with it waits here for the next piece of about its size. No byte
//! of it is seen again: a buffer comes out empty, and a reader sees what was received into it since.

use crate::memory::Memory;
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;
use tokio::time::Instant;

/// Smaller buffers are not kept: the allocator has pages for them that it does not return.
const LEAST: usize = 256 << 10;

/// Buffers that nobody asked for in this time go back to the system.
pub(crate) const KEPT: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Spare {
    buffer: Vec<u8>,
    since: Instant,
}

/// Buffers without a use, by what they hold.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    by_capacity: BTreeMap<usize, Vec<Spare>>,
    bytes: u64,
}

impl Spares {
    /// Bytes of all of them.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A buffer for so many bytes, not much larger than that.
    pub(crate) fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let (&capacity, spares) = self.by_capacity.range_mut(len..=len + len / 4).next()?;
        // The one that came last: of it most is still in the processor's caches.
        let spare = spares.pop()?;
        if spares.is_empty() {
            self.by_capacity.remove(&capacity);
        }
        self.bytes -= capacity as u64;
        Some(spare.buffer)
    }

    /// Keeps a buffer, if it fits into `room` bytes for all of them.
    pub(crate) fn put(&mut self, mut buffer: Vec<u8>, room: u64) {
        buffer.clear();
        let capacity = buffer.capacity();
        if capacity < LEAST || self.bytes + capacity as u64 > room {
            return;
        }
        self.bytes += capacity as u64;
        let since = Instant::now();
        self.by_capacity
            .entry(capacity)
            .or_default()
            .push(Spare { buffer, since });
    }

    /// Lets go of what nobody asked for lately, and of the largest beyond `room` bytes.
    pub(crate) fn trim(&mut self, room: u64, now: Instant) {
        let bytes = &mut self.bytes;
        self.by_capacity.retain(|capacity, spares| {
            let before = spares.len();
            spares.retain(|spare| now.duration_since(spare.since) < KEPT);
            *bytes -= (*capacity * (before - spares.len())) as u64;
            !spares.is_empty()
        });
        while self.bytes > room {
            let Some(mut largest) = self.by_capacity.last_entry() else {
                return;
            };
            self.bytes -= *largest.key() as u64;
            largest.get_mut().pop();
            if largest.get().is_empty() {
                largest.remove();
            }
        }
    }
}

/// What a buffer for so many bytes is made to hold, so that it serves others of about the size: at most an eighth more,
/// which is not touched and so takes no memory.
pub(crate) fn capacity_for(len: usize) -> usize {
    if len < LEAST {
        return len;
    }
    len.next_multiple_of(len.next_power_of_two() / 16)
}

/// A received piece. Its buffer goes back when the last reader drops it.
struct Lent {
    buffer: Vec<u8>,
    home: Weak<Memory>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.keep(std::mem::take(&mut self.buffer));
        }
    }
}

/// What was received, for its readers.
pub(crate) fn lend(received: BytesMut, home: Weak<Memory>) -> Bytes {
    if received.len() < LEAST {
        return received.freeze();
    }
    let buffer = Vec::from(received);
    Bytes::from_owner(Lent { buffer, home })
}

/// An empty buffer, to be cut and filled.
pub(crate) fn opened(buffer: Vec<u8>) -> BytesMut {
    // No copy: the vector is handed over, and nobody else has it.
    BytesMut::from(Bytes::from(buffer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::Bytes as ByteCount;
    use std::sync::Arc;

    const PIECE: usize = 1 << 20;

    fn received(memory: &Arc<Memory>, len: usize, fill: u8) -> (Bytes, *const u8) {
        let mut buffer = memory.buffer(len);
        assert!(buffer.is_empty() && buffer.capacity() >= len);
        let at = buffer.as_ptr();
        let mut rest = buffer.split_off(len / 2);
        buffer.resize(len / 2, fill);
        rest.resize(len - len / 2, fill);
        buffer.unsplit(rest);
        let piece = lend(buffer, Arc::downgrade(memory));
        assert_eq!(piece.as_ptr(), at, "copied");
        (piece, at)
    }

    #[test]
    fn a_buffer_is_used_again_once_its_last_reader_is_gone() {
        let memory = Memory::new(ByteCount(1 << 30));
        let (first, at) = received(&memory, PIECE, 1);
        let reader = first.slice(10..20);
        drop(first);
        let (second, other) = received(&memory, PIECE, 2);
        assert_ne!(at, other, "somebody still reads the first");
        assert_eq!(reader, [1; 10][..]);
        drop(reader);
        let (third, again) = received(&memory, PIECE - 100, 3);
        assert_eq!(at, again);
        assert!(third.iter().all(|byte| *byte == 3) && third.len() == PIECE - 100);
        assert!(second.iter().all(|byte| *byte == 2));
    }

    #[test]
    fn one_of_another_size_is_not_used() {
        let memory = Memory::new(ByteCount(1 << 30));
        drop(received(&memory, PIECE, 1));
        assert_eq!(memory.spare(), PIECE as u64);
        drop(received(&memory, PIECE / 2, 1));
        drop(received(&memory, PIECE * 2, 1));
        assert_eq!(memory.spare(), PIECE as u64 * 7 / 2);
    }

    #[test]
    fn spares_never_take_what_transfers_may_have() {
        let memory = Memory::new(ByteCount(3 * PIECE as u64));
        let pieces: Vec<_> = (0..4).map(|fill| received(&memory, PIECE, fill).0).collect();
        drop(pieces);
        assert_eq!(memory.spare(), 3 * PIECE as u64);
        let ledger = crate::memory::Ledger::open(&memory, ByteCount(2 * PIECE as u64));
        assert_eq!(ledger.granted(), 2 * PIECE as u64);
        let _other = memory.buffer(PIECE * 2);
        assert_eq!(memory.spare(), PIECE as u64, "the rest went back");
    }

    #[test]
    fn what_nobody_asks_for_goes_back_to_the_system() {
        let memory = Memory::new(ByteCount(1 << 30));
        drop(received(&memory, 1000, 1));
        assert_eq!(memory.spare(), 0, "too small to keep");
        drop(received(&memory, PIECE, 1));
        let later = Instant::now() + KEPT;
        memory.trim(later - KEPT / 2);
        assert_eq!(memory.spare(), PIECE as u64);
        memory.trim(later);
        assert_eq!(memory.spare(), 0);
    }

    #[test]
    fn sizes_are_rounded_up_by_an_eighth_at_most() {
        for len in [LEAST, LEAST + 1, PIECE, PIECE + 1, 23_000_000, 1 << 29] {
            let capacity = capacity_for(len);
            assert!(capacity >= len && capacity <= len + len / 8, "{len}: {capacity}");
        }
        assert_eq!(capacity_for(100), 100);
    }
}
