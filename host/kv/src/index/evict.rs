//! Keeping to the byte budget: what was of use longest ago goes, of equals what is deepest in its prompt.
//!
//! A prefix is useful without its end but not without its beginning, and lookups touch all of a prompt they find, so
//! an end is never younger than its beginning. The oldest is sought among a sample: exact order would cost a list
//! entry for each segment and a write for each lookup.

use super::PrefixIndex;
use super::sets::Sets;
use super::slab::{Slab, Slot};
use super::table::Table;

/// Candidates for one eviction. With 16 the one chosen is among the oldest 6 % on average.
const SAMPLE: usize = 16;

/// Draws for a candidate before giving up on chance: half-empty pages miss.
const DRAWS: usize = 8 * SAMPLE;

/// A segment this many sizes smaller than wanted is still taken, instead of emptying a page of its kind.
const SMALLER: u8 = 2;

/// Which segments may go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Victims {
    /// Only those that the present change has not touched, so that a prompt does not push out its own beginning.
    Others,
    /// All.
    Any,
}

impl PrefixIndex {
    /// Makes room for `bytes` more; false when what is left is all of the present change.
    pub(super) fn make_room(&mut self, bytes: usize) -> bool {
        while self.bytes() + bytes > self.limit() {
            if !self.evict_page(Victims::Others) {
                return false;
            }
        }
        true
    }

    /// Evicts until the budget is kept, whatever it takes.
    pub(super) fn keep_to_budget(&mut self) {
        if self.bytes() <= self.limit() {
            return;
        }
        self.sets.sweep();
        while self.bytes() > self.limit() && self.evict_page(Victims::Any) {}
        if self.bytes() > self.limit() && self.table.len() == 0 {
            // What tables and sets grew to when there were blocks.
            self.sets = Sets::new();
            self.table = Table::new();
        }
    }

    /// The size of a free segment, at best of the size wanted; none when nothing may go.
    pub(super) fn free_segment(&mut self, wanted: u8) -> Option<u8> {
        loop {
            if self.slab.has_free(wanted) {
                return Some(wanted);
            }
            if self.bytes() + Slab::page_bytes(wanted) <= self.limit() {
                self.slab.add_page(wanted);
                return Some(wanted);
            }
            let victim = self.oldest(Victims::Others)?;
            let size = self.slab.size_of(victim)?;
            if size + SMALLER >= wanted && size <= wanted {
                self.drop_segment(victim);
                if self.slab.has_free(size) {
                    return Some(size);
                }
            } else if !self.empty_page(victim.page(), Victims::Others) {
                return None;
            }
        }
    }

    /// Empties the page of the oldest segment found.
    fn evict_page(&mut self, victims: Victims) -> bool {
        let victim = self.oldest(victims);
        victim.is_some_and(|slot| self.empty_page(slot.page(), victims))
    }

    fn empty_page(&mut self, page: usize, victims: Victims) -> bool {
        let segments: Vec<_> = self.slab.segments(page).collect();
        let mut dropped = false;
        for (slot, used, _) in segments {
            if self.may_go(used, victims) {
                self.drop_segment(slot);
                dropped = true;
            }
        }
        dropped
    }

    fn may_go(&self, used: u32, victims: Victims) -> bool {
        victims == Victims::Any || used != self.now
    }

    fn oldest(&mut self, victims: Victims) -> Option<Slot> {
        let pages = self.slab.pages();
        if pages == 0 {
            return None;
        }
        let mut best: Option<(Slot, u32, u32)> = None;
        let mut seen = 0;
        for _ in 0..DRAWS {
            let draw = self.draw();
            let found = self
                .slab
                .pick((draw >> 32) as usize % pages, draw as u32 as usize);
            seen += usize::from(found.is_some());
            best = self.older(best, found, victims);
            if seen == SAMPLE {
                break;
            }
        }
        if best.is_none() {
            for page in 0..pages {
                for found in self.slab.segments(page) {
                    best = self.older(best, Some(found), victims);
                }
            }
        }
        best.map(|(slot, ..)| slot)
    }

    fn older(
        &self,
        best: Option<(Slot, u32, u32)>,
        found: Option<(Slot, u32, u32)>,
        victims: Victims,
    ) -> Option<(Slot, u32, u32)> {
        let found = found.filter(|(_, used, _)| self.may_go(*used, victims));
        // Moments wrap around after four billion changes; what counts is how long ago they were.
        let rank = |(_, used, depth): &(Slot, u32, u32)| (self.now.wrapping_sub(*used), *depth);
        match (best, found) {
            (Some(a), Some(b)) => Some(if rank(&b) > rank(&a) { b } else { a }),
            (a, b) => a.or(b),
        }
    }

    fn drop_segment(&mut self, first: Slot) {
        let Some(run) = self.slab.run(first) else {
            return;
        };
        let slots = first.0..first.0 + run.hashes.len() as u32;
        for slot in slots {
            self.empty(Slot(slot));
        }
        self.slab.trim(first);
    }

    /// A fixed sequence (xorshift): eviction can be replayed.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}
