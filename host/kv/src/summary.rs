//! What an instance of another site holds, told compactly.
//!
//! The index is exact within a site. To other sites goes a summary: a snapshot of keyed fingerprints at 2.25 bytes a
//! block, then changes at 8 bytes each, all numbered, all valid for a lease. A missed message costs one snapshot.
//! Token ids never leave; neither do index hashes: every hash is keyed with a secret that only the sites share.
//!
//! | part | where |
//! |---|---|
//! | [`SummaryWriter`] | at the site that holds the blocks |
//! | [`SummaryMessage`] | on the wire: strict bounds, no allocation that the bytes do not pay for |
//! | [`SummaryReader`] | at every other site |

mod chain;
mod fingerprints;
mod message;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use chain::KeyedChain;
pub use fingerprints::Fingerprints;
pub use message::{Body, MAX_BLOCKS, SummaryError, SummaryMessage};
pub use reader::{Heard, SummaryReader};
pub use writer::SummaryWriter;

use portolan_base::BlockHash;
use std::time::Duration;

/// How long a message is good for when its writer says nothing else: the cache-validity lease of a site that is cut
/// off, four heartbeats.
pub const LEASE: Duration = Duration::from_secs(2);

/// No lease is longer, whatever a message claims.
pub const LONGEST_LEASE: Duration = Duration::from_secs(60);

/// The secret under which a site is told of others' blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SummaryKey([u8; 32]);

impl std::fmt::Debug for SummaryKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SummaryKey(..)")
    }
}

/// A block's name in summaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyedHash(pub u64);

impl SummaryKey {
    /// The key of what is told to `receiver`, from the fleet's secret. One for each receiver: what one site is told says
    /// nothing about what another is.
    pub fn derive(fleet_secret: &[u8; 32], receiver: &str) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(fleet_secret);
        hasher.update(b"portolan prefix summary\0");
        hasher.update(receiver.as_bytes());
        Self(*hasher.finalize().as_bytes())
    }

    /// The name of a block under this key.
    pub fn hash(&self, block: BlockHash) -> KeyedHash {
        self.of(&block.0.to_le_bytes())
    }

    /// Tells keys apart without telling the key: a message under another key would match nothing, silently.
    fn mark(&self) -> u64 {
        self.of(b"mark").0
    }

    fn of(&self, bytes: &[u8]) -> KeyedHash {
        let digest = blake3::keyed_hash(&self.0, bytes);
        let mut first = [0; 8];
        first.copy_from_slice(&digest.as_bytes()[..8]);
        KeyedHash(u64::from_le_bytes(first))
    }
}
