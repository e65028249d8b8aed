//! The instance's prefix pool, and the events that tell what enters and leaves it.

mod config;
mod names;

pub use config::{CacheConfig, Surroundings};
pub(crate) use names::Names;

use crate::BLOCK_TOKENS;
use crate::network::state::{LayerState, SequenceState};
use bytes::Bytes as Buffer;
use parking_lot::Mutex;
use portolan_base::kv::{KvLayout, LayerKv};
use portolan_base::{
    BlockHash, BlockId, Bytes, CachePart, Clock, Dependency, INDEX_BLOCK_TOKENS, Moment, Permille,
    Provenance, TenantKey, Tokens,
};
use portolan_kv::tier::{Below, Card, Epoch, Left, TierUse, Tiers, Top};
use portolan_kv::{BlockKv, BlockWindow, HeldBlocks, PoolBlock, PoolConfig, PrefixPool, Reuse, Selector};
use portolan_ports::kvset::piece_id;
use portolan_ports::{HeldPrefix, KvCache, KvEvent, KvPiece};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;

/// Events kept for a slow reader. A block of prefill is one event and takes milliseconds, so this is seconds of
/// slack; a reader that falls behind is told that it missed some.
const EVENTS_KEPT: usize = 1024;

/// Index blocks in one pool block.
const HASHES_PER_BLOCK: usize = BLOCK_TOKENS as usize / INDEX_BLOCK_TOKENS;

/// A block to be kept.
#[derive(Debug)]
pub(crate) struct Computed {
    /// Its KV.
    pub(crate) kv: BlockKv,
    /// What computing it took, or would have.
    pub(crate) rebuild: Duration,
}

/// How often idle blocks are looked for. They cannot be found before; this gives their bytes back.
pub(crate) const EXPIRE_EVERY: Duration = Duration::from_secs(5);

/// Blocks kept for reuse.
pub(crate) struct Cache {
    pool: Mutex<PrefixPool>,
    events: broadcast::Sender<KvEvent>,
    layout: Arc<KvLayout>,
    snapshot_blocks: NonZeroU32,
    tiers: Arc<Tiers>,
    clock: Arc<dyn Clock>,
    /// When idle blocks were last looked for.
    expired: Mutex<Moment>,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache")
            .field("pool", &self.pool)
            .field("tiers", &self.tiers)
            .finish_non_exhaustive()
    }
}

impl Cache {
    pub(crate) fn new(
        budget: Bytes,
        config: CacheConfig,
        around: Surroundings,
        layout: Arc<KvLayout>,
    ) -> Arc<Self> {
        let any = PoolConfig::of(budget);
        let window = layout.window.map(|window| BlockWindow {
            window,
            block: layout.block_tokens,
        });
        let pool = PrefixPool::new(PoolConfig {
            window,
            shares: config.shares.unwrap_or(any.shares),
            reuse: reuse(&layout),
            time_to_live: config.time_to_live,
            ..any
        });
        let cache = Arc::new(Self {
            pool: Mutex::new(pool),
            events: broadcast::channel(EVENTS_KEPT).0,
            layout,
            snapshot_blocks: config.snapshot_blocks,
            expired: Mutex::new(around.clock.now()),
            tiers: around.tiers,
            clock: around.clock,
        });
        let top: Arc<dyn Top> = Arc::<Self>::clone(&cache);
        cache.tiers.attach(Arc::downgrade(&top));
        cache
    }

    /// The position in the sequence of orders at which a job begins.
    pub(crate) fn epoch(&self) -> Epoch {
        self.tiers.epoch()
    }

    /// Whether something may begin on KV of which some was cached when the site was at `since`.
    pub(crate) fn may_begin(&self, since: Epoch, about: &Provenance) -> bool {
        self.tiers.is_trusted(self.now()) && self.tiers.open().is_untouched(about, since)
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
        let mut pool = self.pool.lock();
        let now = self.now();
        match self.tiers.is_trusted(now) {
            true => pool.lookup_needed(&names.ids, &names.about, now),
            false => HeldBlocks::default(),
        }
    }

    /// The longest usable prefix, looked at once more for the same prompt.
    pub(crate) fn lease(&self, names: &Names) -> HeldBlocks {
        self.lease_chain(&names.ids, &names.about.dependencies)
    }

    /// The longest prefix of a chain of blocks that what depends `on` these may use.
    pub(crate) fn lease_chain(&self, ids: &[BlockId], on: &[Dependency]) -> HeldBlocks {
        let mut pool = self.pool.lock();
        let now = self.now();
        match self.tiers.is_trusted(now) {
            true => pool.lease_needed(ids, on, now),
            false => HeldBlocks::default(),
        }
    }

    /// The attention pieces of the longest prefix that what depends `on` these may use.
    pub(crate) fn held(&self, key: &TenantKey, tokens: &[u32], on: &[Dependency]) -> HeldPrefix {
        let held = self.lease_chain(&BlockId::chain(key, tokens, BLOCK_TOKENS as usize), on);
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
        let block = PoolBlock {
            id,
            parent: index.checked_sub(1).map(|before| names.ids[before]),
            hashes: names.hashes[index * HASHES_PER_BLOCK..][..HASHES_PER_BLOCK].to_vec(),
            about: names.about(index),
            rebuild: computed.rebuild,
            kv: computed.kv,
        };
        self.put(names, index, &Arc::new(block));
    }

    /// Takes block number `index` of a prompt, and tells what came and what went. False when it was not taken.
    fn put(&self, names: &Names, index: usize, block: &Arc<PoolBlock>) -> bool {
        let now = self.now();
        let open = self.tiers.open();
        if !open.allows(block, &names.ids[..index], names.epoch) {
            return false;
        }
        // Told under the lock, so that events come in the order of the changes.
        let mut pool = self.pool.lock();
        let inserted = pool.insert_after(&names.ids[..index], PoolBlock::clone(block), now);
        let is_held = pool.find(&block.id, block.parent, now).is_some();
        let has_tiers = self.has_tiers();
        let refused = (has_tiers && !is_held).then(|| Arc::clone(block));
        let falling = inserted.evicted.into_iter().chain(refused);
        let replaced = inserted.replaced.iter().map(|block| Left::from(block.as_ref()));
        let gone: Vec<Left> = if has_tiers {
            let demoted = falling.flat_map(|block| self.tiers.demote(block, &open, now));
            replaced.chain(demoted).collect()
        } else {
            replaced
                .chain(falling.map(|block| block.as_ref().into()))
                .collect()
        };
        self.tell_removed(&gone);
        if inserted.added {
            let before = (index * HASHES_PER_BLOCK).checked_sub(1);
            // Nobody listening is no error.
            let _ = self.events.send(KvEvent::Stored {
                part: CachePart::DEVICE,
                parent: before.map(|before| names.hashes[before]),
                blocks: block.hashes.clone(),
                about: Some(Arc::clone(&block.about)),
            });
        }
        drop(pool);
        drop(open);
        if has_tiers {
            self.tiers.left(&gone);
        }
        is_held
    }

    fn tell_removed(&self, blocks: &[Left]) {
        let hashes: Vec<BlockHash> = blocks.iter().flat_map(|block| &block.hashes).copied().collect();
        if !hashes.is_empty() {
            let _ = self.events.send(KvEvent::Removed {
                part: CachePart::DEVICE,
                blocks: hashes,
            });
        }
    }

    /// Whether blocks go down and come up. Under a window they do not: what the pool lets go first is what nothing will
    /// look at, and what is needed of a prompt is too little to crowd anything out.
    fn has_tiers(&self) -> bool {
        self.layout.window.is_none() && !self.tiers.each().is_empty()
    }

    /// What lies below of a prompt, beyond what is held here, as far as reading it is cheaper than computing it at
    /// `compute` a block.
    pub(crate) fn below(&self, names: &Names, compute: Duration) -> Below {
        if !self.has_tiers() {
            return Below::default();
        }
        let now = self.now();
        let about = &names.about;
        let held = self.pool.lock().run_length(&names.ids, &about.dependencies, now);
        let below = self.tiers.below(&names.ids, held, about, now);
        below.worthwhile(compute, reuse(&self.layout))
    }

    /// Brings up what was found below. The answer is a lease: what came stays until it is looked up.
    pub(crate) fn promote(&self, names: &Names, below: &Below) -> Vec<Arc<PoolBlock>> {
        let mut lease = self.pool.lock().lease_all(&names.ids, self.now());
        for found in below.blocks() {
            let Some(block) = self.tiers.read(found, self.now()) else {
                break;
            };
            if !self.fits(&block) || !self.put(names, found.place(), &block) {
                break;
            }
            lease = self.pool.lock().lease_all(&names.ids, self.now());
        }
        lease
    }

    /// Whether a block from elsewhere has the shapes of this model.
    fn fits(&self, block: &PoolBlock) -> bool {
        let layers = || (0u16..).zip(&self.layout.layers);
        let sizes = |recurrent: bool| {
            let of_kind =
                layers().filter(move |(_, layer)| matches!(layer, LayerKv::Recurrent { .. }) == recurrent);
            of_kind.filter_map(|(index, _)| self.layout.piece_bytes(index, Tokens(BLOCK_TOKENS)))
        };
        let fit = |buffers: &[Buffer], recurrent| {
            buffers.iter().map(|b| Bytes(b.len() as u64)).eq(sizes(recurrent))
        };
        let snapshot = block.kv.snapshot.as_deref();
        fit(&block.kv.attention, false) && snapshot.is_none_or(|snapshot| fit(snapshot, true))
    }

    /// Forgets what nobody used for too long, when it was not looked for lately.
    pub(crate) fn expire_when_due(&self) {
        let now = self.now();
        let mut last = self.expired.lock();
        if now.since(*last) < EXPIRE_EVERY {
            return;
        }
        *last = now;
        drop(last);
        let gone = self.pool.lock().expire(now);
        let gone: Vec<Left> = gone.iter().map(|block| block.as_ref().into()).collect();
        self.tell_removed(&gone);
        self.tiers.expire(now);
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
        self.clock.now()
    }

    fn attention_layers(&self) -> impl Iterator<Item = u16> {
        (0u16..)
            .zip(&self.layout.layers)
            .filter(|(_, layer)| matches!(layer, LayerKv::FullAttention { .. }))
            .map(|(index, _)| index)
    }
}

/// Where a prefix of this model may end.
fn reuse(layout: &KvLayout) -> Reuse {
    if layout.is_hybrid() {
        Reuse::Snapshots
    } else {
        Reuse::AnyBlock
    }
}

impl Top for Cache {
    fn invalidate(&self, what: &Selector, others: &[BlockId]) -> Vec<Left> {
        let mut pool = self.pool.lock();
        let mut gone = pool.invalidate(what);
        gone.extend(pool.forget(others));
        let left: Vec<Left> = gone.iter().map(|block| block.as_ref().into()).collect();
        self.tell_removed(&left);
        left
    }

    fn would_forget(&self, what: &Selector, others: &[BlockId]) -> Vec<(BlockId, Bytes)> {
        self.pool.lock().would_forget(what, others)
    }

    fn holds(&self, id: &BlockId) -> bool {
        self.pool.lock().see(id).is_some()
    }

    fn left(&self, blocks: &[Left]) {
        let pool = self.pool.lock();
        let gone: Vec<Left> = blocks
            .iter()
            .filter(|block| pool.see(&block.id).is_none())
            .cloned()
            .collect();
        self.tell_removed(&gone);
    }
}

impl KvCache for Cache {
    fn usage(&self) -> TierUse {
        TierUse::of(&self.pool.lock())
    }

    fn each(&self, show: &mut dyn FnMut(Card)) {
        self.pool.lock().iter().for_each(|seen| show(seen.into()));
    }

    fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    fn hand_down(&self, take: &mut dyn FnMut(Arc<PoolBlock>, Moment) -> bool) {
        if !self.has_tiers() {
            return;
        }
        let _open = self.tiers.open();
        let order = self.pool.lock().latest_first();
        for id in order {
            let handed = self.pool.lock().handed(&id);
            if handed.is_some_and(|(block, used_at)| !take(block, used_at)) {
                return;
            }
        }
    }

    fn now(&self) -> Moment {
        self.clock.now()
    }
}
