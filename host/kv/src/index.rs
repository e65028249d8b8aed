//! Who holds which prefix, as far as this host was told.
//!
//! Advice only: a wrong entry costs latency, never a wrong answer, since what is served goes through the pool's own
//! ids. So the index may forget, and does when its budget is full.

mod source;
#[cfg(test)]
mod tests;

pub use source::{Arrival, SourceState};

use portolan_base::{BlockHash, Bytes};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};

/// What one block counts against the budget: 48 bytes of map entry and 16 in the queue, doubled for the slack that
/// hash maps and B-trees keep while they grow.
pub const ENTRY_SIZE: Bytes = Bytes(128);

/// What each holder of a block counts: 4 bytes, doubled for a vector's slack.
pub const HOLDER_SIZE: Bytes = Bytes(8);

/// Which instances hold which blocks. Holders are indices into the fleet's table of instances.
///
/// Each (holder, block) is held or not: storing twice is storing once, removing what is not held does nothing.
///
/// When the budget is full the block that came first goes, unless it was asked for or stored again since it was last
/// considered; then it gets a second turn. Reading therefore needs no exclusive access, and a busy prefix stays
/// however old it is. Of blocks stored by one call the last is considered first, as a prefix is useful without its
/// end but not without its beginning.
#[derive(Debug)]
pub struct PrefixIndex {
    budget: Bytes,
    used: Bytes,
    entries: HashMap<BlockHash, Entry>,
    /// Every block by its turn to be considered for eviction.
    queue: BTreeMap<u64, BlockHash>,
    turns: u64,
}

#[derive(Debug)]
struct Entry {
    holders: Holders,
    turn: u64,
    asked_for: AtomicBool,
}

/// A set of holders. Most blocks have one, which needs no allocation.
#[derive(Debug)]
enum Holders {
    One(u32),
    Many(Vec<u32>),
}

impl Holders {
    fn as_slice(&self) -> &[u32] {
        match self {
            Self::One(holder) => std::slice::from_ref(holder),
            Self::Many(holders) => holders,
        }
    }

    /// Whether the holder was not there yet.
    fn add(&mut self, holder: u32) -> bool {
        if self.as_slice().contains(&holder) {
            return false;
        }
        match self {
            Self::One(first) => *self = Self::Many(vec![*first, holder]),
            Self::Many(holders) => holders.push(holder),
        }
        true
    }

    fn remove(&mut self, holder: u32) -> Removal {
        match self {
            Self::One(only) if *only == holder => Removal::WasLast,
            Self::One(_) => Removal::NotThere,
            Self::Many(holders) => {
                let Some(at) = holders.iter().position(|h| *h == holder) else {
                    return Removal::NotThere;
                };
                holders.swap_remove(at);
                if let [only] = holders[..] {
                    *self = Self::One(only);
                }
                Removal::OthersRemain
            }
        }
    }
}

enum Removal {
    NotThere,
    OthersRemain,
    WasLast,
}

impl PrefixIndex {
    /// An empty index that never takes more than `budget`, by the estimates [`ENTRY_SIZE`] and [`HOLDER_SIZE`].
    pub fn new(budget: Bytes) -> Self {
        Self {
            budget,
            used: Bytes(0),
            entries: HashMap::new(),
            queue: BTreeMap::new(),
            turns: 0,
        }
    }

    /// `holder` holds these blocks from now on.
    pub fn stored(&mut self, holder: u32, blocks: &[BlockHash]) {
        for hash in blocks.iter().rev() {
            self.store(holder, *hash);
        }
        while self.used > self.budget && self.evict() {}
    }

    /// `holder` has dropped these blocks.
    pub fn removed(&mut self, holder: u32, blocks: &[BlockHash]) {
        for hash in blocks {
            let Some(entry) = self.entries.get_mut(hash) else {
                continue;
            };
            match entry.holders.remove(holder) {
                Removal::NotThere => {}
                Removal::OthersRemain => self.used = self.used - HOLDER_SIZE,
                Removal::WasLast => self.forget(*hash),
            }
        }
    }

    /// `holder` holds nothing. Looks at every block: meant for restarts and lost events, not for each request.
    pub fn clear(&mut self, holder: u32) {
        let holds = |(_, entry): &(&BlockHash, &Entry)| entry.holders.as_slice().contains(&holder);
        let held: Vec<BlockHash> = self.entries.iter().filter(holds).map(|(hash, _)| *hash).collect();
        self.removed(holder, &held);
    }

    /// How many blocks from the beginning of `chain` each holder has without a gap: (holder, blocks), the most blocks
    /// first, equals by holder. Holders without the first block are left out.
    pub fn matches(&self, chain: &[BlockHash]) -> Vec<(u32, usize)> {
        let mut found = Vec::new();
        let mut going: Vec<u32> = Vec::new();
        for (length, hash) in chain.iter().enumerate() {
            let entry = self.entries.get(hash);
            let holders = entry.map_or(&[][..], |entry| entry.holders.as_slice());
            if length == 0 {
                going.extend_from_slice(holders);
            }
            going.retain(|holder| {
                let goes_on = holders.contains(holder);
                if !goes_on {
                    found.push((*holder, length));
                }
                goes_on
            });
            match entry {
                Some(entry) if !going.is_empty() => entry.asked_for.store(true, Ordering::Relaxed),
                _ => break,
            }
        }
        found.extend(going.into_iter().map(|holder| (holder, chain.len())));
        found.sort_unstable_by_key(|(holder, blocks)| (std::cmp::Reverse(*blocks), *holder));
        found
    }

    /// Number of different blocks known.
    pub fn blocks(&self) -> usize {
        self.entries.len()
    }

    /// What the entries take, by estimate; never above the budget.
    pub fn used(&self) -> Bytes {
        self.used
    }

    /// The most the entries may take.
    pub fn budget(&self) -> Bytes {
        self.budget
    }

    fn store(&mut self, holder: u32, hash: BlockHash) {
        if let Some(entry) = self.entries.get_mut(&hash) {
            entry.asked_for.store(true, Ordering::Relaxed);
            if entry.holders.add(holder) {
                self.used += HOLDER_SIZE;
            }
            return;
        }
        let turn = self.next_turn();
        self.queue.insert(turn, hash);
        self.entries.insert(
            hash,
            Entry {
                holders: Holders::One(holder),
                turn,
                asked_for: AtomicBool::new(false),
            },
        );
        self.used += ENTRY_SIZE + HOLDER_SIZE;
    }

    /// Drops the block whose turn it is, passing over those that were asked for; false when there is none.
    fn evict(&mut self) -> bool {
        while let Some((_, hash)) = self.queue.pop_first() {
            let turn = self.next_turn();
            let passed_over = self
                .entries
                .get_mut(&hash)
                .filter(|entry| entry.asked_for.load(Ordering::Relaxed));
            let Some(entry) = passed_over else {
                self.forget(hash);
                return true;
            };
            *entry.asked_for.get_mut() = false;
            entry.turn = turn;
            self.queue.insert(turn, hash);
        }
        false
    }

    fn forget(&mut self, hash: BlockHash) {
        if let Some(entry) = self.entries.remove(&hash) {
            self.queue.remove(&entry.turn);
            let holders = entry.holders.as_slice().len() as u64;
            self.used = self.used - ENTRY_SIZE - Bytes(HOLDER_SIZE.0 * holders);
        }
    }

    fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }
}
