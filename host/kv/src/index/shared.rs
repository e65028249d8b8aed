//! The index that many threads read while events are applied.

use super::PrefixIndex;
use super::holder::{Holder, Place};
use super::translate::Change;
use super::walk::{Lookup, Match};
use parking_lot::RwLock;
use portolan_base::{BlockHash, Bytes, Moment};

/// Blocks changed under one lock: about 50 µs, the longest that a lookup waits.
const BLOCKS_AT_ONCE: usize = 256;

/// Pages listed under one lock: some 64,000 blocks, a tenth of a millisecond that changes wait.
const PAGES_AT_ONCE: usize = 64;

/// A [`PrefixIndex`] behind a lock. Lookups run beside each other; a change of many blocks lets them in between.
#[derive(Debug)]
pub struct SharedIndex {
    index: RwLock<PrefixIndex>,
}

impl SharedIndex {
    /// An empty index of at most `budget`.
    pub fn new(budget: Bytes) -> Self {
        Self {
            index: RwLock::new(PrefixIndex::new(budget)),
        }
    }

    /// See [`PrefixIndex::look_up`].
    pub fn look_up(&self, chain: &[BlockHash], lookup: &mut Lookup) {
        self.index.read().look_up(chain, lookup);
    }

    /// See [`PrefixIndex::matches`].
    pub fn matches(&self, chain: &[BlockHash]) -> Vec<Match> {
        self.index.read().matches(chain)
    }

    /// See [`PrefixIndex::stored`].
    pub fn stored(&self, holder: Holder, parent: Option<BlockHash>, blocks: &[BlockHash]) {
        let mut before = parent;
        for part in blocks.chunks(BLOCKS_AT_ONCE) {
            if self.index.write().stored(holder, before, part) < part.len() {
                return;
            }
            before = part.last().copied();
        }
    }

    /// See [`PrefixIndex::removed`].
    pub fn removed(&self, holder: Holder, blocks: &[BlockHash]) {
        for part in blocks.chunks(BLOCKS_AT_ONCE) {
            self.index.write().removed(holder, part);
        }
    }

    /// See [`PrefixIndex::clear`].
    pub fn clear(&self, place: Place) {
        self.index.write().clear(place);
    }

    /// Makes a change that a source told of.
    pub fn apply(&self, change: Change<'_>) {
        match change {
            Change::Stored {
                holder,
                parent,
                blocks,
            } => self.stored(holder, parent, blocks),
            Change::Removed { holder, blocks } => self.removed(holder, blocks),
            Change::Cleared(place) => self.clear(place),
        }
    }

    /// These blocks, the ones that [`PrefixIndex::holds`] affirms first, and then the others.
    pub fn by_holding(&self, instance: u32, blocks: &[BlockHash]) -> (Vec<BlockHash>, Vec<BlockHash>) {
        let index = self.index.read();
        blocks
            .iter()
            .copied()
            .partition(|block| index.holds(instance, *block))
    }

    /// Every block that an instance holds by its own word. What changes meanwhile may be in it or not.
    pub fn held_by(&self, instance: u32) -> Vec<BlockHash> {
        let (mut held, mut page) = (Vec::new(), 0);
        loop {
            let pages = page..page + PAGES_AT_ONCE;
            if !self.index.read().held_in_pages(pages, instance, &mut held) {
                // A block that moved to another page between two locks is listed twice.
                held.sort_unstable();
                held.dedup();
                return held;
            }
            page += PAGES_AT_ONCE;
        }
    }

    /// See [`PrefixIndex::predict`].
    pub fn predict(&self, place: Place, chain: &[BlockHash], ends: Moment) {
        self.index.write().predict(place, chain, ends);
    }

    /// See [`PrefixIndex::expire`].
    pub fn expire(&self, now: Moment) {
        self.index.write().expire(now);
    }

    /// See [`PrefixIndex::blocks`].
    pub fn blocks(&self) -> usize {
        self.index.read().blocks()
    }

    /// See [`PrefixIndex::used`].
    pub fn used(&self) -> Bytes {
        self.index.read().used()
    }
}
