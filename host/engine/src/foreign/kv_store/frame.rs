//! What is said over the socket, version 1: a head of 24 bytes, a JSON object, a payload. `docs/vllm-connector.md` writes
//! it down for those who write the other side.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// What every frame begins with.
const MAGIC: [u8; 4] = *b"PTKV";

/// The protocol's version.
pub(super) const VERSION: u8 = 1;

/// Bytes of a head.
const HEAD: usize = 24;

/// Longest JSON: checksums of some 100,000 blocks.
const FIELDS_MOST: u32 = 1 << 20;

/// Longest payload. The connector sends at most 64 MiB and one block.
pub(super) const PAYLOAD_MOST: u64 = 256 << 20;

/// What is read of a payload at once, so that a length alone costs no memory.
const PIECE: usize = 1 << 20;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Hello = 1,
    Welcome = 2,
    Find = 3,
    Found = 4,
    Load = 5,
    Blocks = 6,
    Save = 7,
    Saved = 8,
    Refused = 9,
    Idle = 10,
    Noted = 11,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        [
            Self::Hello,
            Self::Welcome,
            Self::Find,
            Self::Found,
            Self::Load,
            Self::Blocks,
            Self::Save,
            Self::Saved,
            Self::Refused,
            Self::Idle,
            Self::Noted,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }
}

/// Why a connection is closed.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("these are not frames of this protocol: they begin with {0:02x?}")]
    Magic([u8; 4]),
    #[error("version {0} is spoken there, {VERSION} here")]
    Version(u8),
    #[error("there is no frame of kind {0}")]
    Kind(u8),
    #[error("{what} of {bytes} bytes; at most {most} are taken")]
    Long {
        what: &'static str,
        bytes: u64,
        most: u64,
    },
    #[error("the fields' checksum is {found:08x}, not {expected:08x}")]
    Checksum { expected: u32, found: u32 },
    #[error("the fields cannot be read: {0}")]
    Fields(#[from] serde_json::Error),
    #[error("{0}")]
    Content(String),
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) fields: Vec<u8>,
    pub(super) payload: Bytes,
}

/// What the engine's side says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// Name and release of the engine, for the log.
    pub(super) engine: String,
    pub(super) layers: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    /// `f32`, `bf16` or `f16`.
    pub(super) dtype: String,
    pub(super) block_tokens: u32,
    /// Which of several workers this is: it has so manieth part of every layer's heads.
    #[serde(default)]
    pub(super) rank: u32,
    /// How many workers there are.
    #[serde(default = "one")]
    pub(super) ranks: u32,
}

fn one() -> u32 {
    1
}

/// What is said instead of a hello by an engine that hands nothing over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Idle {
    pub(super) engine: String,
    pub(super) reason: String,
}

/// The answer to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Welcome {
    pub(super) version: u8,
    /// Bytes of a block, or of this worker's part of it.
    pub(super) block_bytes: u64,
    /// Longest payload that is taken.
    pub(super) payload_most: u64,
}

/// Which prompt: its tokens are the payload's beginning, 32-bit little endian.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Prompt {
    pub(super) salt: String,
    pub(super) tokens: u32,
    /// The first block that is meant.
    #[serde(default)]
    pub(super) first: u32,
    /// CRC-32 of each block that follows the tokens.
    #[serde(default)]
    pub(super) checksums: Vec<u32>,
    /// Several workers' parts with the same number are of one block.
    #[serde(default)]
    pub(super) turn: u64,
    /// Requests that the engine left alone since it last said so.
    #[serde(default)]
    pub(super) aside: u64,
}

/// How many blocks: from a prompt's first on in `Found`; of those that were saved in `Saved`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Count {
    pub(super) blocks: u32,
}

/// Blocks, one after the other in the payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Checksums {
    /// CRC-32 of each.
    pub(super) checksums: Vec<u32>,
}

/// Why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Refused {
    pub(super) reason: String,
}

impl Frame {
    pub(super) fn new(kind: Kind, fields: &impl Serialize, payload: Bytes) -> Result<Self, FrameError> {
        Ok(Self {
            kind,
            fields: serde_json::to_vec(fields)?,
            payload,
        })
    }

    pub(super) fn fields<T: DeserializeOwned>(&self) -> Result<T, FrameError> {
        Ok(serde_json::from_slice(&self.fields)?)
    }

    /// The next frame; none where the other side is done.
    pub(super) async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<Option<Self>, FrameError> {
        let mut head = [0; HEAD];
        if from.read(&mut head[..1]).await? == 0 {
            return Ok(None);
        }
        from.read_exact(&mut head[1..]).await?;
        let Head {
            kind,
            fields,
            checksum: expected,
            payload,
        } = Head::parse(&head)?;
        let fields = read_bytes(from, u64::from(fields)).await?;
        let found = crc32fast::hash(&fields);
        if found != expected {
            return Err(FrameError::Checksum { expected, found });
        }
        let payload = read_bytes(from, payload).await?.into();
        Ok(Some(Self {
            kind,
            fields,
            payload,
        }))
    }

    pub(super) async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> Result<(), FrameError> {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&MAGIC);
        (head[4], head[5]) = (VERSION, self.kind as u8);
        head[8..12].copy_from_slice(&(self.fields.len() as u32).to_le_bytes());
        head[12..16].copy_from_slice(&crc32fast::hash(&self.fields).to_le_bytes());
        head[16..].copy_from_slice(&(self.payload.len() as u64).to_le_bytes());
        to.write_all(&head).await?;
        to.write_all(&self.fields).await?;
        to.write_all(&self.payload).await?;
        Ok(to.flush().await?)
    }
}

struct Head {
    kind: Kind,
    fields: u32,
    checksum: u32,
    payload: u64,
}

impl Head {
    fn parse(head: &[u8; HEAD]) -> Result<Self, FrameError> {
        let four = |at: usize| [head[at], head[at + 1], head[at + 2], head[at + 3]];
        let number = |at: usize| u32::from_le_bytes(four(at));
        if four(0) != MAGIC {
            return Err(FrameError::Magic(four(0)));
        }
        if head[4] != VERSION {
            return Err(FrameError::Version(head[4]));
        }
        let kind = Kind::of(head[5]).ok_or(FrameError::Kind(head[5]))?;
        let (fields, checksum) = (number(8), number(12));
        let payload = u64::from(number(16)) | u64::from(number(20)) << 32;
        let within = |what, bytes: u64, most: u64| match bytes <= most {
            true => Ok(()),
            false => Err(FrameError::Long { what, bytes, most }),
        };
        within("fields", fields.into(), FIELDS_MOST.into())?;
        within("a payload", payload, PAYLOAD_MOST)?;
        Ok(Self {
            kind,
            fields,
            checksum,
            payload,
        })
    }
}

/// Reads so many bytes; memory grows with what came.
async fn read_bytes(from: &mut (impl AsyncRead + Unpin), length: u64) -> Result<Vec<u8>, FrameError> {
    let (mut bytes, length) = (Vec::new(), length as usize);
    while bytes.len() < length {
        let (had, more) = (bytes.len(), PIECE.min(length - bytes.len()));
        bytes.resize(had + more, 0);
        from.read_exact(&mut bytes[had..]).await?;
    }
    Ok(bytes)
}
