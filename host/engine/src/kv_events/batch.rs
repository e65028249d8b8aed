//! One payload: `[timestamp, [event, …], rank]`.

use super::event::{Read, read};
use super::pack::{Reader, Token};
use portolan_kv::index::event::CacheEvent;
use thiserror::Error;

/// Why a payload is no batch of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EventError {
    /// It ends too early.
    #[error("a cache event payload ends in the middle of a value; it was cut on its way")]
    Cut,
    /// It holds what msgpack does not have.
    #[error("a cache event payload is no msgpack; it was damaged, or the topic carries something else")]
    Damaged,
    /// Arrays within arrays without end.
    #[error("a cache event payload is nested deeper than any engine nests one")]
    TooDeep,
    /// Msgpack, but no batch.
    #[error("a cache event payload is no [timestamp, events, rank]; the publisher speaks another protocol")]
    NoBatch,
    /// Something follows the batch.
    #[error("something follows the batch in a cache event payload; it was damaged on its way")]
    Trailing,
}

/// Events that are not for the index, counted by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Of a type this release does not know.
    pub unknown: u64,
    /// Fields missing, or not of their type.
    pub malformed: u64,
    /// About bytes in a medium this release does not know.
    pub media: u64,
    /// About bytes on another machine.
    pub remote: u64,
    /// Of cache groups that hold neither whole prefixes nor states (sliding windows, cross attention).
    pub partial: u64,
}

impl Skipped {
    /// Counts what another message left out as well.
    pub fn add(&mut self, other: &Self) {
        self.unknown += other.unknown;
        self.malformed += other.malformed;
        self.media += other.media;
        self.remote += other.remote;
        self.partial += other.partial;
    }
}

/// What one message said.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedBatch {
    /// When, in seconds of the engine's clock.
    pub timestamp: f64,
    /// The data-parallel rank, where the engine names one.
    pub rank: Option<u16>,
    /// What happened, in order.
    pub events: Vec<CacheEvent>,
    /// What was left out.
    pub skipped: Skipped,
}

/// Decodes a payload. Both encodings of events are understood, tagged arrays and maps, also mixed; fields and events
/// that are not known are passed over.
///
/// # Errors
/// When the bytes are not one whole batch. An event that does not fit its type is skipped and counted.
pub fn decode(payload: &[u8]) -> Result<DecodedBatch, EventError> {
    let mut reader = Reader::new(payload);
    let fields = match reader.token()? {
        Token::Array(fields @ 2..) => fields,
        _ => return Err(EventError::NoBatch),
    };
    let timestamp = match reader.token()? {
        Token::Float(seconds) => seconds,
        Token::Number(seconds) => seconds as f64,
        _ => return Err(EventError::NoBatch),
    };
    let Token::Array(count) = reader.token()? else {
        return Err(EventError::NoBatch);
    };
    let (mut events, mut skipped) = (Vec::new(), Skipped::default());
    for _ in 0..count {
        match read(reader.value()?) {
            Read::Event(event) => events.push(event),
            Read::Unknown => skipped.unknown += 1,
            Read::Malformed => skipped.malformed += 1,
            Read::Medium => skipped.media += 1,
            Read::Remote => skipped.remote += 1,
            Read::Partial => skipped.partial += 1,
        }
    }
    let mut rank = None;
    for field in 2..fields {
        let token = reader.value()?.token()?;
        if field == 2 {
            rank = match token {
                Token::Nil => None,
                Token::Number(number) => Some(u16::try_from(number).map_err(|_| EventError::NoBatch)?),
                _ => return Err(EventError::NoBatch),
            };
        }
    }
    if !reader.is_empty() {
        return Err(EventError::Trailing);
    }
    Ok(DecodedBatch {
        timestamp,
        rank,
        events,
        skipped,
    })
}
