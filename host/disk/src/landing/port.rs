//! The disk tiers of a site as the place where transfers land.

use super::OpenSet;
use crate::DiskTier;
use portolan_base::kv::{LandedChunk, LandingId};
use portolan_base::{Clock, ModelName, Provenance};
use portolan_ports::{LandedSet, Landing};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Lands each model's KV in its own tier.
pub struct DiskLanding {
    tiers: BTreeMap<ModelName, Arc<DiskTier>>,
    clock: Arc<dyn Clock>,
}

impl DiskLanding {
    /// In these tiers, and by the clock that their blocks are used by.
    pub fn new(tiers: impl IntoIterator<Item = Arc<DiskTier>>, clock: Arc<dyn Clock>) -> Self {
        let tiers = tiers.into_iter().map(|tier| (tier.model().clone(), tier));
        Self {
            tiers: tiers.collect(),
            clock,
        }
    }
}

impl Landing for DiskLanding {
    fn open(&self, set: LandingId, about: Arc<Provenance>) -> Option<Arc<dyn LandedSet>> {
        let open = self
            .tiers
            .get(&about.model)?
            .landed(set, &about, self.clock.now())?;
        let clock = Arc::clone(&self.clock);
        Some(Arc::new(Timed { open, clock }))
    }
}

struct Timed {
    open: OpenSet,
    clock: Arc<dyn Clock>,
}

impl LandedSet for Timed {
    fn chunks(&self) -> Vec<LandedChunk> {
        self.open.chunks()
    }

    fn land(&self, chunk: LandedChunk, bytes: &[u8]) -> bool {
        self.open.land(chunk, bytes, self.clock.now())
    }

    fn read(&self, chunk: &LandedChunk) -> Option<Vec<u8>> {
        self.open.read(chunk)
    }

    fn clear(&self) {
        self.open.clear();
    }
}
