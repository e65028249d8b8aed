//! Store and forward: where a receiver keeps what came of a transfer, so that another one goes on from there when a poor
//! link did not bring it to its end.

use portolan_base::Provenance;
use portolan_base::kv::{LandedChunk, LandingId};
use std::sync::Arc;

/// Keeps verified chunks of transfers. Survives a restart of its process.
pub trait Landing: Send + Sync {
    /// Opens a set for one transfer; none where KV of this model is not kept.
    fn open(&self, set: LandingId, about: Arc<Provenance>) -> Option<Arc<dyn LandedSet>>;
}

/// One set, as one transfer uses it: until it is dropped, or an order to forget is about it. From then on it takes and
/// gives nothing.
pub trait LandedSet: Send + Sync {
    /// What lies here, in no particular order. Not read yet: whether it is whole shows when it is.
    fn chunks(&self) -> Vec<LandedChunk>;

    /// Takes a verified chunk; false when there is no room, or it is not wanted any more. Waits for the file system, not
    /// for the medium: a power cut may cost what came last.
    fn land(&self, chunk: LandedChunk, bytes: &[u8]) -> bool;

    /// The bytes of a chunk; none when it is gone, or was found damaged and dropped. Waits for the disk.
    fn read(&self, chunk: &LandedChunk) -> Option<Vec<u8>>;

    /// The set came whole: nobody needs it here any more.
    fn clear(&self);
}
