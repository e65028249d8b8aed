//! A prompt's blocks by their names in summaries.

use super::{KeyedHash, SummaryKey};
use portolan_base::BlockHash;

/// A chain whose keyed names are made when they are first asked for: of 512 blocks some 20 are, and every reader
/// under the same key asks for much the same ones.
#[derive(Debug)]
pub struct KeyedChain<'a> {
    key: SummaryKey,
    chain: &'a [BlockHash],
    names: Vec<Option<KeyedHash>>,
}

impl<'a> KeyedChain<'a> {
    /// A prompt's blocks, from its first on.
    pub fn new(key: SummaryKey, chain: &'a [BlockHash]) -> Self {
        let names = vec![None; chain.len()];
        Self { key, chain, names }
    }

    /// Blocks in it.
    pub fn len(&self) -> usize {
        self.chain.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.chain.is_empty()
    }

    pub(super) fn key(&self) -> SummaryKey {
        self.key
    }

    /// The name of block `at`, which is in it.
    pub(super) fn name(&mut self, at: usize) -> KeyedHash {
        *self.names[at].get_or_insert_with(|| self.key.hash(self.chain[at]))
    }
}
