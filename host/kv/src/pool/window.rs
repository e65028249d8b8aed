//! Reuse where attention looks at the latest tokens and the first ones only: a hit needs their blocks, and no other.
//!
//! Under a window any block may leave the pool, whatever was computed on top of it. A hit touches the blocks it needs,
//! so those that fell out of every window grow old and go first. Orders to forget still reach what was computed on top
//! of a block, held or not: the pool keeps the names between ([`PrefixPool::insert_after`]), 100 bytes for each block
//! of a prompt's length while anything of the prompt beyond is held.

use super::{Held, Inserted, PrefixPool, Reuse};
use crate::block::{BlockKv, Kept, PoolBlock};
use portolan_base::kv::KvWindow;
use portolan_base::{BlockId, Dependency, Moment, Provenance};
use std::ops::Range;
use std::sync::Arc;

/// A window, and the tokens of a pool block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockWindow {
    /// What attention looks at.
    pub window: KvWindow,
    /// Tokens of a block.
    pub block: u32,
}

impl BlockWindow {
    /// The blocks that are needed to go on after `blocks` whole ones: the first, and the latest.
    fn needed(&self, blocks: usize) -> (usize, Range<usize>) {
        let tokens = u32::try_from(blocks)
            .unwrap_or(u32::MAX)
            .saturating_mul(self.block);
        let (first, latest) = self.window.needed(tokens, self.block);
        let count = |tokens: u32| (tokens / self.block.max(1)) as usize;
        (count(first.end), count(latest.start)..blocks)
    }
}

/// The longest usable prefix of a prompt, as blocks with their places in it.
#[derive(Clone, Debug, Default)]
pub struct HeldBlocks<K = BlockKv> {
    /// Blocks that the prefix is long.
    pub len: usize,
    /// Those of them that are needed to go on, in order. Each is leased for as long as its `Arc` is kept.
    pub blocks: Vec<(usize, Arc<PoolBlock<K>>)>,
}

impl<K> From<Held<K>> for HeldBlocks<K> {
    fn from(held: Held<K>) -> Self {
        Self {
            len: held.blocks.len(),
            blocks: held.blocks.into_iter().enumerate().collect(),
        }
    }
}

impl<K: Kept> PrefixPool<K> {
    /// As [`PrefixPool::lookup`], of a pool of either kind.
    pub fn lookup_needed(&mut self, chain: &[BlockId], about: &Provenance, now: Moment) -> HeldBlocks<K> {
        let Some(window) = self.window else {
            return self.lookup(chain, about, now).into();
        };
        let held = self.needed(window, chain, |id, parent| {
            self.find(id, parent, now).is_some() && self.may_hang_on(id, about)
        });
        for (_, block) in &held.blocks {
            self.bind(&block.id, about);
            self.touch(&block.id, now, 1);
        }
        let index = self.tenants.index(&about.scope);
        let counts = self.tenants.counts(index);
        counts.hits += held.len as u64;
        counts.misses += (chain.len() - held.len) as u64;
        held
    }

    /// As [`PrefixPool::lease`], of a pool of either kind.
    pub fn lease_needed(&mut self, chain: &[BlockId], on: &[Dependency], now: Moment) -> HeldBlocks<K> {
        let Some(window) = self.window else {
            return self.lease(chain, on, now).into();
        };
        let held = self.needed(window, chain, |id, parent| {
            self.find_for(id, parent, on, now).is_some()
        });
        for (_, block) in &held.blocks {
            self.touch(&block.id, now, 0);
        }
        held
    }

    /// As [`PrefixPool::insert`], of a pool of either kind: the block that follows `chain`. Under a window room is not
    /// made at the cost of what the block cannot be used without.
    pub fn insert_after(&mut self, chain: &[BlockId], block: PoolBlock<K>, now: Moment) -> Inserted<K> {
        if self.window.is_none() {
            return self.insert(block, now);
        }
        let id = block.id;
        let _needed = self.lease_needed(chain, &block.about.dependencies, now);
        let inserted = self.insert(block, now);
        if self.entries.contains_key(&id) {
            self.link(chain);
        }
        inserted
    }

    /// The longest prefix of which every needed block is usable.
    fn needed(
        &self,
        window: BlockWindow,
        chain: &[BlockId],
        is_usable: impl Fn(&BlockId, Option<BlockId>) -> bool,
    ) -> HeldBlocks<K> {
        // How many blocks before and with each one are usable without a break.
        let mut run = 0;
        let parents = std::iter::once(None).chain(chain.iter().copied().map(Some));
        let runs: Vec<usize> = chain
            .iter()
            .zip(parents)
            .map(|(id, parent)| {
                run = if is_usable(id, parent) { run + 1 } else { 0 };
                run
            })
            .collect();
        let places = runs.iter().zip(1..);
        let from_the_start = places.take_while(|(run, place)| *run == place).count();
        let is_enough = |len: &usize| {
            let (first, latest) = window.needed(*len);
            first <= from_the_start
                && latest.len() <= *len.checked_sub(1).map_or(&0, |last| &runs[last])
                && self.may_end(&chain[*len - 1])
        };
        let len = (1..=chain.len()).rev().find(is_enough).unwrap_or(0);
        let (first, latest) = window.needed(len);
        let block = |place: usize| Some((place, Arc::clone(&self.entries.get(chain.get(place)?)?.block)));
        HeldBlocks {
            len,
            blocks: (0..first.min(len)).chain(latest).filter_map(block).collect(),
        }
    }

    /// Whether a prefix of which this is the last block is of use.
    fn may_end(&self, id: &BlockId) -> bool {
        let block = self.entries.get(id).map(|entry| &entry.block);
        self.reuse == Reuse::AnyBlock || block.is_some_and(|block| block.kv.has_snapshot())
    }

    /// Notes the names of a chain whose next block is held, as far back as they are not known.
    fn link(&mut self, chain: &[BlockId]) {
        for pair in chain.windows(2).rev() {
            let [parent, id] = pair else { continue };
            if self.entries.contains_key(id) || self.missing.insert(*id, *parent).is_some() {
                return;
            }
            self.children.entry(*parent).or_default().insert(*id);
        }
    }

    /// Lets go of the names that lead to a block which is not held, if nothing beyond it is held.
    pub(super) fn unlink(&mut self, id: BlockId) {
        let mut id = id;
        while !self.children.contains_key(&id)
            && let Some(parent) = self.missing.remove(&id)
        {
            if let Some(siblings) = self.children.get_mut(&parent) {
                siblings.remove(&id);
                if siblings.is_empty() {
                    self.children.remove(&parent);
                }
            }
            id = parent;
        }
    }
}

#[cfg(test)]
mod tests;
