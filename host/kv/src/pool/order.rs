//! In which order a pool's blocks are handed on when their place goes away.

use super::PrefixPool;
use crate::block::{Kept, PoolBlock};
use portolan_base::{BlockId, Moment};
use std::collections::HashMap;
use std::sync::Arc;

impl<K: Kept> PrefixPool<K> {
    /// The names of all blocks: what was used last first, and a block before those computed on top of it, so that
    /// whoever takes some from the beginning has prefixes. O(n log n).
    pub fn latest_first(&self) -> Vec<BlockId> {
        let mut depths = HashMap::new();
        let mut order: Vec<_> = self.entries.iter().collect();
        for (id, _) in &order {
            self.measure(**id, &mut depths);
        }
        order.sort_by_key(|(id, entry)| (std::cmp::Reverse(entry.used_at), depths.get(*id).copied()));
        order.into_iter().map(|(id, _)| *id).collect()
    }

    /// A block with everything that its users said it depends on, and its last use.
    pub fn handed(&self, id: &BlockId) -> Option<(Arc<PoolBlock<K>>, Moment)> {
        let entry = self.entries.get(id)?;
        Some((entry.bound(), entry.used_at))
    }

    /// How many held blocks lie before one.
    fn measure(&self, id: BlockId, depths: &mut HashMap<BlockId, u32>) {
        let mut chain = vec![id];
        let mut depth = loop {
            let last = chain[chain.len() - 1];
            if let Some(known) = depths.get(&last) {
                chain.pop();
                break known + 1;
            }
            let parent = self.entries.get(&last).and_then(|entry| entry.block.parent);
            match parent.filter(|parent| self.entries.contains_key(parent)) {
                // A cycle cannot be made by hashing; one that was made otherwise ends here.
                Some(parent) if chain.len() <= self.entries.len() => chain.push(parent),
                _ => break 0,
            }
        };
        for id in chain.into_iter().rev() {
            depths.insert(id, depth);
            depth += 1;
        }
    }
}
