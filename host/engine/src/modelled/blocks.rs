//! The prefix cache of a modelled engine: blocks named by a chained hash, pinned while a sequence uses them, evicted
//! longest unused first.
//!
//! A sequence reserves room for all it may grow to when it is let in, so that nothing is preempted: an engine that
//! preempts would be slower here, and never wrong.

use std::collections::hash_map::{DefaultHasher, Entry};
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};

/// A change of what is held, for the publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Stored {
        hash: u64,
        parent: Option<u64>,
        tokens: Vec<u32>,
        /// Of a prompt's first block.
        salt: Option<String>,
    },
    Removed(u64),
    Cleared,
}

/// The name of a block: its tokens, and all before it. The salt counts at a prompt's beginning and so in every block.
pub(super) fn block_hash(parent: Option<u64>, salt: Option<&str>, tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    match parent {
        Some(parent) => parent.hash(&mut hasher),
        None => salt.hash(&mut hasher),
    }
    tokens.hash(&mut hasher);
    hasher.finish()
}

/// The names of a prompt's full blocks.
pub(super) fn chain(salt: Option<&str>, tokens: &[u32], block_tokens: u32) -> Vec<u64> {
    let mut parent = None;
    tokens
        .chunks_exact(block_tokens as usize)
        .map(|block| {
            let hash = block_hash(parent, salt, block);
            parent = Some(hash);
            hash
        })
        .collect()
}

#[derive(Debug)]
pub(super) struct Blocks {
    capacity: usize,
    held: HashMap<u64, Block>,
    /// Blocks nobody uses, by when that began.
    idle: BTreeMap<u64, u64>,
    /// Blocks promised to running sequences.
    reserved: usize,
    stamp: u64,
    changes: Vec<Change>,
}

#[derive(Debug)]
struct Block {
    users: u32,
    idle_since: u64,
}

impl Blocks {
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            capacity: capacity as usize,
            held: HashMap::new(),
            idle: BTreeMap::new(),
            reserved: 0,
            stamp: 0,
            changes: Vec::new(),
        }
    }

    /// Lets a sequence in that needs `total` blocks at its longest: pins what is held of `prompt` and reserves the rest.
    /// The number of blocks pinned; none where there is no room at present.
    pub(super) fn admit(&mut self, prompt: &[u64], total: usize) -> Option<usize> {
        let cached = prompt
            .iter()
            .take_while(|hash| self.held.contains_key(hash))
            .count();
        for hash in &prompt[..cached] {
            self.pin(*hash);
        }
        let wanted = total.saturating_sub(cached);
        let free = self.capacity.saturating_sub(self.held.len() + self.reserved);
        if wanted > free + self.idle.len() {
            self.release(&prompt[..cached], 0);
            return None;
        }
        for _ in free..wanted {
            self.evict();
        }
        self.reserved += wanted;
        Some(cached)
    }

    /// A sequence filled a block that it had reserved. It is pinned; whether the reservation was used up by it: a block
    /// that another sequence stored meanwhile gives it back.
    pub(super) fn store(&mut self, hash: u64, parent: Option<u64>, tokens: &[u32], salt: Option<&str>) {
        self.reserved = self.reserved.saturating_sub(1);
        match self.held.entry(hash) {
            Entry::Occupied(_) => self.pin(hash),
            Entry::Vacant(vacant) => {
                vacant.insert(Block {
                    users: 1,
                    idle_since: 0,
                });
                self.changes.push(Change::Stored {
                    hash,
                    parent,
                    tokens: tokens.to_vec(),
                    salt: salt.filter(|_| parent.is_none()).map(str::to_owned),
                });
            }
        }
    }

    /// A sequence ended: what it pinned is idle, the last block the longest; what it had reserved is free.
    pub(super) fn release(&mut self, pinned: &[u64], reserved: usize) {
        self.reserved = self.reserved.saturating_sub(reserved);
        for hash in pinned.iter().rev() {
            self.stamp += 1;
            if let Some(block) = self.held.get_mut(hash) {
                block.users = block.users.saturating_sub(1);
                if block.users == 0 {
                    block.idle_since = self.stamp;
                    self.idle.insert(self.stamp, *hash);
                }
            }
        }
    }

    /// Drops everything that nobody uses; whether that is everything.
    pub(super) fn clear(&mut self) -> bool {
        for hash in std::mem::take(&mut self.idle).into_values() {
            self.held.remove(&hash);
        }
        let all = self.held.is_empty();
        if all {
            self.changes.push(Change::Cleared);
        }
        all
    }

    /// What changed since the last call, removals first, as vLLM orders a batch.
    pub(super) fn changes(&mut self) -> Vec<Change> {
        let mut changes = std::mem::take(&mut self.changes);
        changes.sort_by_key(|change| matches!(change, Change::Stored { .. }));
        changes
    }

    /// Share of the room that is used by sequences, 0 to 1.
    pub(super) fn usage(&self) -> f64 {
        let used = self.held.len() - self.idle.len() + self.reserved;
        used as f64 / self.capacity.max(1) as f64
    }

    fn pin(&mut self, hash: u64) {
        if let Some(block) = self.held.get_mut(&hash) {
            if block.users == 0 {
                self.idle.remove(&block.idle_since);
            }
            block.users += 1;
        }
    }

    fn evict(&mut self) {
        if let Some((_, hash)) = self.idle.pop_first() {
            self.held.remove(&hash);
            self.changes.push(Change::Removed(hash));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(blocks: &mut Blocks, salt: Option<&str>, tokens: &[u32]) -> Option<usize> {
        let hashes = chain(salt, tokens, 4);
        let cached = blocks.admit(&hashes, tokens.len().div_ceil(4))?;
        for (at, hash) in hashes.iter().enumerate().skip(cached) {
            let parent = at.checked_sub(1).map(|before| hashes[before]);
            blocks.store(*hash, parent, &tokens[at * 4..at * 4 + 4], salt);
        }
        blocks.release(&hashes, tokens.len().div_ceil(4) - hashes.len());
        Some(cached)
    }

    #[test]
    fn a_prefix_is_found_again_and_a_salt_parts_tenants() {
        let mut blocks = Blocks::new(8);
        let prompt: Vec<u32> = (0..13).collect();
        assert_eq!(run(&mut blocks, Some("a"), &prompt), Some(0));
        assert_eq!(run(&mut blocks, Some("a"), &prompt), Some(3));
        assert_eq!(run(&mut blocks, Some("b"), &prompt), Some(0));
        let changes = blocks.changes();
        assert_eq!(changes.len(), 6);
        assert!(matches!(&changes[0], Change::Stored { parent: None, salt: Some(a), .. } if a == "a"));
        assert!(matches!(
            &changes[1],
            Change::Stored {
                parent: Some(_),
                salt: None,
                ..
            }
        ));
        assert!(blocks.usage().abs() < 1e-9, "nothing runs");
    }

    #[test]
    fn the_longest_unused_goes_first_its_end_before_its_beginning_and_what_runs_stays() {
        let mut blocks = Blocks::new(4);
        let (old, new): (Vec<u32>, Vec<u32>) = ((0..8).collect(), (100..104).collect());
        run(&mut blocks, None, &old);
        run(&mut blocks, None, &new);
        blocks.changes();
        let third: Vec<u32> = (200..208).collect();
        run(&mut blocks, None, &third);
        let old_hashes = chain(None, &old, 4);
        let changes = blocks.changes();
        assert_eq!(
            changes[0],
            Change::Removed(old_hashes[1]),
            "removals come before what is stored"
        );
        assert_eq!(run(&mut blocks, None, &new), Some(1));
        let pinned = chain(None, &new, 4);
        assert_eq!(blocks.admit(&pinned, 1), Some(1));
        assert_eq!(
            blocks.admit(&chain(None, &(300..320).collect::<Vec<_>>(), 4), 5),
            None,
            "no room"
        );
        assert!(!blocks.clear(), "what runs stays");
        blocks.release(&pinned, 0);
        assert!(blocks.clear());
        assert_eq!(blocks.changes().last(), Some(&Change::Cleared));
    }
}
