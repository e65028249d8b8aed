//! Parts of a transfer that did not come to its end: kept by its receiver, so that a later one goes on from there.

use super::PieceId;
use core::fmt;
use serde::{Deserialize, Serialize};

/// Names the KV of one prompt as one receiver orders it: tenant, jurisdiction, model, version and tokens. A hash under a
/// context of its own, so that nobody learns the prompt from it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LandingId(pub [u8; 16]);

impl fmt::Display for LandingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for LandingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LandingId({self})")
    }
}

/// A chunk that came, was verified, and lies with its receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandedChunk {
    /// The piece that it is part of.
    pub piece: PieceId,
    /// Bytes of that piece as it crossed: fewer when it was quantised.
    pub piece_len: u64,
    /// Where in the piece it begins.
    pub offset: u64,
    /// Its bytes.
    pub len: u32,
    /// BLAKE3-128 of them. Whoever holds the KV says by it whether they are the bytes that it would send.
    pub digest: [u8; 16],
}

impl LandedChunk {
    /// The digest of a chunk's bytes.
    pub fn digest_of(bytes: &[u8]) -> [u8; 16] {
        let mut digest = [0; 16];
        digest.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
        digest
    }
}
