//! Portolan's index: told of its own names, as the native engine tells, and fed with an engine's events.

use crate::Index;
use crate::trace::{Prompt, name, root, tokens};
use portolan_base::{BlockHash, Bytes};
use portolan_kv::index::event::{Batch, CacheEvent, EngineHash, Removed, Stored};
use portolan_kv::index::{EngineSource, Group, Holder, Lookup, Place, SharedIndex, Tier};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::ops::Range;

/// The index alone, told of blocks by names that are given.
pub struct Ours {
    index: SharedIndex,
    lookup: Lookup,
}

impl Ours {
    pub fn new() -> Self {
        Self {
            index: SharedIndex::new(Bytes(u64::MAX)),
            lookup: Lookup::default(),
        }
    }
}

impl Index for Ours {
    fn store(&mut self, worker: u64, prompt: u64, at: Range<usize>) {
        let block = |at| BlockHash(name(prompt, at));
        let parent = at.start.checked_sub(1).map(block);
        let blocks: Vec<BlockHash> = at.map(block).collect();
        self.index
            .stored(Holder::instance(worker as u32), parent, &blocks);
    }

    fn remove(&mut self, worker: u64, prompt: u64, at: usize) {
        let block = BlockHash(name(prompt, at));
        self.index.removed(Holder::instance(worker as u32), &[block]);
    }

    fn settle(&self) {}

    fn ask(&mut self, prompt: &Prompt) -> BTreeMap<u64, usize> {
        lengths(&self.index, &mut self.lookup, &prompt.given)
    }

    fn ask_only(&mut self, prompt: &Prompt) {
        self.index.look_up(black_box(&prompt.given), &mut self.lookup);
        black_box(self.lookup.matches());
    }
}

/// The index behind engines' events: their tokens are hashed here, and their names kept to understand removals.
pub struct Named {
    index: SharedIndex,
    lookup: Lookup,
    sources: BTreeMap<u64, (EngineSource, u64)>,
}

impl Named {
    pub fn new() -> Self {
        Self {
            index: SharedIndex::new(Bytes(u64::MAX)),
            lookup: Lookup::default(),
            sources: BTreeMap::new(),
        }
    }

    fn apply(&mut self, worker: u64, event: CacheEvent) {
        let new = || (EngineSource::new(Place::of(worker as u32), Bytes(u64::MAX)), 0);
        let (source, sequence) = self.sources.entry(worker).or_insert_with(new);
        let batch = Batch {
            incarnation: 1,
            sequence: *sequence,
            events: vec![event],
        };
        *sequence += 1;
        let salts = |_: Option<&str>| Some(root());
        source.apply(&batch, &salts, &mut |change| self.index.apply(change));
    }
}

impl Index for Named {
    fn store(&mut self, worker: u64, prompt: u64, at: Range<usize>) {
        let parent = at.start.checked_sub(1);
        let stored = Stored {
            parent: parent.map(|before| EngineHash(name(prompt, before))),
            hashes: at.clone().map(|at| EngineHash(name(prompt, at))).collect(),
            tokens: at.flat_map(|at| tokens(prompt, at)).collect(),
            block_tokens: 16,
            extra: Vec::new(),
            lora: None,
            group: Group::ATTENTION,
            tier: Tier::Device,
        };
        self.apply(worker, CacheEvent::Stored(stored));
    }

    fn remove(&mut self, worker: u64, prompt: u64, at: usize) {
        let removed = Removed {
            hashes: vec![EngineHash(name(prompt, at))],
            group: None,
            tier: Tier::Device,
        };
        self.apply(worker, CacheEvent::Removed(removed));
    }

    fn settle(&self) {}

    fn ask(&mut self, prompt: &Prompt) -> BTreeMap<u64, usize> {
        lengths(&self.index, &mut self.lookup, &prompt.hashed)
    }

    fn ask_only(&mut self, prompt: &Prompt) {
        self.index.look_up(black_box(&prompt.hashed), &mut self.lookup);
        black_box(self.lookup.matches());
    }
}

fn lengths(index: &SharedIndex, lookup: &mut Lookup, chain: &[BlockHash]) -> BTreeMap<u64, usize> {
    index.look_up(chain, lookup);
    let found = lookup.matches().iter();
    found
        .map(|found| (u64::from(found.place.instance), found.blocks as usize))
        .collect()
}
