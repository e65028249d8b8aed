//! What the file of a set looks like.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `PTLNKVL` and the format's version |
//! | 4 | length of the head, little endian |
//! | so many | the head: [`SetHead`] as postcard |
//! | 32 | checksum of all that: the file's *seal* |
//!
//! Then chunks, in the order in which they came:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | length of the head, little endian |
//! | so many | the head: [`LandedChunk`] as postcard |
//! | 32 | checksum of seal, place in the file, and head |
//! | as the head says | the chunk; the head's digest is its checksum |
//!
//! Checksums are BLAKE3 under the tier's key, the digest under none. A file grows at its end only: what a crash tore off is
//! found by length or checksum, and cut off.

use crate::file::{BadFile, SumKey};
use portolan_base::kv::{LandedChunk, LandingId};
use portolan_base::{Moment, Provenance};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"PTLNKVL\x01";
const SUM_BYTES: usize = 32;

/// Longest head: a set that depends on 256 things with the longest names accepted has 200 kB.
const HEAD_MAX: u32 = 1 << 20;

/// Checksum of a file's head; each chunk's head is bound to it.
pub(super) type Seal = [u8; SUM_BYTES];

/// What a file says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SetHead {
    pub(super) id: LandingId,
    pub(super) about: Arc<Provenance>,
    pub(super) begun_at: Moment,
}

/// A chunk, and where in the file its bytes begin.
#[derive(Clone, Debug)]
pub(super) struct Lying {
    pub(super) chunk: LandedChunk,
    pub(super) at: u64,
}

/// A file as it was found.
pub(super) struct Found {
    pub(super) head: SetHead,
    pub(super) seal: Seal,
    pub(super) chunks: Vec<Lying>,
    /// How far it is sound.
    pub(super) length: u64,
}

/// How a file begins, and its seal.
pub(super) fn begin(head: &SetHead, key: SumKey) -> std::io::Result<(Vec<u8>, Seal)> {
    let mut bytes = MAGIC.to_vec();
    put(&mut bytes, head)?;
    let seal = *blake3::keyed_hash(&key.0, &bytes).as_bytes();
    bytes.extend_from_slice(&seal);
    Ok((bytes, seal))
}

/// What comes before a chunk's bytes when it is put at `place`.
pub(super) fn before(chunk: &LandedChunk, seal: &Seal, place: u64, key: SumKey) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    put(&mut bytes, chunk)?;
    let sum = sum_of(&bytes, seal, place, key);
    bytes.extend_from_slice(&sum);
    Ok(bytes)
}

fn put(to: &mut Vec<u8>, head: &impl Serialize) -> std::io::Result<()> {
    let head = postcard::to_stdvec(head).map_err(std::io::Error::other)?;
    let length = u32::try_from(head.len())
        .ok()
        .filter(|length| *length <= HEAD_MAX);
    let length = length.ok_or_else(|| std::io::Error::other("the head is too long"))?;
    to.extend_from_slice(&length.to_le_bytes());
    to.extend_from_slice(&head);
    Ok(())
}

fn sum_of(head: &[u8], seal: &Seal, place: u64, key: SumKey) -> Seal {
    let mut hasher = blake3::Hasher::new_keyed(&key.0);
    hasher.update(seal).update(&place.to_le_bytes()).update(head);
    *hasher.finalize().as_bytes()
}

/// Reads the heads of a file that is `length` bytes long. The bytes of chunks are not read.
pub(super) fn scan(from: &mut (impl Read + Seek), length: u64, key: SumKey) -> Result<Found, BadFile> {
    let mut magic = [0; MAGIC.len()];
    from.read_exact(&mut magic)?;
    if magic != MAGIC {
        return Err(BadFile::Foreign);
    }
    let (head, mut bytes) = take::<SetHead>(from, length)?;
    bytes.splice(0..0, MAGIC);
    let mut seal = [0; SUM_BYTES];
    from.read_exact(&mut seal)?;
    // Compared in constant time by blake3.
    if blake3::keyed_hash(&key.0, &bytes) != blake3::Hash::from_bytes(seal) {
        return Err(BadFile::Sum("head"));
    }
    let mut found = Found {
        head,
        seal,
        chunks: Vec::new(),
        length: from.stream_position()?,
    };
    while let Ok(Some(lying)) = next(from, &found, length, key) {
        found.length = lying.at + u64::from(lying.chunk.len);
        found.chunks.push(lying);
        from.seek(SeekFrom::Start(found.length))?;
    }
    Ok(found)
}

/// The chunk at the end of what is known to be sound; none when it is not whole.
fn next(from: &mut impl Read, found: &Found, length: u64, key: SumKey) -> Result<Option<Lying>, BadFile> {
    let (chunk, bytes) = take::<LandedChunk>(from, length)?;
    let mut sum = [0; SUM_BYTES];
    from.read_exact(&mut sum)?;
    let expected = sum_of(&bytes, &found.seal, found.length, key);
    let at = found.length + (bytes.len() + SUM_BYTES) as u64;
    let sound = blake3::Hash::from_bytes(expected) == blake3::Hash::from_bytes(sum)
        && at + u64::from(chunk.len) <= length;
    Ok(sound.then_some(Lying { chunk, at }))
}

/// A head, and its bytes with their length.
fn take<T: DeserializeOwned>(from: &mut impl Read, length: u64) -> Result<(T, Vec<u8>), BadFile> {
    let mut bytes = vec![0; 4];
    from.read_exact(&mut bytes)?;
    let head = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    if head > HEAD_MAX || u64::from(head) > length {
        return Err(BadFile::Length);
    }
    bytes.resize(4 + head as usize, 0);
    from.read_exact(&mut bytes[4..])?;
    let value = postcard::from_bytes(&bytes[4..]).map_err(|_| BadFile::Foreign)?;
    Ok((value, bytes))
}
