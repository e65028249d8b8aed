//! What a block's file looks like.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `PTLNKVB` and the format's version |
//! | 4 | length of the head, little endian |
//! | so many | the head: [`Head`] as postcard |
//! | 32 | checksum of all that |
//! | as the head says | the body: attention buffers in layer order, then the snapshot's |
//! | 32 | checksum of head and body |
//!
//! Checksums are BLAKE3 under a key of realm and host: a file of another realm, another host, or nobody's, is not read.

use bytes::Bytes as Buffer;
use portolan_base::{BlockHash, BlockId, Bytes, Moment, Provenance};
use portolan_kv::{BlockKv, Kept, PoolBlock, wiped};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

const MAGIC: [u8; 8] = *b"PTLNKVB\x01";
const SUM_BYTES: usize = 32;
const LENGTH_BYTES: usize = 4;

/// Longest head: a block of 64 index hashes that depends on 256 things with the longest names accepted has 200 kB.
const HEAD_MAX: u32 = 1 << 20;

/// Longest body: far above any block, far below what would hurt when a length was damaged.
const BODY_MAX: u64 = 1 << 32;

/// The key under which files are summed.
#[derive(Clone, Copy)]
pub(crate) struct SumKey(pub(crate) [u8; 32]);

impl std::fmt::Debug for SumKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SumKey(..)")
    }
}

/// Everything about a block but its KV.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) id: BlockId,
    pub(crate) parent: Option<BlockId>,
    pub(crate) hashes: Vec<BlockHash>,
    pub(crate) about: Arc<Provenance>,
    pub(crate) rebuild: Duration,
    /// When it was last used above; its age counts on after a restart.
    pub(crate) used_at: Moment,
    attention: Vec<u64>,
    snapshot: Option<Vec<u64>>,
}

/// Why a file is not a block.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadFile {
    #[error("it cannot be read: {0}")]
    Io(#[from] std::io::Error),
    #[error("it ends early, or is longer than it says")]
    Length,
    #[error("it is no block's file, or of another format")]
    Foreign,
    #[error("the checksum of its {0} is wrong")]
    Sum(&'static str),
}

impl Head {
    fn of(block: &PoolBlock, used_at: Moment) -> Self {
        let lengths = |buffers: &[Buffer]| buffers.iter().map(|buffer| buffer.len() as u64).collect();
        Self {
            id: block.id,
            parent: block.parent,
            hashes: block.hashes.clone(),
            about: Arc::clone(&block.about),
            rebuild: block.rebuild,
            used_at,
            attention: lengths(&block.kv.attention),
            snapshot: block.kv.snapshot.as_deref().map(lengths),
        }
    }

    /// Bytes of KV.
    pub(crate) fn body(&self) -> Bytes {
        let snapshot = self.snapshot.iter().flatten();
        Bytes(
            self.attention
                .iter()
                .chain(snapshot)
                .fold(0, |sum, length| sum.saturating_add(*length)),
        )
    }

    pub(crate) fn has_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    fn into_block(self, body: &Buffer) -> PoolBlock {
        let mut at = 0;
        let mut cut = |lengths: &[u64]| -> Vec<Buffer> {
            let piece = |length: &u64| {
                let piece = body.slice(at..at + *length as usize);
                at += *length as usize;
                piece
            };
            lengths.iter().map(piece).collect()
        };
        let attention = cut(&self.attention);
        let snapshot = self.snapshot.as_deref().map(cut);
        PoolBlock {
            id: self.id,
            parent: self.parent,
            hashes: self.hashes,
            about: self.about,
            rebuild: self.rebuild,
            kv: BlockKv { attention, snapshot },
        }
    }
}

/// Writes a block; gives the file's length.
pub(crate) fn write(
    to: &mut impl Write,
    block: &PoolBlock,
    used_at: Moment,
    key: SumKey,
) -> std::io::Result<Bytes> {
    let head = postcard::to_stdvec(&Head::of(block, used_at)).map_err(std::io::Error::other)?;
    let mut start = MAGIC.to_vec();
    let length = u32::try_from(head.len())
        .ok()
        .filter(|length| *length <= HEAD_MAX);
    let length = length.ok_or_else(|| std::io::Error::other("the block's head is too long"))?;
    start.extend_from_slice(&length.to_le_bytes());
    start.extend_from_slice(&head);
    let mut sum = blake3::Hasher::new_keyed(&key.0);
    sum.update(&start);
    to.write_all(&start)?;
    to.write_all(sum.finalize().as_bytes())?;
    let snapshot = block.kv.snapshot.as_deref().unwrap_or_default();
    for buffer in block.kv.attention.iter().chain(snapshot) {
        sum.update(buffer);
        to.write_all(buffer)?;
    }
    to.write_all(sum.finalize().as_bytes())?;
    Ok(Bytes(start.len() as u64 + 2 * SUM_BYTES as u64) + block.kv.size())
}

/// Reads the head of a file that is `length` bytes long, and checks it and the length.
pub(crate) fn read_head(from: &mut impl Read, length: u64, key: SumKey) -> Result<Head, BadFile> {
    head(from, length, key).map(|(head, _)| head)
}

/// Reads a whole block, and checks every byte of it.
pub(crate) fn read(from: &mut impl Read, length: u64, key: SumKey) -> Result<(PoolBlock, Moment), BadFile> {
    let (head, mut sum) = head(from, length, key)?;
    let mut body = vec![0; head.body().0 as usize];
    exactly(from, &mut body)?;
    sum.update(&body);
    let body = wiped(body);
    check(from, &sum, "body")?;
    let used_at = head.used_at;
    Ok((head.into_block(&body), used_at))
}

fn head(from: &mut impl Read, length: u64, key: SumKey) -> Result<(Head, blake3::Hasher), BadFile> {
    let mut start = vec![0; MAGIC.len() + LENGTH_BYTES];
    exactly(from, &mut start)?;
    if start[..MAGIC.len()] != MAGIC {
        return Err(BadFile::Foreign);
    }
    let mut bytes = [0; LENGTH_BYTES];
    bytes.copy_from_slice(&start[MAGIC.len()..]);
    let head_length = u32::from_le_bytes(bytes);
    if head_length > HEAD_MAX || u64::from(head_length) > length {
        return Err(BadFile::Length);
    }
    let fixed = start.len();
    start.resize(fixed + head_length as usize, 0);
    exactly(from, &mut start[fixed..])?;
    let mut sum = blake3::Hasher::new_keyed(&key.0);
    sum.update(&start);
    check(from, &sum, "head")?;
    let head: Head = postcard::from_bytes(&start[fixed..]).map_err(|_| BadFile::Foreign)?;
    let body = head.body().0;
    if body > BODY_MAX || length != start.len() as u64 + 2 * SUM_BYTES as u64 + body {
        return Err(BadFile::Length);
    }
    Ok((head, sum))
}

fn check(from: &mut impl Read, sum: &blake3::Hasher, of: &'static str) -> Result<(), BadFile> {
    let mut found = [0; SUM_BYTES];
    exactly(from, &mut found)?;
    // Compared in constant time by blake3.
    if sum.finalize() != blake3::Hash::from_bytes(found) {
        return Err(BadFile::Sum(of));
    }
    Ok(())
}

fn exactly(from: &mut impl Read, into: &mut [u8]) -> Result<(), BadFile> {
    from.read_exact(into).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => BadFile::Length,
        _ => BadFile::Io(error),
    })
}
