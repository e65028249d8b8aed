//! The instance's prefix pool, and the events that tell what enters and leaves it.

use crate::BLOCK_TOKENS;
use crate::network::state::{LayerState, SequenceState};
use parking_lot::Mutex;
use portolan_base::kv::{KvLayout, LayerKv};
use portolan_base::{
    BlockHash, BlockId, Bytes, CachePart, INDEX_BLOCK_TOKENS, Moment, Permille, Provenance, TenantKey, Tokens,
};
use portolan_kv::{BlockKv, BlockWindow, HeldBlocks, PoolBlock, PoolConfig, PrefixPool, Reuse, Shares};
use portolan_ports::kvset::piece_id;
use portolan_ports::{HeldPrefix, KvEvent, KvPiece};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::broadcast;

/// Events kept for a slow reader. A block of prefill is one event and takes milliseconds, so this is seconds of
/// slack; a reader that falls behind is told that it missed some.
const EVENTS_KEPT: usize = 1024;

/// Index blocks in one pool block.
const HASHES_PER_BLOCK: usize = BLOCK_TOKENS as usize / INDEX_BLOCK_TOKENS;

/// How an instance keeps KV for reuse.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// What each tenant is promised of the pool; none: the whole, and the first that is due goes, whosever it is.
    pub shares: Option<Shares>,
    /// A hybrid model's state is kept after every so many blocks, and after the last whole block of each prompt.
    pub snapshot_blocks: NonZeroU32,
    /// How long a block stays when nobody uses it; none: until its room is needed.
    pub time_to_live: Option<Duration>,
}

/// Every 512 tokens: a state is as large as the KV of some 800 tokens, so that more states crowd out the KV they serve,
/// and fewer find less (`docs/kv-pool.md`).
const SNAPSHOT_BLOCKS: NonZeroU32 = NonZeroU32::new(8).unwrap();

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            shares: None,
            snapshot_blocks: SNAPSHOT_BLOCKS,
            time_to_live: None,
        }
    }
}

/// The names of a prompt's full blocks, and whose they are.
#[derive(Debug)]
pub(crate) struct Names {
    ids: Vec<BlockId>,
    hashes: Vec<BlockHash>,
    /// So many of the first are public.
    public: usize,
    about: Arc<Provenance>,
}

impl Names {
    pub(crate) fn of(key: &TenantKey, tokens: &[u32], about: &Arc<Provenance>) -> Self {
        let ids = BlockId::chain(key, tokens, BLOCK_TOKENS as usize);
        Self {
            public: ((key.public_tokens() / BLOCK_TOKENS) as usize).min(ids.len()),
            ids,
            hashes: BlockHash::chain(key, tokens),
            about: Arc::clone(about),
        }
    }

    /// How many full blocks there are.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    fn about(&self, index: usize) -> Arc<Provenance> {
        let tenant = &self.about;
        if index >= self.public {
            return Arc::clone(tenant);
        }
        Arc::new(Provenance::public(tenant.model.clone(), tenant.model_version))
    }
}

/// A block to be kept.
#[derive(Debug)]
pub(crate) struct Computed {
    /// Its KV.
    pub(crate) kv: BlockKv,
    /// What computing it took, or would have.
    pub(crate) rebuild: Duration,
}

/// Blocks kept for reuse.
#[derive(Debug)]
pub(crate) struct Cache {
    pool: Mutex<PrefixPool>,
    events: broadcast::Sender<KvEvent>,
    layout: Arc<KvLayout>,
    snapshot_blocks: NonZeroU32,
    began: Instant,
}

impl Cache {
    pub(crate) fn new(budget: Bytes, config: CacheConfig, layout: Arc<KvLayout>) -> Self {
        let any = PoolConfig::of(budget);
        let window = layout.window.map(|window| BlockWindow {
            window,
            block: layout.block_tokens,
        });
        let pool = PrefixPool::new(PoolConfig {
            window,
            shares: config.shares.unwrap_or(any.shares),
            reuse: if layout.is_hybrid() {
                Reuse::Snapshots
            } else {
                Reuse::AnyBlock
            },
            time_to_live: config.time_to_live,
            ..any
        });
        Self {
            pool: Mutex::new(pool),
            events: broadcast::channel(EVENTS_KEPT).0,
            layout,
            snapshot_blocks: config.snapshot_blocks,
            began: Instant::now(),
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

    /// Whether the state after block number `index` of so many is worth keeping: at fixed distances, where prompts that
    /// begin alike find it, where the public part ends, and at the last block, where the next turn goes on.
    pub(crate) fn wants_snapshot(&self, names: &Names, index: usize) -> bool {
        let after = index + 1;
        let at_distance = after.is_multiple_of(self.snapshot_blocks.get() as usize);
        self.layout.is_hybrid() && (at_distance || after == names.len() || after == names.public)
    }

    /// The longest usable prefix; from here on it depends on what the prompt depends on.
    pub(crate) fn lookup(&self, names: &Names) -> HeldBlocks {
        let now = self.now();
        self.pool.lock().lookup_needed(&names.ids, &names.about, now)
    }

    /// The longest usable prefix, looked at once more for the same prompt.
    pub(crate) fn lease(&self, names: &Names) -> HeldBlocks {
        self.lease_chain(&names.ids)
    }

    fn lease_chain(&self, ids: &[BlockId]) -> HeldBlocks {
        let now = self.now();
        self.pool.lock().lease_needed(ids, now)
    }

    /// The attention pieces of the longest usable prefix.
    pub(crate) fn held(&self, key: &TenantKey, tokens: &[u32]) -> HeldPrefix {
        let held = self.lease_chain(&BlockId::chain(key, tokens, BLOCK_TOKENS as usize));
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
            for (layer, bytes) in self.attention_layers().zip(&block.kv.attention) {
                pieces.push(KvPiece {
                    id: piece_id(layer, start, Tokens(BLOCK_TOKENS)),
                    bytes: bytes.clone(),
                });
            }
        }
        pieces
    }

    /// Keeps block number `index` of a prompt, and tells what came and what went.
    pub(crate) fn store(&self, names: &Names, index: usize, computed: Computed) {
        let Some(id) = names.ids.get(index).copied() else {
            return;
        };
        let hashes = names.hashes[index * HASHES_PER_BLOCK..][..HASHES_PER_BLOCK].to_vec();
        let parent = index.checked_sub(1).map(|before| names.ids[before]);
        let block = PoolBlock {
            id,
            parent,
            hashes: hashes.clone(),
            about: names.about(index),
            rebuild: computed.rebuild,
            kv: computed.kv,
        };
        let now = self.now();
        // Told under the lock, so that events come in the order of the changes. Nobody listening is no error.
        let mut pool = self.pool.lock();
        let inserted = pool.insert_after(&names.ids[..index], block, now);
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
            for (layer, bytes) in layers.zip(&block.kv.attention) {
                layer.restore(start, bytes);
            }
        }
        let last = held.blocks.last().map(|(_, block)| block);
        let snapshot = last.and_then(|block| block.kv.snapshot.as_ref());
        let layers = state
            .layers
            .iter_mut()
            .filter(|layer| matches!(layer, LayerState::Recurrent(_)));
        for (layer, bytes) in layers.zip(snapshot.into_iter().flatten()) {
            layer.restore(0, bytes);
        }
        state.tokens = held.len * BLOCK_TOKENS as usize;
    }

    fn now(&self) -> Moment {
        Moment::default() + self.began.elapsed()
    }

    fn attention_layers(&self) -> impl Iterator<Item = u16> {
        (0u16..)
            .zip(&self.layout.layers)
            .filter(|(_, layer)| matches!(layer, LayerKv::FullAttention { .. }))
            .map(|(index, _)| index)
    }
}
