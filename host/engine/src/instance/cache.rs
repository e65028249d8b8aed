//! The instance's prefix pool, and the events that tell what enters and leaves it.

use crate::BLOCK_TOKENS;
use crate::network::state::{LayerState, SequenceState};
use bytes::Bytes as Buffer;
use parking_lot::Mutex;
use portolan_base::kv::{KvLayout, LayerKv};
use portolan_base::{BlockHash, BlockId, Bytes, CachePart, INDEX_BLOCK_TOKENS, Permille, TenantKey, Tokens};
use portolan_kv::{BlockWindow, HeldBlocks, PoolBlock, PrefixPool};
use portolan_ports::kvset::piece_id;
use portolan_ports::{HeldPrefix, KvEvent, KvPiece};
use std::sync::Arc;
use tokio::sync::broadcast;

/// Events kept for a slow reader. A block of prefill is one event and takes milliseconds, so this is seconds of
/// slack; a reader that falls behind is told that it missed some.
const EVENTS_KEPT: usize = 1024;

/// Index blocks in one pool block.
const HASHES_PER_BLOCK: usize = BLOCK_TOKENS as usize / INDEX_BLOCK_TOKENS;

/// The names of a prompt's full blocks.
#[derive(Debug)]
pub(crate) struct Names {
    ids: Vec<BlockId>,
    hashes: Vec<BlockHash>,
}

impl Names {
    pub(crate) fn of(key: &TenantKey, tokens: &[u32]) -> Self {
        let ids = BlockId::chain(key, tokens, BLOCK_TOKENS as usize);
        Self {
            ids,
            hashes: BlockHash::chain(key, tokens),
        }
    }

    /// How many full blocks there are.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }
}

/// Bytes of one block, by cache group.
#[derive(Debug)]
pub(crate) struct BlockKv {
    /// One buffer an attention layer.
    pub(crate) attention: Vec<Buffer>,
    /// One buffer a recurrent layer, where the state after the block is known.
    pub(crate) snapshot: Option<Vec<Buffer>>,
}

/// Blocks kept for reuse.
#[derive(Debug)]
pub(crate) struct Cache {
    pool: Mutex<PrefixPool>,
    events: broadcast::Sender<KvEvent>,
    layout: Arc<KvLayout>,
}

impl Cache {
    pub(crate) fn new(budget: Bytes, layout: Arc<KvLayout>) -> Self {
        let pool = match layout.window {
            None => PrefixPool::new(budget, layout.is_hybrid()),
            Some(window) => {
                let block = layout.block_tokens;
                PrefixPool::windowed(budget, layout.is_hybrid(), BlockWindow { window, block })
            }
        };
        let pool = Mutex::new(pool);
        Self {
            pool,
            events: broadcast::channel(EVENTS_KEPT).0,
            layout,
        }
    }

    pub(crate) fn events(&self) -> broadcast::Receiver<KvEvent> {
        self.events.subscribe()
    }

    pub(crate) fn used(&self) -> Permille {
        let pool = self.pool.lock();
        let permille = pool.used().0.saturating_mul(1000) / pool.budget().0.max(1);
        Permille(permille.min(1000) as u32)
    }

    /// The longest usable prefix.
    pub(crate) fn lookup(&self, names: &Names) -> HeldBlocks {
        self.pool.lock().lookup_needed(&names.ids)
    }

    /// The attention pieces of the longest usable prefix.
    pub(crate) fn held(&self, names: &Names) -> HeldPrefix {
        let held = self.lookup(names);
        HeldPrefix {
            tokens: held.len as u32 * BLOCK_TOKENS,
            pieces: self.attention_pieces(&held.blocks),
        }
    }

    /// The attention pieces of blocks with their places in a prompt.
    pub(crate) fn attention_pieces<'a>(
        &self,
        blocks: impl IntoIterator<Item = &'a (usize, Arc<PoolBlock>)>,
    ) -> Vec<KvPiece> {
        let mut pieces = Vec::new();
        for (index, block) in blocks {
            let start = *index as u32 * BLOCK_TOKENS;
            for (layer, bytes) in self.attention_layers().zip(&block.attention) {
                pieces.push(KvPiece {
                    id: piece_id(layer, start, Tokens(BLOCK_TOKENS)),
                    bytes: bytes.clone(),
                });
            }
        }
        pieces
    }

    /// Keeps block number `index` of a prompt, and tells what came and what went.
    pub(crate) fn store(&self, names: &Names, index: usize, kv: BlockKv) {
        let Some(id) = names.ids.get(index).copied() else {
            return;
        };
        let hashes = names.hashes[index * HASHES_PER_BLOCK..][..HASHES_PER_BLOCK].to_vec();
        let parent = index.checked_sub(1).map(|before| names.ids[before]);
        let block = PoolBlock {
            id,
            parent,
            hashes: hashes.clone(),
            attention: kv.attention,
            snapshot: kv.snapshot,
        };
        // Told under the lock, so that events come in the order of the changes. Nobody listening is no error.
        let mut pool = self.pool.lock();
        // Leased, so that room for this block is not made at the cost of what it cannot be used without.
        let _needed = self
            .layout
            .window
            .map(|_| pool.lookup_needed(&names.ids[..index]));
        let inserted = pool.insert(block);
        let gone: Vec<BlockHash> = inserted
            .evicted
            .iter()
            .flat_map(|block| &block.hashes)
            .copied()
            .collect();
        if !gone.is_empty() {
            let _ = self.events.send(KvEvent::Removed {
                part: CachePart::DEVICE,
                blocks: gone,
            });
        }
        if inserted.added {
            let before = (index * HASHES_PER_BLOCK).checked_sub(1);
            let _ = self.events.send(KvEvent::Stored {
                part: CachePart::DEVICE,
                parent: before.map(|before| names.hashes[before]),
                blocks: hashes,
            });
        }
    }

    /// Puts the KV of a prefix into a fresh state.
    pub(crate) fn restore(&self, held: &HeldBlocks, state: &mut SequenceState) {
        for (index, block) in &held.blocks {
            let start = index * BLOCK_TOKENS as usize;
            let layers = state
                .layers
                .iter_mut()
                .filter(|layer| matches!(layer, LayerState::Attention(_)));
            for (layer, bytes) in layers.zip(&block.attention) {
                layer.restore(start, bytes);
            }
        }
        let last = held.blocks.last().map(|(_, block)| block);
        let snapshot = last.and_then(|block| block.snapshot.as_ref());
        let layers = state
            .layers
            .iter_mut()
            .filter(|layer| matches!(layer, LayerState::Recurrent(_)));
        for (layer, bytes) in layers.zip(snapshot.into_iter().flatten()) {
            layer.restore(0, bytes);
        }
        state.tokens = held.len * BLOCK_TOKENS as usize;
    }

    fn attention_layers(&self) -> impl Iterator<Item = u16> {
        (0u16..)
            .zip(&self.layout.layers)
            .filter(|(_, layer)| matches!(layer, LayerKv::FullAttention { .. }))
            .map(|(index, _)| index)
    }
}
