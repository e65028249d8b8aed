//! The prefix-cache pool of one instance.
//!
//! Blocks form a forest: a block's parent is the block of the tokens before it. One block carries both cache groups
//! of a hybrid model: the attention KV of its tokens, and, where the engine kept one, a *snapshot*: the recurrent
//! state after its last token. Attention KV can be reused by block, a recurrent state only at the exact length it was
//! taken at, so a hit of a hybrid model ends at a block with a snapshot.
//!
//! Leases are reference counts: as long as a caller keeps the [`Arc`] of a block, the block stays.

mod window;

#[cfg(test)]
mod tests;

pub use window::{BlockWindow, HeldBlocks};

use bytes::Bytes as Buffer;
use portolan_base::{BlockHash, BlockId, Bytes};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

/// What one block costs beside its KV: 112 bytes of block, 16 of reference counts, 48 of map entry, 24 in the order
/// of use, each with the slack of its container. Keeps the number of blocks bounded when their KV is tiny.
pub const BLOCK_OVERHEAD: Bytes = Bytes(256);

/// The KV of one block of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolBlock {
    /// Names all tokens up to the end of this block.
    pub id: BlockId,
    /// The block before this one; `None` for the first block of a prompt.
    pub parent: Option<BlockId>,
    /// The same tokens as the prefix index names them: one hash for each index block within this block.
    pub hashes: Vec<BlockHash>,
    /// Keys and values, one buffer an attention layer, in layer order; layout as in [`portolan_base::kv::LayerKv`].
    pub attention: Vec<Buffer>,
    /// State after the block's last token, one buffer a recurrent layer, in layer order.
    pub snapshot: Option<Vec<Buffer>>,
}

impl PoolBlock {
    /// What the block counts against the budget: its buffers and [`BLOCK_OVERHEAD`].
    pub fn size(&self) -> Bytes {
        let snapshot = self.snapshot.as_deref().unwrap_or_default();
        let buffers: u64 = self
            .attention
            .iter()
            .chain(snapshot)
            .map(|buffer| buffer.len() as u64)
            .sum();
        Bytes(buffers) + Bytes(8 * self.hashes.len() as u64) + BLOCK_OVERHEAD
    }
}

/// The longest usable prefix of a prompt.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// The prefix' blocks in order. Each is leased for as long as its `Arc` is kept.
    pub blocks: Vec<Arc<PoolBlock>>,
}

/// What an insertion did.
#[derive(Clone, Debug, Default)]
pub struct Inserted {
    /// Whether the pool took anything from the block: the whole of it, or the snapshot its own copy lacked.
    pub added: bool,
    /// Blocks that made room, least recently used first. They can no longer be found.
    pub evicted: Vec<Arc<PoolBlock>>,
}

/// Blocks kept for reuse, shared by prefix, under a hard budget.
///
/// The least recently used block without children goes first: a block whose parent is missing could never be found.
/// A lookup costs O(1) a block; an insertion and each eviction O(log n), and O(1) for each leased leaf passed over.
#[derive(Debug)]
pub struct PrefixPool {
    budget: Bytes,
    used: Bytes,
    needs_snapshot: bool,
    /// What a hit needs, where that is not every block before it.
    window: Option<BlockWindow>,
    entries: HashMap<BlockId, Entry>,
    /// Blocks without children by last use: what may be evicted, oldest first.
    leaves: BTreeMap<u64, BlockId>,
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    block: Arc<PoolBlock>,
    /// The copy this one replaced when a snapshot was added; a lease on it is a lease on the block.
    former: Weak<PoolBlock>,
    children: u32,
    /// Unique among entries.
    last_use: u64,
}

impl Entry {
    fn is_leased(&self) -> bool {
        Arc::strong_count(&self.block) > 1 || self.former.strong_count() > 0
    }
}

impl PrefixPool {
    /// An empty pool. `needs_snapshot`: the model has recurrent layers, so a hit must end at a snapshot.
    pub fn new(budget: Bytes, needs_snapshot: bool) -> Self {
        Self {
            budget,
            used: Bytes(0),
            needs_snapshot,
            window: None,
            entries: HashMap::new(),
            leaves: BTreeMap::new(),
            uses: 0,
        }
    }

    /// The longest prefix of `chain` that is held and usable, leased to the caller and marked as just used.
    pub fn lookup(&mut self, chain: &[BlockId]) -> Held {
        let mut blocks = Vec::new();
        let mut parent = None;
        for id in chain {
            let Some(entry) = self.entries.get(id).filter(|entry| entry.block.parent == parent) else {
                break;
            };
            blocks.push(Arc::clone(&entry.block));
            parent = Some(*id);
        }
        if self.needs_snapshot {
            let usable = blocks
                .iter()
                .rposition(|block| block.snapshot.is_some())
                .map_or(0, |last| last + 1);
            blocks.truncate(usable);
        }
        for block in &blocks {
            self.touch(&block.id);
        }
        Held { blocks }
    }

    /// Takes a block, evicting others to stay within the budget.
    ///
    /// Nothing is added, and nothing evicted, when the block's parent is not held or when leased blocks leave too
    /// little room. Of a block that is held already the pool keeps its own copy, adding the snapshot if it lacked one.
    pub fn insert(&mut self, block: PoolBlock) -> Inserted {
        if self.entries.contains_key(&block.id) {
            return self.complete(block);
        }
        // Leased while room is made, so that the parent is not what makes room for its child.
        let _parent = match self.parent_of(&block).map(|id| self.entries.get(&id)) {
            Some(None) => return Inserted::default(),
            Some(Some(entry)) => Some(Arc::clone(&entry.block)),
            None => None,
        };
        let Some(evicted) = self.make_room(block.size()) else {
            return Inserted::default();
        };
        let last_use = self.next_use();
        self.put(Entry {
            block: Arc::new(block),
            former: Weak::new(),
            children: 0,
            last_use,
        });
        Inserted { added: true, evicted }
    }

    /// Forgets every block, leased or not, and returns them: none can be found afterwards. Leases stay valid, but
    /// their bytes count against the budget no more.
    pub fn clear(&mut self) -> Vec<Arc<PoolBlock>> {
        self.leaves.clear();
        self.used = Bytes(0);
        self.entries.drain().map(|(_, entry)| entry.block).collect()
    }

    /// What the held blocks cost together; never above the budget.
    pub fn used(&self) -> Bytes {
        self.used
    }

    /// The most the pool may hold.
    pub fn budget(&self) -> Bytes {
        self.budget
    }

    /// Number of blocks held.
    pub fn blocks(&self) -> usize {
        self.entries.len()
    }

    /// Every block held, in no particular order: what a new reader of this pool's events has to be told first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<PoolBlock>> {
        self.entries.values().map(|entry| &entry.block)
    }

    /// Adds the snapshot of `block` to the held copy, if that has none.
    fn complete(&mut self, block: PoolBlock) -> Inserted {
        self.touch(&block.id);
        let (Some(own), Some(snapshot)) = (self.entries.get(&block.id), block.snapshot) else {
            return Inserted::default();
        };
        if own.block.snapshot.is_some() {
            return Inserted::default();
        }
        let own = Arc::clone(&own.block);
        let completed = PoolBlock {
            snapshot: Some(snapshot),
            ..PoolBlock::clone(&own)
        };
        let growth = completed.size() - own.size();
        let Some(evicted) = self.make_room(growth) else {
            return Inserted::default();
        };
        if let Some(entry) = self.entries.get_mut(&own.id) {
            entry.former = Arc::downgrade(&own);
            entry.block = Arc::new(completed);
            self.used += growth;
        }
        Inserted { added: true, evicted }
    }

    /// Evicts until `size` more bytes fit; `None`, with the pool as it was, when leases prevent that.
    fn make_room(&mut self, size: Bytes) -> Option<Vec<Arc<PoolBlock>>> {
        if size > self.budget {
            return None;
        }
        let mut evicted = Vec::new();
        while self.used > self.budget - size {
            let Some(entry) = self.oldest_free_leaf().and_then(|id| self.take(&id)) else {
                // Parents left last, so they return first.
                evicted.into_iter().rev().for_each(|entry| self.put(entry));
                return None;
            };
            evicted.push(entry);
        }
        Some(evicted.into_iter().map(|entry| entry.block).collect())
    }

    fn oldest_free_leaf(&self) -> Option<BlockId> {
        let free = |id: &&BlockId| self.entries.get(*id).is_some_and(|entry| !entry.is_leased());
        self.leaves.values().find(free).copied()
    }

    /// Adds a childless entry whose parent is held.
    fn put(&mut self, entry: Entry) {
        if let Some(parent) = self
            .parent_of(&entry.block)
            .and_then(|id| self.entries.get_mut(&id))
        {
            parent.children += 1;
            self.leaves.remove(&parent.last_use);
        }
        self.used += entry.block.size();
        self.leaves.insert(entry.last_use, entry.block.id);
        self.entries.insert(entry.block.id, entry);
    }

    /// Removes a childless entry.
    fn take(&mut self, id: &BlockId) -> Option<Entry> {
        let entry = self.entries.remove(id)?;
        self.leaves.remove(&entry.last_use);
        self.used = self.used - entry.block.size();
        if let Some(parent) = self
            .parent_of(&entry.block)
            .and_then(|id| self.entries.get_mut(&id))
        {
            parent.children -= 1;
            if parent.children == 0 {
                self.leaves.insert(parent.last_use, parent.block.id);
            }
        }
        Some(entry)
    }

    fn touch(&mut self, id: &BlockId) {
        let now = self.next_use();
        if let Some(entry) = self.entries.get_mut(id) {
            let before = std::mem::replace(&mut entry.last_use, now);
            if let Some(leaf) = self.leaves.remove(&before) {
                self.leaves.insert(now, leaf);
            }
        }
    }

    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }
}
