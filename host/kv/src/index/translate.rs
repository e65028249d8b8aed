//! One engine's events, turned into changes of the index.
//!
//! The engine names blocks by its own hashes, in its own block size. Here its tokens are hashed again, in index
//! blocks, and its names are kept only to find parents and to know what a removal means.

mod chain;
mod names;

use super::event::{Batch, CacheEvent, EngineHash, Removed, Stored};
use super::holder::{Holder, MAX_GROUPS, Place};
use super::source::{Arrival, SourceState};
use chain::{salt, tokens_of_a_block, with_extra, with_lora};
use names::{Kept, Names};
use portolan_base::{BlockHash, Bytes, GroupKind, INDEX_BLOCK_TOKENS, Tier};
use std::collections::{BTreeMap, VecDeque};

/// Tokens of blocks that wait for their parent: enough for the events of one step to come in any order. Cyclic or
/// absent parents are pushed out by later ones.
const WAITING_TOKENS: usize = 1 << 18;

/// What the salts of an engine's blocks mean here.
pub trait Salts {
    /// What chains of prompts with this salt begin with; none for a salt that nobody here gave out.
    fn root(&self, salt: Option<&str>) -> Option<BlockHash>;
}

impl<F: Fn(Option<&str>) -> Option<BlockHash>> Salts for F {
    fn root(&self, salt: Option<&str>) -> Option<BlockHash> {
        self(salt)
    }
}

/// A change of what is held, in index blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Consecutive blocks are held from now on.
    Stored {
        /// By whom.
        holder: Holder,
        /// The block before them.
        parent: Option<BlockHash>,
        /// Which.
        blocks: &'a [BlockHash],
    },
    /// Blocks are held no more.
    Removed {
        /// By whom.
        holder: Holder,
        /// Which.
        blocks: &'a [BlockHash],
    },
    /// Nothing is known of a place.
    Cleared(Place),
}

/// What could not be used, counted by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Blocks whose tokens, sizes or groups do not fit together.
    pub malformed: u64,
    /// Blocks whose parent never came.
    pub orphans: u64,
    /// Blocks stored under a name that already means another block.
    pub conflicting: u64,
    /// Blocks with a salt that nobody here gave out.
    pub unknown_salts: u64,
    /// Removals of blocks that are not known to be held.
    pub unknown_removals: u64,
    /// Times that everything was forgotten because the engine's names took more than the budget.
    pub overflows: u64,
    /// Batches that came twice, or after their incarnation had ended.
    pub stale: u64,
    /// Times that everything was forgotten because of a gap or a restart.
    pub resets: u64,
}

/// Follows one engine instance's rank.
#[derive(Debug)]
pub struct EngineSource {
    place: Place,
    budget: Bytes,
    state: SourceState,
    groups: BTreeMap<(u8, Tier), Names>,
    waiting: VecDeque<Stored>,
    waiting_tokens: usize,
    refused: Refused,
}

enum Outcome {
    Done,
    Waits,
}

impl EngineSource {
    /// A source not heard yet, whose engine's names may take `budget`: some 28 bytes an engine block, and 8 more for
    /// each index block in it when there are several.
    pub fn new(place: Place, budget: Bytes) -> Self {
        Self {
            place,
            budget,
            state: SourceState::new(),
            groups: BTreeMap::new(),
            waiting: VecDeque::new(),
            waiting_tokens: 0,
            refused: Refused::default(),
        }
    }

    /// Takes a batch and tells what changes.
    pub fn apply(&mut self, batch: &Batch, salts: &dyn Salts, tell: &mut dyn FnMut(Change<'_>)) {
        match self.state.observe(batch.incarnation, batch.sequence) {
            Arrival::Stale => {
                self.refused.stale += 1;
                return;
            }
            Arrival::ClearFirst => {
                self.refused.resets += 1;
                self.forget(tell);
            }
            Arrival::Next => {}
        }
        for run in batch.events.chunk_by(together) {
            match run {
                [CacheEvent::Stored(_), ..] => self.stored_together(run, salts, tell),
                [CacheEvent::Removed(first), others @ ..] => {
                    let mut removed = first.clone();
                    for other in others {
                        if let CacheEvent::Removed(other) = other {
                            removed.hashes.extend(&other.hashes);
                        }
                    }
                    self.removed(&removed, tell);
                }
                _ => {
                    self.forget(tell);
                    self.state.restored();
                }
            }
        }
        if self.used() > self.budget {
            self.refused.overflows += 1;
            self.forget(tell);
            self.state.lose();
        }
    }

    /// Whether everything the engine holds is known.
    pub fn is_complete(&self) -> bool {
        self.state.is_complete()
    }

    /// What could not be used so far.
    pub fn refused(&self) -> Refused {
        self.refused
    }

    /// What the engine's names take.
    pub fn used(&self) -> Bytes {
        let names: usize = self.groups.values().map(Names::bytes).sum();
        Bytes((names + self.waiting_tokens * 4) as u64)
    }

    fn forget(&mut self, tell: &mut dyn FnMut(Change<'_>)) {
        self.groups.clear();
        self.waiting.clear();
        self.waiting_tokens = 0;
        tell(Change::Cleared(self.place));
    }

    /// States lie at the end of blocks whose attention KV is told of in the same batch, often after them. Told first,
    /// attention keeps a prompt's blocks side by side.
    fn stored_together(&mut self, run: &[CacheEvent], salts: &dyn Salts, tell: &mut dyn FnMut(Change<'_>)) {
        for kind in [GroupKind::Attention, GroupKind::State] {
            let stored = run.iter().filter_map(|event| match event {
                CacheEvent::Stored(stored) if stored.group.kind == kind => Some(stored),
                _ => None,
            });
            stored.for_each(|stored| self.stored(stored, salts, tell));
        }
    }

    fn stored(&mut self, stored: &Stored, salts: &dyn Salts, tell: &mut dyn FnMut(Change<'_>)) {
        match self.keep(stored, salts, tell) {
            Outcome::Done => self.wake(salts, tell),
            Outcome::Waits => self.wait(stored.clone()),
        }
    }

    fn wait(&mut self, stored: Stored) {
        self.waiting_tokens += stored.tokens.len();
        self.waiting.push_back(stored);
        while self.waiting_tokens > WAITING_TOKENS {
            let Some(oldest) = self.waiting.pop_front() else {
                return;
            };
            self.waiting_tokens -= oldest.tokens.len();
            self.refused.orphans += oldest.hashes.len() as u64;
        }
    }

    /// Keeps what waited for a parent that is known by now. Each round keeps at least one or ends.
    fn wake(&mut self, salts: &dyn Salts, tell: &mut dyn FnMut(Change<'_>)) {
        let ready = |source: &Self, stored: &Stored| {
            stored
                .parent
                .is_none_or(|parent| source.parent(stored, parent).is_some())
        };
        while let Some(at) = self.waiting.iter().position(|stored| ready(self, stored)) {
            let Some(stored) = self.waiting.remove(at) else {
                return;
            };
            self.waiting_tokens -= stored.tokens.len();
            self.keep(&stored, salts, tell);
        }
    }

    fn keep(&mut self, stored: &Stored, salts: &dyn Salts, tell: &mut dyn FnMut(Change<'_>)) -> Outcome {
        let blocks = stored.hashes.len() as u64;
        if stored.tokens.is_empty() {
            self.copied(stored, tell);
            return Outcome::Done;
        }
        let Some(block_tokens) = tokens_of_a_block(stored) else {
            self.refused.malformed += blocks;
            return Outcome::Done;
        };
        let before = match stored.parent {
            None => None,
            Some(parent) if stored.hashes.contains(&parent) => {
                self.refused.malformed += blocks;
                return Outcome::Done;
            }
            Some(parent) => match self.parent(stored, parent) {
                Some(parent) => Some(parent),
                None => return Outcome::Waits,
            },
        };
        let Some(root) = before.or_else(|| salts.root(salt(stored)).map(|root| with_lora(root, stored)))
        else {
            self.refused.unknown_salts += blocks;
            return Outcome::Done;
        };
        self.hash(stored, block_tokens, (before, root), tell);
        Outcome::Done
    }

    fn hash(
        &mut self,
        stored: &Stored,
        block_tokens: usize,
        (mut before, mut chain): (Option<BlockHash>, BlockHash),
        tell: &mut dyn FnMut(Change<'_>),
    ) {
        let holder = Holder {
            place: self.place,
            group: stored.group,
            tier: stored.tier,
        };
        let pieces = match stored.group.kind {
            GroupKind::Attention => block_tokens / INDEX_BLOCK_TOKENS,
            GroupKind::State => 1,
        };
        let names = self
            .groups
            .entry((stored.group.number, stored.tier))
            .or_insert_with(|| Names::new(pieces));
        if names.pieces() != pieces {
            self.refused.malformed += stored.hashes.len() as u64;
            return;
        }
        let mut run = Vec::with_capacity(stored.hashes.len() * pieces);
        for (at, (name, tokens)) in stored
            .hashes
            .iter()
            .zip(stored.tokens.chunks(block_tokens))
            .enumerate()
        {
            for extra in stored.extra.get(at).into_iter().flatten() {
                chain = with_extra(chain, extra);
            }
            let from = run.len();
            run.extend(chain.extend(tokens));
            chain = run.last().copied().unwrap_or(chain);
            if stored.group.kind == GroupKind::State {
                // The state is that after the last token; the blocks before only lead to it.
                before = run[from..].iter().nth_back(1).copied().or(before);
                run.truncate(from);
                run.push(chain);
            }
            let conflicts = names.keep(*name, &run[from..]) == Kept::Conflicts;
            if conflicts {
                self.refused.conflicting += 1;
                run.truncate(from);
            }
            // States are one a block, with blocks between them that others may hold.
            if conflicts || stored.group.kind == GroupKind::State {
                tell_stored(holder, before, &run, tell);
                run.clear();
                before = Some(chain);
            }
        }
        tell_stored(holder, before, &run, tell);
    }

    /// Blocks copied to another tier may come by name alone: they are what the name means elsewhere. One whose original is
    /// gone and was not named by its tokens since cannot be placed.
    fn copied(&mut self, stored: &Stored, tell: &mut dyn FnMut(Change<'_>)) {
        let holder = Holder {
            place: self.place,
            group: stored.group,
            tier: stored.tier,
        };
        let mut before = stored.parent.and_then(|parent| self.parent(stored, parent));
        for name in &stored.hashes {
            let same_group = self
                .groups
                .iter()
                .filter(|((number, _), _)| *number == stored.group.number);
            let meaning = same_group
                .filter_map(|(_, names)| names.meaning(*name))
                .next()
                .map(<[BlockHash]>::to_vec);
            let Some(blocks) = meaning.filter(|_| stored.group.number < MAX_GROUPS) else {
                self.refused.malformed += 1;
                continue;
            };
            let key = (stored.group.number, stored.tier);
            let names = self.groups.entry(key).or_insert_with(|| Names::new(blocks.len()));
            if names.pieces() != blocks.len() {
                self.refused.malformed += 1;
            } else if names.keep(*name, &blocks) == Kept::Conflicts {
                self.refused.conflicting += 1;
            } else {
                tell_stored(holder, before, &blocks, tell);
            }
            before = blocks.last().copied();
        }
    }

    fn parent(&self, stored: &Stored, parent: EngineHash) -> Option<BlockHash> {
        let own = self.groups.get(&(stored.group.number, stored.tier));
        let in_own = own.and_then(|names| names.last_piece(parent));
        in_own.or_else(|| self.groups.values().find_map(|names| names.last_piece(parent)))
    }

    fn removed(&mut self, removed: &Removed, tell: &mut dyn FnMut(Change<'_>)) {
        let (place, waiting) = (self.place, &mut self.waiting);
        if !waiting.is_empty() {
            let is_removed = |stored: &Stored| {
                stored.tier == removed.tier
                    && removed.group.is_none_or(|group| group == stored.group.number)
                    && stored.hashes.iter().any(|hash| removed.hashes.contains(hash))
            };
            waiting.retain(|stored| !is_removed(stored));
            self.waiting_tokens = waiting.iter().map(|stored| stored.tokens.len()).sum();
        }
        let mut found = vec![false; removed.hashes.len()];
        for ((number, tier), names) in &mut self.groups {
            if *tier != removed.tier || removed.group.is_some_and(|group| group != *number) {
                continue;
            }
            // The kind is no part of a holder's identity once it is known.
            let group = super::Group {
                number: *number,
                kind: GroupKind::Attention,
            };
            let holder = Holder {
                place,
                group,
                tier: *tier,
            };
            let mut gone = Vec::new();
            for (hash, found) in removed.hashes.iter().zip(&mut found) {
                *found |= names.drop_one(*hash, &mut gone);
            }
            if !gone.is_empty() {
                tell(Change::Removed {
                    holder,
                    blocks: &gone,
                });
            }
        }
        self.refused.unknown_removals += found.iter().filter(|found| !**found).count() as u64;
    }
}

fn tell_stored(
    holder: Holder,
    parent: Option<BlockHash>,
    blocks: &[BlockHash],
    tell: &mut dyn FnMut(Change<'_>),
) {
    if !blocks.is_empty() {
        tell(Change::Stored {
            holder,
            parent,
            blocks,
        });
    }
}

/// Events that are taken as one: all that were stored, and removals from one place, which engines tell of block by block.
fn together(a: &CacheEvent, b: &CacheEvent) -> bool {
    match (a, b) {
        (CacheEvent::Stored(_), CacheEvent::Stored(_)) => true,
        (CacheEvent::Removed(a), CacheEvent::Removed(b)) => (a.group, a.tier) == (b.group, b.tier),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
