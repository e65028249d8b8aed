//! What a pool keeps: one block of a prompt's KV, in memory or elsewhere.

use bytes::Bytes as Buffer;
use portolan_base::{BlockHash, BlockId, Bytes, Provenance};
use std::sync::Arc;
use std::time::Duration;

/// What one block costs beside its KV: some 130 bytes of block with its counts, 130 of map entry, 40 in the order of
/// eviction, 150 in the indices of children, tenants and times, each with the slack of its container. Keeps the number
/// of blocks bounded when their KV is tiny.
pub const BLOCK_OVERHEAD: Bytes = Bytes(512);

/// The KV of one block of tokens, kept as `K`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolBlock<K = BlockKv> {
    /// Names all tokens up to the end of this block.
    pub id: BlockId,
    /// The block before this one; `None` for the first block of a prompt.
    pub parent: Option<BlockId>,
    /// The same tokens as the prefix index names them: one hash for each index block within this block.
    pub hashes: Vec<BlockHash>,
    /// Whose it is and what it hangs on.
    pub about: Arc<Provenance>,
    /// What computing it again would take, once everything before it is there.
    pub rebuild: Duration,
    /// The keys, values and states themselves, or where they are.
    pub kv: K,
}

impl<K: Kept> PoolBlock<K> {
    /// What the block counts against a budget: its KV and [`BLOCK_OVERHEAD`].
    pub fn size(&self) -> Bytes {
        self.kv.size() + Bytes(8 * self.hashes.len() as u64) + BLOCK_OVERHEAD
    }

    /// The same block, its KV kept otherwise.
    pub fn with<L>(&self, kv: L) -> PoolBlock<L> {
        PoolBlock {
            id: self.id,
            parent: self.parent,
            hashes: self.hashes.clone(),
            about: Arc::clone(&self.about),
            rebuild: self.rebuild,
            kv,
        }
    }
}

/// How a pool's blocks are kept.
pub trait Kept: Clone {
    /// Bytes they take.
    fn size(&self) -> Bytes;

    /// Whether the state after the block's last token is among them.
    fn has_snapshot(&self) -> bool;

    /// These without a snapshot, and `other` with one, made one.
    fn completed(&self, other: Self) -> Self;
}

/// KV in memory, by cache group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockKv {
    /// Keys and values, one buffer an attention layer, in layer order; layout as in [`portolan_base::kv::LayerKv`].
    pub attention: Vec<Buffer>,
    /// State after the block's last token, one buffer a recurrent layer, in layer order.
    pub snapshot: Option<Vec<Buffer>>,
}

impl Kept for BlockKv {
    fn size(&self) -> Bytes {
        let snapshot = self.snapshot.as_deref().unwrap_or_default();
        let buffers = self.attention.iter().chain(snapshot);
        buffers.map(|buffer| Bytes(buffer.len() as u64)).sum()
    }

    fn has_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    fn completed(&self, other: Self) -> Self {
        Self {
            attention: self.attention.clone(),
            snapshot: other.snapshot,
        }
    }
}
