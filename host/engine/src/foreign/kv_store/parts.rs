//! Blocks in parts: of several tensor parallel workers each has some heads of every layer. A block lies with the host as one
//! worker would have saved it, so that engines with another number of workers can go on from it.

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use portolan_base::BlockId;
use std::collections::{HashMap, VecDeque};

/// Most workers of one engine.
pub(super) const RANKS_MOST: u32 = 64;

/// Most blocks that wait for a part. Workers save what one step filled within moments of each other; what waits longer is
/// of a step that one of them gave up.
const WAITING_MOST: usize = 1024;

/// Which part a worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    rank: usize,
    of: usize,
}

impl Part {
    /// The part of worker `rank` of so many; none where there is no such worker.
    pub(super) fn new(rank: u32, of: u32) -> Option<Self> {
        (of <= RANKS_MOST && rank < of).then_some(Self {
            rank: rank as usize,
            of: of as usize,
        })
    }

    pub(super) fn is_whole(self) -> bool {
        self.of == 1
    }

    /// Whether `values` of a token can be parted so.
    pub(super) fn divides(self, values: u64) -> bool {
        values.is_multiple_of(self.of as u64)
    }

    /// Bytes of this part of a block.
    pub(super) fn bytes(self, block: usize) -> usize {
        block / self.of
    }

    /// This part of a block whose layers' pieces have these sizes: of each, some heads of the keys, then of the values.
    pub(super) fn cut(self, block: &Bytes, pieces: impl Iterator<Item = usize>) -> Bytes {
        if self.is_whole() {
            return block.clone();
        }
        let mut part = BytesMut::with_capacity(self.bytes(block.len()));
        let mut begin = 0;
        for size in pieces.flat_map(|piece| [piece / 2; 2]) {
            let own = size / self.of;
            let from = begin + self.rank * own;
            part.extend_from_slice(block.get(from..from + own).unwrap_or_default());
            begin += size;
        }
        part.freeze()
    }
}

/// Parts that wait for the others of their block.
#[derive(Default)]
pub(super) struct Joining(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    blocks: HashMap<BlockId, Begun>,
    order: VecDeque<BlockId>,
}

struct Begun {
    turn: u64,
    parts: Vec<Option<Bytes>>,
}

impl Joining {
    /// Takes a part; the block, where this was the last of it. Parts of another turn are another block's: what was computed
    /// again is not mixed with what it replaces.
    pub(super) fn take(
        &self,
        name: BlockId,
        (part, turn): (Part, u64),
        bytes: Bytes,
        pieces: &[usize],
    ) -> Option<Bytes> {
        if part.is_whole() {
            return Some(bytes);
        }
        let mut waiting = self.0.lock();
        let Waiting { blocks, order } = &mut *waiting;
        let fresh = || Begun {
            turn,
            parts: vec![None; part.of],
        };
        let begun = blocks.entry(name).or_insert_with(|| {
            order.push_back(name);
            fresh()
        });
        if begun.turn > turn {
            return None;
        }
        if begun.turn < turn || begun.parts.len() != part.of {
            *begun = fresh();
        }
        begun.parts[part.rank] = Some(bytes);
        let whole: Option<Vec<Bytes>> = begun.parts.iter().cloned().collect();
        let joined = whole.map(|parts| join(&parts, pieces));
        if joined.is_some() {
            blocks.remove(&name);
        }
        while order.len() > WAITING_MOST {
            if let Some(oldest) = order.pop_front() {
                blocks.remove(&oldest);
            }
        }
        joined
    }

    /// Blocks that wait.
    pub(super) fn waiting(&self) -> usize {
        self.0.lock().blocks.len()
    }
}

/// The block that has these parts.
fn join(parts: &[Bytes], pieces: &[usize]) -> Bytes {
    let mut block = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
    let mut begin = 0;
    for size in pieces.iter().flat_map(|piece| [piece / 2; 2]) {
        let own = size / parts.len().max(1);
        for part in parts {
            block.extend_from_slice(part.get(begin..begin + own).unwrap_or_default());
        }
        begin += own;
    }
    block.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::TenantKey;

    const PIECES: [usize; 2] = [16, 8];

    fn names(count: u32) -> Vec<BlockId> {
        let key = TenantKey::derive(&[1; 32], "t", "m", 1);
        BlockId::chain(&key, &(0..count).collect::<Vec<_>>(), 1)
    }

    fn block(first: u8) -> Bytes {
        (first..first + 24).collect::<Vec<_>>().into()
    }

    #[test]
    fn a_part_has_its_heads_of_keys_and_values_of_every_layer_and_the_parts_are_the_block() {
        for of in [1, 2, 4] {
            let joining = Joining::default();
            let name = names(1)[0];
            let mut came = None;
            for rank in (0..of).rev() {
                assert!(came.is_none(), "not before the last");
                let part = Part::new(rank, of).unwrap();
                let cut = part.cut(&block(0), PIECES.into_iter());
                assert_eq!(cut.len(), part.bytes(24));
                came = joining.take(name, (part, 1), cut, &PIECES);
            }
            assert_eq!(came, Some(block(0)), "{of}");
            assert_eq!(joining.waiting(), 0);
        }
        let second = Part::new(1, 2).unwrap().cut(&block(0), PIECES.into_iter());
        assert_eq!(second.as_ref(), [4, 5, 6, 7, 12, 13, 14, 15, 18, 19, 22, 23]);
        assert!(Part::new(2, 2).is_none() && Part::new(0, 65).is_none() && Part::new(0, 0).is_none());
    }

    #[test]
    fn what_is_computed_again_is_not_mixed_with_what_it_replaces() {
        let (joining, name) = (Joining::default(), names(1)[0]);
        let of = |rank: u32, first: u8| {
            let part = Part::new(rank, 2).unwrap();
            (part, part.cut(&block(first), PIECES.into_iter()))
        };
        let take = |turn, (part, bytes)| joining.take(name, (part, turn), bytes, &PIECES);
        // One worker computed on what another did not have: it never sends the rest.
        assert_eq!(take(5, of(0, 100)), None);
        assert_eq!(take(6, of(1, 0)), None, "another turn's");
        assert_eq!(take(5, of(0, 100)), None, "late");
        assert_eq!(take(6, of(0, 0)), Some(block(0)));
    }

    #[test]
    fn what_never_comes_is_not_waited_for_without_end() {
        let joining = Joining::default();
        let part = Part::new(0, 2).unwrap();
        for name in names(WAITING_MOST as u32 + 10) {
            joining.take(name, (part, 1), Bytes::from_static(&[0; 12]), &PIECES);
        }
        assert_eq!(joining.waiting(), WAITING_MOST);
    }
}
