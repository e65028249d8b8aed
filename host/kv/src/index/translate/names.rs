//! An engine's names of the blocks that one of its groups holds in one tier.

use crate::index::event::EngineHash;
use hashbrown::HashTable;
use portolan_base::BlockHash;
use std::collections::HashMap;

/// What became of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// It is known, once more than before.
    Counted,
    /// It already means other blocks.
    Conflicts,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    name: EngineHash,
    /// The index block itself where a name means one, else where its pieces begin.
    at: BlockHash,
}

/// Names, each for the same number of index blocks.
#[derive(Debug)]
pub(super) struct Names {
    pieces: usize,
    entries: HashTable<Entry>,
    /// Times beyond the first that a name was stored. Nearly always empty.
    more: HashMap<EngineHash, u32>,
    arena: Vec<BlockHash>,
    free: Vec<BlockHash>,
}

impl Names {
    pub(super) fn new(pieces: usize) -> Self {
        Self {
            pieces,
            entries: HashTable::new(),
            more: HashMap::new(),
            arena: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn pieces(&self) -> usize {
        self.pieces
    }

    pub(super) fn bytes(&self) -> usize {
        self.entries.allocation_size()
            + self.more.capacity() * (size_of::<(EngineHash, u32)>() + 1)
            + self.arena.capacity() * size_of::<BlockHash>()
            + self.free.capacity() * size_of::<BlockHash>()
    }

    /// The index blocks that a name means.
    pub(super) fn meaning(&self, name: EngineHash) -> Option<&[BlockHash]> {
        let entry = self.entries.find(hash(name), |entry| entry.name == name)?;
        Some(self.blocks(entry))
    }

    /// The index block at which a named block ends.
    pub(super) fn last_piece(&self, name: EngineHash) -> Option<BlockHash> {
        self.meaning(name)?.last().copied()
    }

    /// Notes that `name` stands for `blocks`.
    pub(super) fn keep(&mut self, name: EngineHash, blocks: &[BlockHash]) -> Kept {
        if let Some(entry) = self.entries.find(hash(name), |entry| entry.name == name) {
            if self.blocks(entry) != blocks {
                return Kept::Conflicts;
            }
            *self.more.entry(name).or_insert(0) += 1;
            return Kept::Counted;
        }
        let at = match blocks {
            [only] => *only,
            several => {
                let at = self.free.pop().unwrap_or_else(|| {
                    self.arena.resize(self.arena.len() + self.pieces, BlockHash(0));
                    BlockHash((self.arena.len() - self.pieces) as u64)
                });
                self.arena[at.0 as usize..][..several.len()].copy_from_slice(several);
                at
            }
        };
        self.entries
            .insert_unique(hash(name), Entry { name, at }, |entry| hash(entry.name));
        Kept::Counted
    }

    /// Takes one storing of `name` back, adds the index blocks it stood for to `gone`, and says whether it was known.
    pub(super) fn drop_one(&mut self, name: EngineHash, gone: &mut Vec<BlockHash>) -> bool {
        let Some(entry) = self.entries.find(hash(name), |entry| entry.name == name).copied() else {
            return false;
        };
        gone.extend_from_slice(self.blocks(&entry));
        if let Some(more) = self.more.get_mut(&name) {
            *more -= 1;
            if *more == 0 {
                self.more.remove(&name);
            }
            return true;
        }
        if let Ok(entry) = self.entries.find_entry(hash(name), |entry| entry.name == name) {
            entry.remove();
        }
        if self.pieces > 1 {
            self.free.push(entry.at);
        }
        true
    }

    fn blocks<'a>(&'a self, entry: &'a Entry) -> &'a [BlockHash] {
        if self.pieces == 1 {
            return std::slice::from_ref(&entry.at);
        }
        let at = usize::try_from(entry.at.0).unwrap_or(usize::MAX);
        self.arena.get(at..at.saturating_add(self.pieces)).unwrap_or(&[])
    }
}

fn hash(name: EngineHash) -> u64 {
    let product = name.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ product >> 32
}
