//! Sets of holders, each kept once.
//!
//! Neighbouring blocks are nearly always held by the same caches, so a block stores the number of its set. A further
//! holder of a block then costs no memory of its own, and a lookup compares numbers instead of sets.

use super::holder::HolderId;
use hashbrown::HashTable;

/// The number of a set; 0 is the empty one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct SetId(pub(super) u32);

impl SetId {
    pub(super) const EMPTY: Self = Self(0);
}

/// Steps from set to set that are remembered. A run of blocks takes the same step each time; 64 is more than the
/// number of runs that one event touches.
const REMEMBERED: usize = 64;

/// Sets that no block has are swept when they outnumber an eighth of all, plus this many.
const IDLE_SLACK: usize = 64;

/// What the allocator adds to a set's list: a header and rounding.
const ALLOCATION: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Add(HolderId),
    Remove(HolderId),
}

#[derive(Debug)]
struct Set {
    holders: Box<[HolderId]>,
    blocks: u32,
}

#[derive(Debug)]
pub(super) struct Sets {
    sets: Vec<Set>,
    by_content: HashTable<u32>,
    free: Vec<u32>,
    remembered: Box<[Option<(SetId, Step, SetId)>]>,
    idle: usize,
    /// Bytes of the lists themselves.
    lists: usize,
}

impl Sets {
    pub(super) fn new() -> Self {
        let empty = Set {
            holders: Box::default(),
            blocks: 1,
        };
        Self {
            sets: vec![empty],
            by_content: HashTable::new(),
            free: Vec::new(),
            remembered: vec![None; REMEMBERED].into(),
            idle: 0,
            lists: 0,
        }
    }

    pub(super) fn holders(&self, id: SetId) -> &[HolderId] {
        self.sets.get(id.0 as usize).map_or(&[], |set| &set.holders)
    }

    /// The set after a step; none when the step changes nothing.
    pub(super) fn step(&mut self, from: SetId, step: Step) -> Option<SetId> {
        let place = match step {
            Step::Add(holder) | Step::Remove(holder) => holder.place(),
        };
        let slot = (from.0.wrapping_mul(31) ^ place) as usize % REMEMBERED;
        if let Some((set, taken, to)) = self.remembered[slot]
            && (set, taken) == (from, step)
        {
            return Some(to);
        }
        let holders = self.holders(from);
        let next: Box<[HolderId]> = match step {
            Step::Add(holder) => {
                let at = holders.binary_search(&holder).err()?;
                let (before, after) = holders.split_at(at);
                [before, &[holder], after].concat().into()
            }
            Step::Remove(holder) => {
                let at = holders.binary_search(&holder).ok()?;
                [&holders[..at], &holders[at + 1..]].concat().into()
            }
        };
        let to = self.intern(next);
        self.remembered[slot] = Some((from, step, to));
        Some(to)
    }

    /// The set without the holders that `gone` names; none when it has none of them.
    pub(super) fn without(&mut self, from: SetId, gone: impl Fn(HolderId) -> bool) -> Option<SetId> {
        let holders = self.holders(from);
        let left: Box<[HolderId]> = holders.iter().copied().filter(|holder| !gone(*holder)).collect();
        (left.len() < holders.len()).then(|| self.intern(left))
    }

    /// One more block has the set.
    pub(super) fn take(&mut self, id: SetId) {
        if id != SetId::EMPTY {
            let set = &mut self.sets[id.0 as usize];
            self.idle -= usize::from(set.blocks == 0);
            set.blocks += 1;
        }
    }

    /// One block fewer has the set.
    pub(super) fn release(&mut self, id: SetId) {
        if id == SetId::EMPTY {
            return;
        }
        let set = &mut self.sets[id.0 as usize];
        set.blocks -= 1;
        self.idle += usize::from(set.blocks == 0);
        if self.idle > IDLE_SLACK + self.sets.len() / 8 {
            self.sweep();
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.sets.capacity() * size_of::<Set>()
            + self.by_content.allocation_size()
            + self.free.capacity() * 4
            + size_of_val(&*self.remembered)
            + self.lists
    }

    fn intern(&mut self, holders: Box<[HolderId]>) -> SetId {
        if holders.is_empty() {
            return SetId::EMPTY;
        }
        let (hash, sets) = (hash(&holders), &self.sets);
        if let Some(found) = self
            .by_content
            .find(hash, |id| sets[*id as usize].holders == holders)
        {
            return SetId(*found);
        }
        self.lists += size_of_val(&*holders) + ALLOCATION;
        let set = Set { holders, blocks: 0 };
        let id = if let Some(id) = self.free.pop() {
            self.sets[id as usize] = set;
            id
        } else {
            self.sets.push(set);
            (self.sets.len() - 1) as u32
        };
        self.idle += 1;
        let sets = &self.sets;
        self.by_content
            .insert_unique(hash, id, |id| self::hash(&sets[*id as usize].holders));
        SetId(id)
    }

    /// Forgets the sets that no block has.
    pub(super) fn sweep(&mut self) {
        self.remembered.fill(None);
        for (id, set) in self.sets.iter_mut().enumerate().skip(1) {
            if set.blocks > 0 || set.holders.is_empty() {
                continue;
            }
            let id = id as u32;
            if let Ok(entry) = self
                .by_content
                .find_entry(hash(&set.holders), |other| *other == id)
            {
                entry.remove();
            }
            self.lists -= size_of_val(&*set.holders) + ALLOCATION;
            set.holders = Box::default();
            self.free.push(id);
        }
        self.idle = 0;
    }
}

fn hash(holders: &[HolderId]) -> u64 {
    use std::hash::{Hash, Hasher};
    // Numbers that this process gave out itself: nothing here that a client could choose.
    let mut hasher = std::hash::DefaultHasher::new();
    holders.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
impl Sets {
    /// Checks that blocks are counted as `carried` has them, by set.
    pub(super) fn check(&self, carried: &std::collections::BTreeMap<u32, u32>) {
        for (id, set) in self.sets.iter().enumerate().skip(1) {
            let expected = carried.get(&(id as u32)).copied().unwrap_or(0);
            assert_eq!(set.blocks, expected, "blocks with set {id}");
        }
        let idle = self
            .sets
            .iter()
            .filter(|set| set.blocks == 0 && !set.holders.is_empty())
            .count();
        assert_eq!(idle, self.idle);
    }
}
