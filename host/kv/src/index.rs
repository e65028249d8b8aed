//! Who holds which prefix, as far as this host was told.
//!
//! Advice only: a wrong entry costs latency, never a wrong answer, since what is served goes through the pool's own
//! ids. So the index may forget, and does when its budget is full.
//!
//! | part | what it is |
//! |---|---|
//! | [`PrefixIndex`] | the structure: one writer, any number of readers between its changes |
//! | [`SharedIndex`] | the same behind a lock that many threads read |
//! | [`event`] | what an engine says of its cache, whatever its wire format |
//! | [`EngineSource`] | one engine's events, turned into changes of the index |
//! | [`SourceState`] | whether a source's events can be trusted to be all |
//!
//! `docs/kv-index.md` has the structure's picture and figures.

pub mod event;
mod evict;
mod held;
mod holder;
mod predict;
mod sets;
mod shared;
mod slab;
mod source;
mod table;
#[cfg(test)]
mod tests;
mod translate;
mod walk;

pub use holder::{Holder, MAX_GROUPS, Place};
pub use portolan_base::{CachePart, Group, GroupKind, Tier};
pub use shared::SharedIndex;
pub use source::{Arrival, SourceState};
pub use translate::{Change, EngineSource, Refused, Salts};
pub use walk::{Lookup, Match};

use holder::{HolderId, Places};
use portolan_base::{BlockHash, Bytes};
use predict::Predictions;
use sets::{SetId, Sets, Step};
use slab::{LARGEST, Slab, Slot};
use std::collections::HashMap;
use table::Table;

/// Pages looked at for places that are gone, with each change: a few microseconds.
const SWEPT_PAGES: usize = 16;

/// Blocks that are many to come at once: a prefill step of 1,024 tokens.
const LONG: usize = 64;

/// Which places hold which blocks, counted by (instance, rank, group, tier).
///
/// Stored twice is held until removed twice, as engines that keep a block twice say so twice. What is not held cannot
/// be removed.
#[derive(Debug)]
pub struct PrefixIndex {
    budget: Bytes,
    places: Places,
    sets: Sets,
    slab: Slab,
    table: Table,
    /// How often beyond once a holder holds a block. Nearly always empty.
    more: HashMap<(u32, HolderId), u32>,
    predictions: Predictions,
    sweep: Sweep,
    /// Counts changes: the time by which segments are of use.
    now: u32,
    random: u64,
}

/// Places that are gone and still in sets.
#[derive(Debug, Default)]
struct Sweep {
    /// Looked for in this pass.
    present: Vec<u32>,
    /// Retired since it began.
    next: Vec<u32>,
    page: usize,
}

impl PrefixIndex {
    /// An empty index that takes at most `budget`, all its allocations counted. Below a megabyte it holds little:
    /// blocks are allocated by pages of 12 KiB.
    pub fn new(budget: Bytes) -> Self {
        Self {
            budget,
            places: Places::default(),
            sets: Sets::new(),
            slab: Slab::default(),
            table: Table::new(),
            more: HashMap::new(),
            predictions: Predictions::default(),
            sweep: Sweep::default(),
            now: 0,
            random: 0x2545_f491_4f6c_dd1d,
        }
    }

    /// `holder` holds these consecutive blocks of a prompt from now on. `parent` is the block before them, where that
    /// is known: it keeps a prompt together in memory.
    ///
    /// Returns how many were taken: fewer when the budget is smaller than one prompt, or the holder's group is beyond
    /// [`MAX_GROUPS`].
    pub fn stored(&mut self, holder: Holder, parent: Option<BlockHash>, blocks: &[BlockHash]) -> usize {
        let Some(id) = self.places.holder(holder) else {
            return 0;
        };
        let stored = self.store(id, parent, blocks);
        self.keep_to_budget();
        stored
    }

    /// `holder` has dropped these blocks, in any order.
    pub fn removed(&mut self, holder: Holder, blocks: &[BlockHash]) {
        if let Some(id) = self.places.known_holder(holder) {
            self.remove(id, blocks);
            self.keep_to_budget();
        }
    }

    /// Nothing is known of `place` from now on. Takes no longer for many blocks: they are swept along with later
    /// changes, and no lookup finds them meanwhile.
    pub fn clear(&mut self, place: Place) {
        self.drop_predictions(place);
        self.sweep.next.extend(self.places.retire(place));
        self.sweep_some();
        self.keep_to_budget();
    }

    /// Number of different blocks known.
    pub fn blocks(&self) -> usize {
        self.table.len()
    }

    /// What the index takes.
    pub fn used(&self) -> Bytes {
        Bytes(self.bytes() as u64)
    }

    /// The most it may take.
    pub fn budget(&self) -> Bytes {
        self.budget
    }

    fn bytes(&self) -> usize {
        self.slab.bytes()
            + self.table.bytes()
            + self.sets.bytes()
            + self.places.bytes()
            + self.predictions.bytes()
            + self.more.capacity() * (size_of::<((u32, HolderId), u32)>() + 1)
    }

    fn limit(&self) -> usize {
        usize::try_from(self.budget.0).unwrap_or(usize::MAX)
    }

    fn find(&self, hash: BlockHash) -> Option<Slot> {
        self.table.find(hash, &self.slab)
    }

    fn store(&mut self, holder: HolderId, parent: Option<BlockHash>, blocks: &[BlockHash]) -> usize {
        self.now = self.now.wrapping_add(1);
        self.sweep_some();
        let mut before = parent.and_then(|hash| self.find(hash));
        for (done, hash) in blocks.iter().enumerate() {
            let Some(slot) = self.slot_for(before, *hash, blocks.len() - done) else {
                return done;
            };
            self.hold(slot, holder);
            before = Some(slot);
        }
        blocks.len()
    }

    fn remove(&mut self, holder: HolderId, blocks: &[BlockHash]) {
        self.sweep_some();
        for hash in blocks {
            if let Some(slot) = self.find(*hash) {
                self.let_go(slot, holder);
            }
        }
    }

    /// The slot of a block, found or made. `left` blocks of the same prompt are still to come, this one included.
    fn slot_for(&mut self, before: Option<Slot>, hash: BlockHash, left: usize) -> Option<Slot> {
        let adjacent = before.and_then(|slot| self.slab.after(slot, hash));
        if let Some(slot) = adjacent.filter(|slot| self.slab.set(*slot) != SetId::EMPTY) {
            return Some(slot);
        }
        if let Some(slot) = self.find(hash) {
            self.slab.touch(slot, self.now);
            return Some(slot);
        }
        if let Some(slot) = before {
            self.slab.touch(slot, self.now);
        }
        if !self.make_room(self.table.growth(hash)) {
            return None;
        }
        let joined = adjacent.or_else(|| before.and_then(|slot| self.slab.append(slot, hash)));
        let slot = match joined {
            Some(slot) => slot,
            None => {
                let size = self.free_segment(self.segment_size(before, left))?;
                self.slab.begin(size, hash, before)?
            }
        };
        self.slab.touch(slot, self.now);
        self.table.insert(hash, slot, &self.slab);
        Some(slot)
    }

    /// What a new segment should hold: the blocks that are known to come, twice that where they are many, since a long
    /// prompt comes in several steps, and twice what its prompt's last one held, since a prompt that went on once goes
    /// on again.
    fn segment_size(&self, before: Option<Slot>, left: usize) -> u8 {
        let up = left.next_power_of_two();
        let fitting = match left {
            LONG.. => up * 2,
            // A quarter of a segment may stay empty; beyond that two smaller ones are better.
            _ if left * 4 >= up * 3 => up,
            _ => up / 2,
        };
        let continued = before.and_then(|slot| self.slab.size_of(slot).filter(|_| self.slab.is_last(slot)));
        let grown = continued.map_or(0, |size| size + 1);
        (fitting.trailing_zeros() as u8).max(grown).min(LARGEST)
    }

    fn hold(&mut self, slot: Slot, holder: HolderId) {
        let from = self.slab.set(slot);
        match self.sets.step(from, Step::Add(holder)) {
            Some(to) => self.change(slot, to),
            None => *self.more.entry((slot.0, holder)).or_insert(0) += 1,
        }
    }

    fn let_go(&mut self, slot: Slot, holder: HolderId) {
        if !self.more.is_empty()
            && let Some(more) = self.more.get_mut(&(slot.0, holder))
        {
            *more -= 1;
            if *more == 0 {
                self.more.remove(&(slot.0, holder));
            }
            return;
        }
        let from = self.slab.set(slot);
        match self.sets.step(from, Step::Remove(holder)) {
            Some(SetId::EMPTY) => {
                self.empty(slot);
                self.slab.trim(slot);
            }
            Some(to) => self.change(slot, to),
            None => {}
        }
    }

    fn change(&mut self, slot: Slot, to: SetId) {
        self.sets.take(to);
        let was = self.slab.change(slot, to);
        self.sets.release(was);
    }

    /// Takes a block's holders away, and it from the table; its place in its segment stays a gap.
    fn empty(&mut self, slot: Slot) {
        let from = self.slab.set(slot);
        if from == SetId::EMPTY {
            return;
        }
        if let Some(hash) = self.slab.hash(slot) {
            self.table.remove(hash, slot);
        }
        if !self.more.is_empty() {
            for holder in self.sets.holders(from) {
                self.more.remove(&(slot.0, *holder));
            }
        }
        self.change(slot, SetId::EMPTY);
    }

    fn sweep_some(&mut self) {
        if self.sweep.present.is_empty() {
            if self.sweep.next.is_empty() {
                return;
            }
            self.sweep.present = std::mem::take(&mut self.sweep.next);
            self.sweep.page = 0;
        }
        let gone = std::mem::take(&mut self.sweep.present);
        for _ in 0..SWEPT_PAGES {
            if self.sweep.page >= self.slab.pages() {
                gone.into_iter().for_each(|place| self.places.recycle(place));
                return;
            }
            self.sweep_page(self.sweep.page, &gone);
            self.sweep.page += 1;
        }
        self.sweep.present = gone;
    }

    fn sweep_page(&mut self, page: usize, gone: &[u32]) {
        let is_gone = |holder: HolderId| gone.contains(&holder.place());
        let touched = |sets: &Sets, set| sets.holders(set).iter().any(|holder| is_gone(*holder));
        let mut verdicts: HashMap<SetId, bool> = HashMap::new();
        let slots: Vec<(Slot, SetId)> = self
            .slab
            .slots(page)
            .filter(|(_, set)| *verdicts.entry(*set).or_insert_with(|| touched(&self.sets, *set)))
            .collect();
        for (slot, set) in slots {
            for holder in self.sets.holders(set).iter().filter(|holder| is_gone(**holder)) {
                self.more.remove(&(slot.0, *holder));
            }
            match self.sets.without(set, is_gone) {
                Some(SetId::EMPTY) => {
                    self.empty(slot);
                    self.slab.trim(slot);
                }
                Some(to) => self.change(slot, to),
                None => {}
            }
        }
    }
}
