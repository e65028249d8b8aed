//! Reuse where attention looks at the latest tokens and the first ones only: a hit needs their blocks, and no other.
//!
//! A pool with a window keeps no forest. Any block may leave it, the least recently used first: a hit touches the
//! blocks it needs, so those that fell out of every window grow old.

use super::{PoolBlock, PrefixPool};
use portolan_base::kv::KvWindow;
use portolan_base::{BlockId, Bytes};
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
pub struct HeldBlocks {
    /// Blocks that the prefix is long.
    pub len: usize,
    /// Those of them that are needed to go on, in order. Each is leased for as long as its `Arc` is kept.
    pub blocks: Vec<(usize, Arc<PoolBlock>)>,
}

impl PrefixPool {
    /// An empty pool for a model whose attention has a window; `needs_snapshot` as in [`PrefixPool::new`].
    pub fn windowed(budget: Bytes, needs_snapshot: bool, window: BlockWindow) -> Self {
        Self {
            window: Some(window),
            ..Self::new(budget, needs_snapshot)
        }
    }

    /// As [`PrefixPool::lookup`], of a pool of either kind.
    pub fn lookup_needed(&mut self, chain: &[BlockId]) -> HeldBlocks {
        let Some(window) = self.window else {
            let blocks = self.lookup(chain).blocks;
            return HeldBlocks {
                len: blocks.len(),
                blocks: blocks.into_iter().enumerate().collect(),
            };
        };
        // How many blocks before and with each one are held without a break.
        let mut run = 0;
        let runs: Vec<usize> = chain
            .iter()
            .map(|id| {
                run = if self.entries.contains_key(id) { run + 1 } else { 0 };
                run
            })
            .collect();
        let from_the_start = runs
            .iter()
            .zip(1..)
            .take_while(|(run, place)| *run == place)
            .count();
        let usable = |len: &usize| {
            let (first, latest) = window.needed(*len);
            first <= from_the_start
                && latest.len() <= *len.checked_sub(1).map_or(&0, |last| &runs[last])
                && self.has_snapshot_if_needed(&chain[*len - 1])
        };
        let Some(len) = (1..=chain.len()).rev().find(usable) else {
            return HeldBlocks::default();
        };
        let (first, latest) = window.needed(len);
        let blocks: Vec<_> = (0..first)
            .chain(latest)
            .filter_map(|place| Some((place, Arc::clone(&self.entries.get(&chain[place])?.block))))
            .collect();
        for (_, block) in &blocks {
            self.touch(&block.id);
        }
        HeldBlocks { len, blocks }
    }

    fn has_snapshot_if_needed(&self, id: &BlockId) -> bool {
        let block = self.entries.get(id).map(|entry| &entry.block);
        !self.needs_snapshot || block.is_some_and(|block| block.snapshot.is_some())
    }

    /// The block that has to be there before `block` can be found.
    pub(super) fn parent_of(&self, block: &PoolBlock) -> Option<BlockId> {
        block.parent.filter(|_| self.window.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BLOCK_OVERHEAD;
    use portolan_base::TenantKey;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const BLOCK: u32 = 4;

    fn chain(len: usize) -> Vec<BlockId> {
        let tokens: Vec<u32> = (0..len as u32 * BLOCK).collect();
        BlockId::chain(&TenantKey::derive(&[1; 32], "t", "m", 1), &tokens, BLOCK as usize)
    }

    fn block(chain: &[BlockId], place: usize) -> PoolBlock {
        PoolBlock {
            id: chain[place],
            parent: place.checked_sub(1).map(|before| chain[before]),
            hashes: Vec::new(),
            attention: Vec::new(),
            snapshot: None,
        }
    }

    fn pool(blocks: u64, tokens: u32, sinks: u32) -> PrefixPool {
        let window = KvWindow { tokens, sinks };
        let budget = Bytes(blocks * BLOCK_OVERHEAD.0);
        PrefixPool::windowed(budget, false, BlockWindow { window, block: BLOCK })
    }

    fn places(held: &HeldBlocks) -> Vec<usize> {
        held.blocks.iter().map(|(place, _)| *place).collect()
    }

    #[test]
    fn a_hit_needs_the_first_blocks_and_the_latest_and_leases_no_other() {
        let chain = chain(8);
        // Five tokens reach one block back, and one token into the block before: two blocks.
        let mut pool = pool(8, 6, 1);
        for place in 0..8 {
            assert!(pool.insert(block(&chain, place)).added);
        }
        let held = pool.lookup_needed(&chain);
        assert_eq!((held.len, places(&held)), (8, vec![0, 6, 7]));
        assert_eq!(pool.lookup_needed(&chain[..1]).len, 1);
    }

    #[test]
    fn what_fell_out_of_the_window_makes_room_and_nothing_is_lost_by_it() {
        let chain = chain(20);
        let mut pool = pool(4, 6, 1);
        for place in 0..20 {
            let _needed = pool.lookup_needed(&chain[..place]);
            assert!(pool.insert(block(&chain, place)).added, "{place}");
            let held = pool.lookup_needed(&chain[..=place]);
            assert_eq!(held.len, place + 1);
        }
        assert_eq!(pool.blocks(), 4);
        assert!(pool.used() <= pool.budget());
        assert_eq!(
            pool.lookup_needed(&chain[..10]).len,
            1,
            "its latest blocks are gone"
        );
        assert_eq!(pool.clear().len(), 4);
    }

    proptest! {
        /// Against the definition: the longest prefix all of whose needed blocks are held.
        #[test]
        fn the_longest_usable_prefix_is_found(
            held in prop::collection::btree_set(0usize..24, 0..24),
            tokens in 1u32..30,
            sinks in 0u32..10,
        ) {
            let chain = chain(24);
            let mut pool = pool(24, tokens, sinks);
            for place in &held {
                prop_assert!(pool.insert(block(&chain, *place)).added);
            }
            let needed = |len: usize| -> BTreeSet<usize> {
                // The next token's view, token by token.
                let next = len as u32 * BLOCK;
                (0..next)
                    .filter(|key| *key < sinks || next - key < tokens)
                    .map(|key| (key / BLOCK) as usize)
                    .collect()
            };
            let expected = (0..=24).rev().find(|len| needed(*len).is_subset(&held)).unwrap();
            let found = pool.lookup_needed(&chain);
            // A window narrower than a block may need nothing at all: then any length will do.
            prop_assert!(found.len == expected || needed(expected).is_empty(), "{} of {expected}", found.len);
            let leased: BTreeSet<usize> = places(&found).into_iter().collect();
            prop_assert!(needed(found.len).is_subset(&leased));
        }
    }
}
