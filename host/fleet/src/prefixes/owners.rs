//! Whose the blocks of one instance are, as far as that decides who may be told of them.

use portolan_base::{BlockHash, Provenance, Scope};
use std::collections::{HashMap, VecDeque};

/// Beginnings of prompts that are remembered until an engine says what it holds of them, the latest: some 6 MB.
const MOST_EXPECTED: usize = 65_536;

/// Whose data is in a block, and where it may be processed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Whose.
    pub scope: Scope,
    /// Where; empty when no restriction was stated.
    pub jurisdiction: String,
}

impl From<&Provenance> for Owner {
    fn from(about: &Provenance) -> Self {
        Self {
            scope: about.scope.clone(),
            jurisdiction: about.jurisdiction.clone(),
        }
    }
}

/// An owner by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OwnerId(u32);

/// What is known of the blocks of one instance. A block without an entry is nobody's: no site is told of it.
#[derive(Debug, Default)]
pub(super) struct Owners {
    owners: Vec<Owner>,
    ids: HashMap<Owner, OwnerId>,
    /// None: under two owners, so that neither one's word suffices.
    blocks: HashMap<BlockHash, Option<OwnerId>>,
    expected: HashMap<BlockHash, OwnerId>,
    order: VecDeque<BlockHash>,
}

impl Owners {
    /// A prompt that begins with this block was sent to the instance. False where that was known.
    pub(super) fn expect(&mut self, first: BlockHash, about: &Provenance) -> bool {
        if self.blocks.contains_key(&first) || self.expected.contains_key(&first) {
            return false;
        }
        let id = self.id(about);
        self.expected.insert(first, id);
        self.order.push_back(first);
        if self.order.len() > MOST_EXPECTED
            && let Some(oldest) = self.order.pop_front()
        {
            self.expected.remove(&oldest);
        }
        true
    }

    /// The instance holds these blocks. Where it is not said whose they are, they are whose the one before them is, or
    /// whose prompt was expected to begin so.
    pub(super) fn stored(
        &mut self,
        about: Option<&Provenance>,
        parent: Option<BlockHash>,
        blocks: &[BlockHash],
    ) {
        let owner = match (about, parent) {
            (Some(about), _) => Some(self.id(about)),
            (None, Some(parent)) => self.of(parent),
            (None, None) => blocks.first().and_then(|first| self.expected.get(first).copied()),
        };
        let Some(owner) = owner else { return };
        for block in blocks {
            let known = self.blocks.entry(*block).or_insert(Some(owner));
            if *known != Some(owner) {
                *known = None;
            }
        }
    }

    /// The instance holds these blocks no more.
    pub(super) fn gone(&mut self, blocks: &[BlockHash]) {
        for block in blocks {
            self.blocks.remove(block);
        }
    }

    /// Forgets all but these.
    pub(super) fn retain(&mut self, held: &[BlockHash]) {
        let all = std::mem::take(&mut self.blocks);
        self.blocks
            .extend(held.iter().filter_map(|block| Some((*block, *all.get(block)?))));
    }

    /// Whose a block is; none: nobody's that is known.
    pub(super) fn of(&self, block: BlockHash) -> Option<OwnerId> {
        self.blocks.get(&block).copied().flatten()
    }

    /// The owner of this number.
    pub(super) fn owner(&self, id: OwnerId) -> &Owner {
        &self.owners[id.0 as usize]
    }

    fn id(&mut self, about: &Provenance) -> OwnerId {
        let owner = Owner::from(about);
        let next = OwnerId(self.owners.len() as u32);
        *self.ids.entry(owner.clone()).or_insert_with(|| {
            self.owners.push(owner);
            next
        })
    }
}
