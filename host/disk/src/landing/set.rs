//! One set, as one transfer uses it.

use crate::tier::Shared;
use portolan_base::kv::{LandedChunk, LandingId};
use portolan_base::{Moment, Provenance};
use std::sync::Arc;

/// A set in use; see [`portolan_ports::LandedSet`]. Dropping it ends the use, not the set.
#[derive(Debug)]
pub struct OpenSet {
    shared: Arc<Shared>,
    visit: u64,
}

impl OpenSet {
    /// None when nothing may land here.
    pub(crate) fn open(
        shared: &Arc<Shared>,
        id: LandingId,
        about: &Arc<Provenance>,
        now: Moment,
    ) -> Option<Self> {
        let visit = shared.landing.as_ref()?.visit(id, about, now);
        let shared = Arc::clone(shared);
        Some(Self { shared, visit })
    }

    /// What lies here.
    pub fn chunks(&self) -> Vec<LandedChunk> {
        let landing = self.shared.landing.as_ref();
        landing
            .map(|landing| landing.chunks(self.visit))
            .unwrap_or_default()
    }

    /// Takes a verified chunk; false when there is no room, or it is not wanted any more.
    pub fn land(&self, chunk: LandedChunk, bytes: &[u8], now: Moment) -> bool {
        let Some(landing) = &self.shared.landing else {
            return false;
        };
        let (landed, dead) = landing.land(self.visit, chunk, bytes, now);
        self.shared.erase_landed(dead);
        landed
    }

    /// The bytes of a chunk, verified.
    pub fn read(&self, chunk: &LandedChunk) -> Option<Vec<u8>> {
        self.shared.landing.as_ref()?.read(self.visit, chunk)
    }

    /// Removes the set.
    pub fn clear(&self) {
        if let Some(landing) = &self.shared.landing {
            self.shared.erase_landed(landing.clear(self.visit));
        }
    }
}

impl Drop for OpenSet {
    fn drop(&mut self) {
        if let Some(landing) = &self.shared.landing {
            landing.leave(self.visit);
        }
    }
}
