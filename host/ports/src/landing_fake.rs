//! The fake beside [`Landing`]: sets in memory, which outlive the transport that filled them but not the process.

use crate::{LandedSet, Landing};
use parking_lot::Mutex;
use portolan_base::Provenance;
use portolan_base::kv::{LandedChunk, LandingId};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

type Sets = Arc<Mutex<HashMap<LandingId, Vec<(LandedChunk, Vec<u8>)>>>>;

/// A [`Landing`] in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryLanding {
    sets: Sets,
    refused: Arc<AtomicUsize>,
    fault: Option<LandingFault>,
}

/// What is wrong with a [`MemoryLanding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LandingFault {
    /// There is never room.
    Full,
    /// A bit of every chunk flips while it lies.
    Rots,
    /// What lies there is gone when it is read.
    Forgets,
}

impl MemoryLanding {
    /// One that is broken.
    pub fn faulty(fault: LandingFault) -> Self {
        Self {
            fault: Some(fault),
            ..Self::default()
        }
    }

    /// Chunks of all sets.
    pub fn chunks(&self) -> usize {
        self.sets.lock().values().map(Vec::len).sum()
    }

    /// Chunks that were not taken.
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }

    /// Forgets everything, as an order would.
    pub fn forget(&self) {
        self.sets.lock().clear();
    }
}

impl Landing for MemoryLanding {
    fn open(&self, set: LandingId, _about: Arc<Provenance>) -> Option<Arc<dyn LandedSet>> {
        Some(Arc::new(InMemory {
            landing: self.clone(),
            id: set,
        }))
    }
}

struct InMemory {
    landing: MemoryLanding,
    id: LandingId,
}

impl LandedSet for InMemory {
    fn chunks(&self) -> Vec<LandedChunk> {
        let sets = self.landing.sets.lock();
        let set = sets.get(&self.id).into_iter().flatten();
        set.map(|(chunk, _)| chunk.clone()).collect()
    }

    fn land(&self, chunk: LandedChunk, bytes: &[u8]) -> bool {
        let mut bytes = bytes.to_vec();
        match (self.landing.fault, bytes.first_mut()) {
            (Some(LandingFault::Full), _) => {
                self.landing.refused.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            (Some(LandingFault::Rots), Some(byte)) => *byte ^= 1,
            _ => {}
        }
        let mut sets = self.landing.sets.lock();
        sets.entry(self.id).or_default().push((chunk, bytes));
        true
    }

    fn read(&self, chunk: &LandedChunk) -> Option<Vec<u8>> {
        if self.landing.fault == Some(LandingFault::Forgets) {
            return None;
        }
        let sets = self.landing.sets.lock();
        let found = sets.get(&self.id)?.iter().find(|(lies, _)| lies == chunk);
        found.map(|(_, bytes)| bytes.clone())
    }

    fn clear(&self) {
        self.landing.sets.lock().remove(&self.id);
    }
}
