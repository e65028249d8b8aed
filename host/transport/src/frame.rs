//! The frames of the protocol as bytes, and back. Pure: no I/O.

use crate::codec::Coding;
use bytes::{BufMut, Bytes, BytesMut};
use portolan_base::kv::{KvManifest, LandedChunk, PieceId};
use portolan_base::{SiteName, TransferId};
use portolan_ports::{KvOrder, PrefillReport};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Opens every connection, in both directions: "this is KV transport", then the version.
pub(crate) const PREFACE: [u8; 8] = *b"PTLNKV\x00\x05";

/// Bytes of a frame's head.
pub(crate) const HEAD_BYTES: usize = 32;

/// Longest error text that travels.
pub(crate) const TEXT_MAX: usize = 4096;

/// An order holds up to five bytes a token: room for prompts of six million tokens.
const ORDER_MAX: u32 = 32 << 20;
/// A layer takes some 100 bytes of JSON: room for ten thousand.
const MANIFEST_MAX: u32 = 1 << 20;
/// Names, nonces and limits, or an error text.
const SMALL_MAX: u32 = 8 << 10;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Kind {
    DialerHello = 1,
    ListenerHello = 2,
    DialerProof = 3,
    Welcome = 4,
    Order = 10,
    Manifest = 11,
    Chunk = 12,
    Ack = 13,
    Nack = 14,
    Final = 15,
    Cancel = 16,
    Ping = 17,
    Pong = 18,
    Credit = 19,
}

impl Kind {
    fn from_wire(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::DialerHello,
            2 => Self::ListenerHello,
            3 => Self::DialerProof,
            4 => Self::Welcome,
            10 => Self::Order,
            11 => Self::Manifest,
            12 => Self::Chunk,
            13 => Self::Ack,
            14 => Self::Nack,
            15 => Self::Final,
            16 => Self::Cancel,
            17 => Self::Ping,
            18 => Self::Pong,
            19 => Self::Credit,
            _ => return None,
        })
    }

    const fn is_hello(self) -> bool {
        (self as u8) < 10
    }

    const fn meta_max(self) -> u32 {
        match self {
            Self::Order => ORDER_MAX,
            Self::Manifest => MANIFEST_MAX,
            _ => SMALL_MAX,
        }
    }
}

/// First message of the side that connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DialerHello {
    pub(crate) from: SiteName,
    pub(crate) to: SiteName,
    /// Groups the lanes of one link.
    pub(crate) session: u128,
    pub(crate) nonce: [u8; 32],
    pub(crate) chunk: u32,
}

/// The listener's answer, with its proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListenerHello {
    pub(crate) site: SiteName,
    pub(crate) nonce: [u8; 32],
    pub(crate) chunk: u32,
}

/// Ends the hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Welcome {
    /// The lane is open; the number is drawn anew whenever the listener begins a session, so that a dialer notices
    /// that its transfers were forgotten.
    Open(u128),
    /// The listener wants nothing to do with this peer.
    Refused(String),
}

/// An order with its priority class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OrderBody {
    pub(crate) transfer: TransferId,
    pub(crate) priority: u8,
    /// Bytes of pieces the holder may begin before it is told more.
    pub(crate) credit: u64,
    /// Codings the receiver reads.
    pub(crate) accepts: Vec<Coding>,
    /// What an earlier transfer of the same set brought.
    pub(crate) landed: Vec<LandedChunk>,
    /// Where a carrier may put chunks.
    pub(crate) beside: Option<Beside>,
    pub(crate) order: KvOrder,
}

/// What will come, and how it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Announcement {
    #[serde(default)]
    pub(crate) coding: Coding,
    #[serde(flatten)]
    pub(crate) manifest: KvManifest,
}

/// What the holder knows of the link, with each pong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HolderReport {
    /// Delivery rate in bytes a second; 0: not known.
    pub(crate) delivery: u64,
    /// TCP segments sent in this session.
    pub(crate) segments: u64,
    /// Of them, sent again.
    pub(crate) retransmitted: u64,
}

/// Which part of which piece a chunk is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChunkHead {
    pub(crate) transfer: TransferId,
    pub(crate) no: u32,
    pub(crate) piece: PieceId,
    pub(crate) offset: u64,
    pub(crate) piece_len: u64,
}

impl ChunkHead {
    /// Binds a payload to its head: the payload's checksum is seeded with this.
    pub(crate) fn seed(&self) -> u64 {
        let mut bytes = [0u8; 56];
        bytes[..16].copy_from_slice(&self.transfer.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.no.to_le_bytes());
        bytes[20..22].copy_from_slice(&self.piece.layer.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.piece.tokens.start.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.piece.tokens.end.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.offset.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.piece_len.to_le_bytes());
        xxh3_64(&bytes)
    }

    /// XXH3-64 over head and payload.
    pub(crate) fn checksum(&self, payload: &[u8]) -> u64 {
        xxh3_64_with_seed(payload, self.seed())
    }
}

/// How the bytes of a chunk come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Carriage {
    /// Behind the head, as they are.
    Plain,
    /// Behind the head, in the coding of the manifest.
    Coded,
    /// Not at all: the receiver has them from an earlier transfer.
    Landed,
    /// Beside the connection: they lie at this place of the receiver's window.
    Beside(u64),
}

impl Carriage {
    /// Whether bytes follow the head.
    pub(crate) const fn is_behind(self) -> bool {
        matches!(self, Self::Plain | Self::Coded)
    }
}

/// A receiver's window, as its carrier describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Beside {
    pub(crate) invitation: Vec<u8>,
    pub(crate) bytes: u64,
}

/// A chunk's head as it travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChunkMeta {
    pub(crate) head: ChunkHead,
    /// 0 the first time, one more for each resend.
    pub(crate) attempt: u32,
    /// How its bytes come; the checksum is that of the plain bytes.
    pub(crate) carriage: Carriage,
    pub(crate) checksum: u64,
}

/// What was sent, for the receiver to count against.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    pub(crate) report: PrefillReport,
    pub(crate) chunks: u32,
    pub(crate) pieces: u32,
    pub(crate) bytes: u64,
    /// The checksums of all chunks, added up: the same set, not merely as much.
    pub(crate) digest: u64,
}

/// How a transfer ended at the holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Whole(Totals),
    Failed(String),
}

/// What is acknowledged or asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Part {
    Manifest,
    Chunk(u32),
    Final,
}

/// One frame; a chunk's payload follows it on the wire and is not part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    DialerHello(DialerHello),
    ListenerHello(ListenerHello, [u8; 32]),
    DialerProof([u8; 32]),
    Welcome(Welcome),
    Order(Box<OrderBody>),
    Manifest(TransferId, Box<Announcement>),
    Chunk(ChunkMeta),
    Ack(TransferId, Part),
    Nack(TransferId, Part),
    Final(TransferId, Outcome),
    Cancel(TransferId),
    Ping(u64),
    Pong(u64, HolderReport),
    /// Bytes of pieces the holder may begin, counted from the start of the transfer.
    Credit(TransferId, u64),
}

/// Why bytes are not a frame. The connection they came on is of no further use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// The head's checksum does not match.
    #[error("a frame head is damaged")]
    DamagedHead,
    /// The checksum over the frame's fields does not match.
    #[error("the fields of a frame are damaged")]
    DamagedFields,
    /// An unknown kind of frame, or one that does not belong here.
    #[error("a frame of kind {0} is not expected here")]
    UnexpectedKind(u8),
    /// The frame says it is longer than allowed.
    #[error("a frame of kind {kind} announces {announced} bytes, at most {allowed} are allowed")]
    TooLong {
        /// Kind of the frame.
        kind: u8,
        /// Bytes announced.
        announced: u32,
        /// Bytes allowed.
        allowed: u32,
    },
    /// The fields are not what the kind of frame calls for.
    #[error("the fields of a frame of kind {0} cannot be read")]
    Malformed(u8),
}

/// How far the other side is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Only short hello frames.
    Hello,
    /// Everything but hello frames, with chunks up to so many bytes.
    Open { chunk: u32 },
}

/// A checked frame head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) meta_len: u32,
    pub(crate) payload_len: u32,
    meta_check: u64,
}

impl Head {
    /// Reads and checks a head; nothing is allocated for a frame before this has said yes.
    pub(crate) fn decode(bytes: &[u8; HEAD_BYTES], stage: Stage) -> Result<Self, FrameError> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | (u64::from(word(at + 4)) << 32);
        if long(24) != xxh3_64(&bytes[..24]) {
            return Err(FrameError::DamagedHead);
        }
        let unexpected = FrameError::UnexpectedKind(bytes[0]);
        let kind = Kind::from_wire(bytes[0]).ok_or(unexpected.clone())?;
        let payload_max = match stage {
            Stage::Hello if kind.is_hello() => 0,
            Stage::Open { chunk } if kind == Kind::Chunk => chunk,
            Stage::Open { .. } if !kind.is_hello() => 0,
            _ => return Err(unexpected),
        };
        let head = Self {
            kind,
            meta_len: word(4),
            payload_len: word(8),
            meta_check: long(16),
        };
        for (announced, allowed) in [(head.meta_len, kind.meta_max()), (head.payload_len, payload_max)] {
            if announced > allowed {
                return Err(FrameError::TooLong {
                    kind: bytes[0],
                    announced,
                    allowed,
                });
            }
        }
        Ok(head)
    }

    /// Reads the fields that follow a head.
    pub(crate) fn decode_meta(&self, meta: &[u8]) -> Result<Frame, FrameError> {
        if xxh3_64(meta) != self.meta_check {
            return Err(FrameError::DamagedFields);
        }
        let kind = self.kind;
        Ok(match kind {
            Kind::DialerHello => Frame::DialerHello(read(kind, meta)?),
            Kind::ListenerHello => {
                let (hello, proof) = read(kind, meta)?;
                Frame::ListenerHello(hello, proof)
            }
            Kind::DialerProof => Frame::DialerProof(read(kind, meta)?),
            Kind::Welcome => Frame::Welcome(read(kind, meta)?),
            Kind::Order => Frame::Order(Box::new(read(kind, meta)?)),
            Kind::Manifest => {
                let (transfer, json): (TransferId, &str) = read(kind, meta)?;
                let manifest = serde_json::from_str(json).map_err(|_| FrameError::Malformed(kind as u8))?;
                Frame::Manifest(transfer, Box::new(manifest))
            }
            Kind::Chunk => Frame::Chunk(read(kind, meta)?),
            Kind::Ack => pair(read(kind, meta)?, Frame::Ack),
            Kind::Nack => pair(read(kind, meta)?, Frame::Nack),
            Kind::Final => pair(read(kind, meta)?, Frame::Final),
            Kind::Cancel => Frame::Cancel(read(kind, meta)?),
            Kind::Ping => Frame::Ping(read(kind, meta)?),
            Kind::Pong => pair(read(kind, meta)?, Frame::Pong),
            Kind::Credit => pair(read(kind, meta)?, Frame::Credit),
        })
    }
}

fn pair<A, B>((a, b): (A, B), frame: impl Fn(A, B) -> Frame) -> Frame {
    frame(a, b)
}

fn read<'a, T: Deserialize<'a>>(kind: Kind, meta: &'a [u8]) -> Result<T, FrameError> {
    match postcard::take_from_bytes(meta) {
        Ok((value, [])) => Ok(value),
        _ => Err(FrameError::Malformed(kind as u8)),
    }
}

fn put<T: Serialize>(kind: Kind, payload_len: u32, fields: &T) -> Bytes {
    // Plain data into a growing buffer: it fails where a type leaves fields out or flattens them, which the format cannot
    // hold. Every kind of frame is written and read back in the tests.
    let meta = postcard::to_stdvec(fields).unwrap_or_else(|error| {
        tracing::error!(%error, frame = std::any::type_name::<T>(), "a frame cannot be written");
        Vec::new()
    });
    put_raw(kind as u8, payload_len, &meta)
}

/// A frame of any kind byte and any fields, with the checksums they call for.
pub(crate) fn put_raw(kind: u8, payload_len: u32, meta: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(HEAD_BYTES + meta.len());
    out.put_slice(&[kind, 0, 0, 0]);
    out.put_u32_le(u32::try_from(meta.len()).unwrap_or(u32::MAX));
    out.put_u32_le(payload_len);
    out.put_u32_le(0);
    out.put_u64_le(xxh3_64(meta));
    let check = xxh3_64(&out);
    out.put_u64_le(check);
    out.put_slice(meta);
    out.freeze()
}

impl Frame {
    /// The frame as bytes, without a payload.
    pub(crate) fn encode(&self) -> Bytes {
        match self {
            Self::DialerHello(hello) => put(Kind::DialerHello, 0, hello),
            Self::ListenerHello(hello, proof) => put(Kind::ListenerHello, 0, &(hello, proof)),
            Self::DialerProof(proof) => put(Kind::DialerProof, 0, proof),
            Self::Welcome(welcome) => put(Kind::Welcome, 0, welcome),
            Self::Order(order) => put(Kind::Order, 0, &**order),
            // JSON inside, since a layer's kind is a tag that only a self-describing format can hold.
            Self::Manifest(transfer, manifest) => {
                let json = serde_json::to_string(&**manifest).unwrap_or_default();
                put(Kind::Manifest, 0, &(transfer, json))
            }
            Self::Chunk(meta) => put(Kind::Chunk, 0, meta),
            Self::Ack(transfer, part) => put(Kind::Ack, 0, &(transfer, part)),
            Self::Nack(transfer, part) => put(Kind::Nack, 0, &(transfer, part)),
            Self::Final(transfer, outcome) => put(Kind::Final, 0, &(transfer, outcome)),
            Self::Cancel(transfer) => put(Kind::Cancel, 0, transfer),
            Self::Ping(at) => put(Kind::Ping, 0, at),
            Self::Pong(at, report) => put(Kind::Pong, 0, &(at, report)),
            Self::Credit(transfer, bytes) => put(Kind::Credit, 0, &(transfer, bytes)),
        }
    }
}

/// Head and fields of a chunk whose payload of `len` bytes follows.
pub(crate) fn encode_chunk(meta: &ChunkMeta, len: u32) -> Bytes {
    put(Kind::Chunk, len, meta)
}

/// An error text cut to what may travel.
pub(crate) fn cut_text(mut text: String) -> String {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::frames as samples;
