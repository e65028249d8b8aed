//! What summaries look like on the wire. Numbers are little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `P` `S`, version 1, kind (1 snapshot, 2 changes) |
//! | 8 | the key's mark |
//! | 8 | incarnation |
//! | 8 | sequence |
//! | 4 | lease in milliseconds |
//! | 4 | snapshot: blocks n; changes: blocks added |
//! | 4 | changes only: blocks removed |
//! | rest | snapshot: unary part (8 · ⌈n/32⌉), then n low parts of 2; changes: 8 for each block |

use super::fingerprints::{Fingerprints, words};
use super::{KeyedHash, LONGEST_LEASE};
use std::time::Duration;
use thiserror::Error;

/// Blocks in one message at most: what an instance with a terabyte of host memory may hold.
pub const MAX_BLOCKS: u32 = 1 << 26;

const HEADER: usize = 36;

/// Why bytes are no summary.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SummaryError {
    /// Not of this format.
    #[error("not a prefix summary of version 1; the sender runs another release or is no Portolan")]
    Format,
    /// Of another length than its header says.
    #[error("a prefix summary of {got} bytes should have {expected}; it was cut or damaged on its way")]
    Length {
        /// By the header.
        expected: u64,
        /// As received.
        got: u64,
    },
    /// More blocks than any instance has.
    #[error("a prefix summary claims {0} blocks; at most {MAX_BLOCKS} are allowed in one message")]
    TooLarge(u32),
    /// The parts of a snapshot contradict each other.
    #[error("the fingerprints of a prefix snapshot do not fit together; it was damaged on its way")]
    Inconsistent,
}

/// One message of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryMessage {
    /// Which key its hashes are under.
    pub mark: u64,
    /// Drawn when the source started.
    pub incarnation: u64,
    /// Counts from 0 within an incarnation, snapshots and changes alike.
    pub sequence: u64,
    /// From its receipt on, the source's summary is good for so long.
    pub lease: Duration,
    /// What it tells.
    pub body: Body,
}

/// What a message tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// All that is held.
    Snapshot(Fingerprints),
    /// What has changed. Nothing, when it only renews the lease.
    Changes {
        /// Held from now on.
        added: Vec<KeyedHash>,
        /// Held no more.
        removed: Vec<KeyedHash>,
    },
}

impl SummaryMessage {
    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let kind = match &self.body {
            Body::Snapshot(_) => 1,
            Body::Changes { .. } => 2,
        };
        let mut out = vec![b'P', b'S', 1, kind];
        for number in [self.mark, self.incarnation, self.sequence] {
            out.extend(number.to_le_bytes());
        }
        let lease = u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX);
        out.extend(lease.to_le_bytes());
        match &self.body {
            Body::Snapshot(held) => {
                let (unary, low) = held.parts();
                out.extend((low.len() as u32).to_le_bytes());
                out.extend(unary.iter().flat_map(|word| word.to_le_bytes()));
                out.extend(low.iter().flat_map(|low| low.to_le_bytes()));
            }
            Body::Changes { added, removed } => {
                out.extend((added.len() as u32).to_le_bytes());
                out.extend((removed.len() as u32).to_le_bytes());
                out.extend(added.iter().chain(removed).flat_map(|hash| hash.0.to_le_bytes()));
            }
        }
        out
    }

    /// The message in `bytes`.
    ///
    /// # Errors
    /// When the bytes are anything but one whole message. Nothing is allocated before their length is checked.
    pub fn decode(bytes: &[u8]) -> Result<Self, SummaryError> {
        let kind = match bytes {
            [b'P', b'S', 1, kind @ 1..=2, ..] if bytes.len() >= HEADER => *kind,
            _ => return Err(SummaryError::Format),
        };
        let count = number::<4>(bytes, 32) as u32;
        let body = match kind {
            1 => snapshot(&bytes[HEADER..], count)?,
            _ => changes(&bytes[HEADER..], count)?,
        };
        let lease = Duration::from_millis(number::<4>(bytes, 28));
        Ok(Self {
            mark: number::<8>(bytes, 4),
            incarnation: number::<8>(bytes, 12),
            sequence: number::<8>(bytes, 20),
            lease: lease.min(LONGEST_LEASE),
            body,
        })
    }
}

fn snapshot(bytes: &[u8], blocks: u32) -> Result<Body, SummaryError> {
    let blocks = bounded(blocks)?;
    let unary = words(blocks) * 8;
    sized(bytes, unary + blocks * 2)?;
    let (unary, low) = bytes.split_at(unary);
    let unary = unary.chunks_exact(8).map(|word| number::<8>(word, 0)).collect();
    let low = low
        .chunks_exact(2)
        .map(|low| number::<2>(low, 0) as u16)
        .collect();
    let held = Fingerprints::from_parts(unary, low).ok_or(SummaryError::Inconsistent)?;
    Ok(Body::Snapshot(held))
}

fn changes(bytes: &[u8], added: u32) -> Result<Body, SummaryError> {
    if bytes.len() < 4 {
        return Err(SummaryError::Format);
    }
    let (added, removed) = (bounded(added)?, bounded(number::<4>(bytes, 0) as u32)?);
    let bytes = &bytes[4..];
    sized(bytes, (added + removed) * 8)?;
    let mut hashes = bytes.chunks_exact(8).map(|hash| KeyedHash(number::<8>(hash, 0)));
    Ok(Body::Changes {
        added: hashes.by_ref().take(added).collect(),
        removed: hashes.collect(),
    })
}

fn bounded(blocks: u32) -> Result<usize, SummaryError> {
    if blocks > MAX_BLOCKS {
        return Err(SummaryError::TooLarge(blocks));
    }
    Ok(blocks as usize)
}

fn sized(bytes: &[u8], expected: usize) -> Result<(), SummaryError> {
    if bytes.len() != expected {
        return Err(SummaryError::Length {
            expected: (expected + HEADER) as u64,
            got: (bytes.len() + HEADER) as u64,
        });
    }
    Ok(())
}

/// The number in `N` bytes at `at`, which are there.
fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(wide)
}
