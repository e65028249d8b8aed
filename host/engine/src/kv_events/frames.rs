//! The frames around payloads: what a subscriber gets, and what a request for a replay is answered with.

use thiserror::Error;

/// The number that ends a replay: -1.
const END: u64 = u64::MAX;

/// A message of the running stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live<'a> {
    /// Counts from 0 within an engine's process.
    pub sequence: u64,
    /// What [`super::decode`] reads.
    pub payload: &'a [u8],
}

/// One answer to a request for a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replayed<'a> {
    /// A message from before.
    Batch(Live<'a>),
    /// There is no more.
    End,
}

/// Frames that are not a message of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "a cache event message of {frames} frames without a sequence number of 8 bytes; the address is no engine's event port"
)]
pub struct FrameError {
    /// How many frames came.
    pub frames: usize,
}

/// Reads `[topic, sequence, payload]`.
///
/// # Errors
/// When the frames are anything else.
pub fn live<'a>(frames: &[&'a [u8]]) -> Result<Live<'a>, FrameError> {
    match frames {
        [_topic, number, payload] => numbered(number, payload, frames),
        _ => Err(FrameError { frames: frames.len() }),
    }
}

/// Reads `["", topic, sequence, payload]`, or `["", sequence, payload]` as older vLLM and SGLang send it.
///
/// # Errors
/// When the frames are anything else.
pub fn replay<'a>(frames: &[&'a [u8]]) -> Result<Replayed<'a>, FrameError> {
    let found = match frames {
        [b"", _, number, payload] | [b"", number, payload] => numbered(number, payload, frames)?,
        _ => return Err(FrameError { frames: frames.len() }),
    };
    Ok(match found.sequence {
        END => Replayed::End,
        _ => Replayed::Batch(found),
    })
}

fn numbered<'a>(number: &[u8], payload: &'a [u8], frames: &[&[u8]]) -> Result<Live<'a>, FrameError> {
    let number: [u8; 8] = number
        .try_into()
        .map_err(|_| FrameError { frames: frames.len() })?;
    Ok(Live {
        sequence: u64::from_be_bytes(number),
        payload,
    })
}
