//! A pool of KV blocks kept for reuse.
//!
//! Blocks form a forest: a block's parent is the block of the tokens before it. One block carries both cache groups
//! of a hybrid model: the attention KV of its tokens, and, where the engine kept one, a *snapshot*: the recurrent
//! state after its last token. Attention KV can be reused by block, a recurrent state only at the exact length it was
//! taken at, so a hit of a hybrid model ends at a block with a snapshot.
//!
//! Leases are reference counts: as long as a caller keeps the [`Arc`] of a block, the block stays.

mod credit;
mod dependencies;
mod forget;
mod order;
mod room;
mod shape;
mod tenants;
#[cfg(test)]
mod tests;
mod window;

pub use forget::Selector;
pub use shape::{Held, Inserted, Parents, PoolConfig, Reuse, Seen, TenantUse};
pub use tenants::{Counts, Shares};
pub use window::{BlockWindow, HeldBlocks};

use crate::block::{BlockKv, Kept, PoolBlock};
use credit::{Due, Worth};
use dependencies::Dependants;
use portolan_base::{BlockId, Bytes, Dependency, Moment, Provenance, Scope};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tenants::{TenantIndex, Tenants};

/// Most things one block may depend on: four requests' worth. A block that would depend on more is not reused.
const DEPENDENCIES_MAX: usize = 256;

/// Blocks kept for reuse, shared by prefix, under a hard budget.
///
/// Of blocks without children the one that is due first goes first (`credit.rs`): a block whose parent is missing could
/// never be found. A tenant above its share makes room for itself; one beneath it takes from those above theirs
/// (`tenants.rs`). Where attention has a window any block may go (`window.rs`). A lookup costs O(log n) a block; an insertion and each eviction O(log n), and O(1) for each leased
/// leaf passed over.
#[derive(Debug)]
pub struct PrefixPool<K = BlockKv> {
    budget: Bytes,
    used: Bytes,
    reuse: Reuse,
    parents: Parents,
    time_to_live: Option<Duration>,
    window: Option<BlockWindow>,
    entries: HashMap<BlockId, Entry<K>>,
    /// Held blocks by their parent, held or not.
    children: HashMap<BlockId, HashSet<BlockId>>,
    /// Under a window: blocks that are not held though others were computed on top of them, with their parents.
    missing: HashMap<BlockId, BlockId>,
    tenants: Tenants,
    dependants: Dependants,
    /// By last use; empty when blocks live as long as there is room.
    by_time: BTreeMap<(Moment, u64), BlockId>,
    worth: Worth,
    /// Bytes taken in since the beginning.
    turnover: u64,
    uses: u64,
}

#[derive(Debug)]
struct Entry<K> {
    block: Arc<PoolBlock<K>>,
    /// The copy this one replaced when a snapshot was added; a lease on it is a lease on the block.
    former: Weak<PoolBlock<K>>,
    /// What any of its users said it depends on.
    dependencies: Arc<[Dependency]>,
    tenant: TenantIndex,
    due: Due,
    used_at: Moment,
    reuses: u32,
}

impl<K> Entry<K> {
    fn is_leased(&self) -> bool {
        Arc::strong_count(&self.block) > 1 || self.former.strong_count() > 0
    }
}

impl<K: Kept> PrefixPool<K> {
    /// An empty pool.
    pub fn new(config: PoolConfig) -> Self {
        Self {
            budget: config.budget,
            used: Bytes(0),
            reuse: config.reuse,
            parents: config.parents,
            time_to_live: config.time_to_live,
            window: config.window,
            entries: HashMap::new(),
            children: HashMap::new(),
            missing: HashMap::new(),
            tenants: Tenants::new(config.shares),
            dependants: Dependants::default(),
            by_time: BTreeMap::new(),
            worth: Worth::default(),
            turnover: 0,
            uses: 0,
        }
    }

    /// The longest prefix of `chain` that is held and usable, leased to the caller and marked as used `now` by `about`:
    /// from then on it depends on what `about` depends on, too. What depends on a thing at another version than `about`
    /// names is not usable by it.
    pub fn lookup(&mut self, chain: &[BlockId], about: &Provenance, now: Moment) -> Held<K> {
        let mut blocks = self.run(chain, now);
        let bound = blocks
            .iter()
            .take_while(|block| self.may_hang_on(&block.id, about));
        blocks.truncate(bound.count());
        self.cut(&mut blocks);
        for block in &blocks {
            self.bind(&block.id, about);
            self.touch(&block.id, now, 1);
        }
        let index = self.tenants.index(&about.scope);
        let counts = self.tenants.counts(index);
        counts.hits += blocks.len() as u64;
        counts.misses += (chain.len() - blocks.len()) as u64;
        Held { blocks }
    }

    /// The same without counting, for what depends `on` these: for whoever looks again at what was, or will be, looked up
    /// for the same request.
    pub fn lease(&mut self, chain: &[BlockId], on: &[Dependency], now: Moment) -> Held<K> {
        let mut blocks = self.run_for(chain, on, now);
        self.cut(&mut blocks);
        for block in &blocks {
            self.touch(&block.id, now, 0);
        }
        Held { blocks }
    }

    /// How many blocks from the beginning of a chain are held that what depends `on` these may use.
    pub fn run_length(&self, chain: &[BlockId], on: &[Dependency], now: Moment) -> usize {
        self.run_for(chain, on, now).len()
    }

    /// All held blocks from the beginning of a chain, whether a prefix may end there or not: for whoever is about to add
    /// the blocks that follow.
    pub fn lease_all(&self, chain: &[BlockId], now: Moment) -> Vec<Arc<PoolBlock<K>>> {
        self.run(chain, now)
    }

    /// A block that comes after `parent` and is not too old; not marked as used.
    pub fn find(&self, id: &BlockId, parent: Option<BlockId>, now: Moment) -> Option<&Arc<PoolBlock<K>>> {
        let entry = self.entries.get(id)?;
        let usable = entry.block.parent == parent && !self.is_over(entry.used_at, now);
        usable.then_some(&entry.block)
    }

    /// As [`find`](Self::find), as far as what depends `on` these may use it.
    pub fn find_for(
        &self,
        id: &BlockId,
        parent: Option<BlockId>,
        on: &[Dependency],
        now: Moment,
    ) -> Option<&Arc<PoolBlock<K>>> {
        self.find(id, parent, now).filter(|_| self.agrees(id, on))
    }

    /// Takes a block, evicting others to stay within the budget.
    ///
    /// The block depends on what its parent depends on, too: it was computed on top of it. Nothing is added, and nothing
    /// evicted, when leased blocks or the tenants' shares leave too little room, when the block's parent is needed and
    /// not held, or when it would depend on more than 256 things, or on one thing at two versions. Of a block that is held
    /// already the pool keeps its own copy, adding the snapshot if it lacked one; where that depends on a thing at another
    /// version, it and what was computed on top of it make way.
    pub fn insert(&mut self, block: PoolBlock<K>, now: Moment) -> Inserted<K> {
        let replaced = self.make_way(&block);
        Inserted {
            replaced,
            ..self.insert_agreeing(block, now)
        }
    }

    /// Takes out what is held under a block's name and depends on a thing at another version, with what hangs on it.
    fn make_way(&mut self, block: &PoolBlock<K>) -> Vec<Arc<PoolBlock<K>>> {
        if self.agrees(&block.id, &block.about.dependencies) {
            return Vec::new();
        }
        let gone = self.take_tree(block.id);
        for entry in &gone {
            self.tenants.counts(entry.tenant).evicted += 1;
        }
        gone.into_iter().map(Entry::into_block).collect()
    }

    fn insert_agreeing(&mut self, block: PoolBlock<K>, now: Moment) -> Inserted<K> {
        if self.entries.contains_key(&block.id) {
            return self.complete(block, now);
        }
        // Leased while room is made, so that the parent is not what makes room for its child.
        let parent = block
            .parent
            .and_then(|id| self.entries.get(&id))
            .map(|entry| Arc::clone(&entry.block));
        let needs_parent = self.parents == Parents::Held && self.window.is_none();
        if block.parent.is_some() && parent.is_none() && needs_parent {
            return Inserted::nothing();
        }
        let on = &block.about.dependencies;
        if needs_parent && block.parent.is_some_and(|parent| !self.agrees(&parent, on)) {
            return Inserted::nothing();
        }
        let dependencies = self.inherited(&block);
        if dependencies.len() > DEPENDENCIES_MAX {
            return Inserted::nothing();
        }
        let tenant = self.tenants.index(&block.about.scope);
        let Some(evicted) = self.make_room(tenant, block.size()) else {
            return Inserted::nothing();
        };
        if let Some(parent) = parent {
            self.touch(&parent.id, now, 0);
        }
        self.turnover = self.turnover.saturating_add(block.size().0);
        self.tenants.counts(tenant).stored += 1;
        let used = self.next_use();
        self.put(Entry {
            block: Arc::new(block),
            former: Weak::new(),
            dependencies,
            tenant,
            due: Due {
                at: self.turnover,
                used,
            },
            used_at: now,
            reuses: 0,
        });
        Inserted {
            added: true,
            evicted,
            replaced: Vec::new(),
        }
    }

    /// Takes one block out, with everything it depends on: it moves to another tier. What hangs on it stays.
    pub fn remove(&mut self, id: &BlockId) -> Option<Arc<PoolBlock<K>>> {
        let entry = self.take(id);
        self.unlink(*id);
        entry.map(Entry::into_block)
    }

    /// Marks one block as found again.
    pub fn touch_one(&mut self, id: &BlockId, now: Moment) {
        self.touch(id, now, 1);
    }

    /// Counts blocks that a tenant asked for, where [`Self::lookup`] is not what found them.
    pub fn count(&mut self, scope: &Scope, hits: u64, misses: u64) {
        let index = self.tenants.index(scope);
        let counts = self.tenants.counts(index);
        counts.hits += hits;
        counts.misses += misses;
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

    /// What each tenant uses, and the public prefixes.
    pub fn tenants(&self) -> impl Iterator<Item = TenantUse> {
        self.tenants.parts().iter().map(|part| TenantUse {
            scope: part.scope.clone(),
            share: part.share,
            used: part.used,
            blocks: part.blocks.len(),
            counts: part.counts,
        })
    }

    /// Every block held, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = Seen<'_, K>> {
        self.entries.values().map(Entry::seen)
    }

    /// One block, as an operator sees it.
    pub fn see(&self, id: &BlockId) -> Option<Seen<'_, K>> {
        self.entries.get(id).map(Entry::seen)
    }

    /// The beginning of `chain` that is held, as far as what depends `on` these may use it.
    fn run_for(&self, chain: &[BlockId], on: &[Dependency], now: Moment) -> Vec<Arc<PoolBlock<K>>> {
        let mut blocks = self.run(chain, now);
        let agreeing = blocks.iter().take_while(|block| self.agrees(&block.id, on));
        blocks.truncate(agreeing.count());
        blocks
    }

    /// The beginning of `chain` that is held.
    fn run(&self, chain: &[BlockId], now: Moment) -> Vec<Arc<PoolBlock<K>>> {
        let parents = std::iter::once(None).chain(chain.iter().copied().map(Some));
        let found = chain
            .iter()
            .zip(parents)
            .map_while(|(id, parent)| self.find(id, parent, now));
        found.cloned().collect()
    }

    /// Cuts a run where its use ends.
    fn cut(&self, blocks: &mut Vec<Arc<PoolBlock<K>>>) {
        if self.reuse == Reuse::Snapshots {
            let last = blocks.iter().rposition(|block| block.kv.has_snapshot());
            blocks.truncate(last.map_or(0, |last| last + 1));
        }
    }

    /// Adds the snapshot of `block` to the held copy, if that has none.
    fn complete(&mut self, block: PoolBlock<K>, now: Moment) -> Inserted<K> {
        if self.may_hang_on(&block.id, &block.about) {
            self.bind(&block.id, &block.about);
        }
        self.touch(&block.id, now, 0);
        let Some(entry) = self.entries.get(&block.id) else {
            return Inserted::nothing();
        };
        if entry.block.kv.has_snapshot() || !block.kv.has_snapshot() {
            return Inserted::nothing();
        }
        let (own, tenant) = (Arc::clone(&entry.block), entry.tenant);
        let completed = own.with(own.kv.completed(block.kv));
        let growth = completed.size() - own.size();
        let Some(evicted) = self.make_room(tenant, growth) else {
            return Inserted::nothing();
        };
        if let Some(entry) = self.entries.get_mut(&own.id) {
            entry.former = Arc::downgrade(&own);
            entry.block = Arc::new(completed);
            self.used += growth;
            self.worth.add(Duration::ZERO, growth);
            self.tenants.change(tenant, |part| part.used += growth);
        }
        Inserted {
            added: true,
            evicted,
            replaced: Vec::new(),
        }
    }

    /// Whether what depends `on` these may use a block, as far as their versions go. A block that is not held says nothing
    /// against it; nor does a public one, which nothing that a tenant names binds.
    fn agrees(&self, id: &BlockId, on: &[Dependency]) -> bool {
        self.entries.get(id).is_none_or(|entry| {
            std::ptr::eq(entry.dependencies.as_ref(), on) || !Dependency::contradict(&entry.dependencies, on)
        })
    }

    /// Whether a block can take on what `about` depends on.
    fn may_hang_on(&self, id: &BlockId, about: &Provenance) -> bool {
        let Some(entry) = self.entries.get(id) else {
            return false;
        };
        let more = about
            .dependencies
            .iter()
            .filter(|d| !entry.dependencies.contains(d));
        let is_bearable = entry.block.about.scope == Scope::Public
            || entry.dependencies.len() + more.count() <= DEPENDENCIES_MAX;
        is_bearable && self.agrees(id, &about.dependencies)
    }

    /// What a new block depends on: what it says, and what its parent does, as far as that is not another version of the
    /// same. Nothing of a tenant's binds a public block.
    fn inherited(&self, block: &PoolBlock<K>) -> Arc<[Dependency]> {
        let own = &block.about.dependencies;
        let parent = block.parent.and_then(|id| self.entries.get(&id));
        let theirs = parent
            .filter(|_| block.about.scope != Scope::Public)
            .map(|parent| &parent.dependencies);
        match theirs {
            Some(theirs) if theirs.iter().any(|d| !own.contains(d)) => {
                let is_new = |d: &&Dependency| !own.contains(d) && !own.iter().any(|own| own.contradicts(d));
                let more = theirs.iter().filter(is_new);
                own.iter().chain(more).cloned().collect()
            }
            _ => Arc::clone(own),
        }
    }

    /// Makes a block depend on what `about` depends on. A tenant cannot make a public block depend on anything.
    fn bind(&mut self, id: &BlockId, about: &Provenance) {
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        let same = Arc::ptr_eq(&entry.dependencies, &about.dependencies);
        if same || entry.block.about.scope == Scope::Public {
            return;
        }
        let new = about
            .dependencies
            .iter()
            .filter(|d| !entry.dependencies.contains(d));
        let new: Vec<Dependency> = new.cloned().collect();
        if !new.is_empty() {
            self.dependants.add(*id, &new);
            entry.dependencies = entry.dependencies.iter().cloned().chain(new).collect();
        }
    }
}

impl<K> Entry<K> {
    fn seen(&self) -> Seen<'_, K> {
        Seen {
            block: &self.block,
            dependencies: &self.dependencies,
            used_at: self.used_at,
            reuses: self.reuses,
            leased: self.is_leased(),
        }
    }
}

impl<K: Kept> Entry<K> {
    /// The block, with everything that its users said it depends on.
    fn into_block(self) -> Arc<PoolBlock<K>> {
        self.bound()
    }

    /// The same of an entry that stays.
    fn bound(&self) -> Arc<PoolBlock<K>> {
        if self.block.about.dependencies == self.dependencies {
            return Arc::clone(&self.block);
        }
        let about = Provenance {
            dependencies: Arc::clone(&self.dependencies),
            ..Provenance::clone(&self.block.about)
        };
        Arc::new(PoolBlock {
            about: Arc::new(about),
            ..PoolBlock::clone(&self.block)
        })
    }
}
