//! What happens to KV between the engine that computed it and the one that goes on from it.

use bytes::Bytes;
use portolan_base::kv::{KvLayout, KvQuant, KvWindow, PieceId};
use portolan_kv::quant::PieceShape;
use portolan_ports::EngineError;
use std::fmt;
use std::str::FromStr;

/// Sinks of a window that names none: the few first tokens that models lean on.
const SINKS: u32 = 4;

/// A kind of KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvMode {
    /// As it was computed, in 32-bit floats.
    Exact,
    /// Rounded to bfloat16, as an engine that computes in it keeps it.
    Bf16,
    /// Quantised on its way.
    Quantised(KvQuant),
    /// Computed with attention over a window.
    Window(KvWindow),
}

/// Why a text names no kind of KV.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no kind of KV: bf16, int8, int4, window:TOKENS or window:TOKENS+SINKS is expected")]
pub struct KvModeError(String);

impl fmt::Display for KvMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.write_str("f32"),
            Self::Bf16 => f.write_str("bf16"),
            Self::Quantised(quant) => f.write_str(quant.as_str()),
            Self::Window(window) => write!(f, "window:{}+{}", window.tokens, window.sinks),
        }
    }
}

impl FromStr for KvMode {
    type Err = KvModeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "f32" => Self::Exact,
            "bf16" => Self::Bf16,
            "int8" => Self::Quantised(KvQuant::Int8),
            "int4" => Self::Quantised(KvQuant::Int4),
            _ => Self::Window(window(text).ok_or_else(|| KvModeError(text.to_owned()))?),
        })
    }
}

fn window(text: &str) -> Option<KvWindow> {
    let size = text.strip_prefix("window:")?;
    let (tokens, sinks) = match size.split_once('+') {
        Some((tokens, sinks)) => (tokens, sinks.parse().ok()?),
        None => (size, SINKS),
    };
    let tokens = tokens.parse().ok().filter(|tokens| *tokens > 0)?;
    Some(KvWindow { tokens, sinks })
}

impl KvMode {
    /// What arrives of a piece of attention KV, and the bytes that crossed: by the code that a transfer runs.
    pub(super) fn carry(
        self,
        layout: &KvLayout,
        id: &PieceId,
        piece: Bytes,
    ) -> Result<(Bytes, u64), EngineError> {
        let plain = piece.len() as u64;
        match self {
            Self::Exact | Self::Window(_) => Ok((piece, plain)),
            Self::Bf16 => Ok((rounded(&piece), plain / 2)),
            Self::Quantised(quant) => {
                let shape = PieceShape::of(layout, id);
                let coded = shape.and_then(|shape| shape.encode(quant, &piece));
                let Some((shape, coded)) = shape.zip(coded) else {
                    return Ok((piece, plain));
                };
                let broken = |error| EngineError::Broken(format!("quantised KV does not come back: {error}"));
                let bytes = shape.decode(quant, &coded).map_err(broken)?;
                Ok((bytes.into(), coded.len() as u64))
            }
        }
    }
}

/// Each 32-bit float rounded to the nearest that has the bits of a bfloat16, ties to even.
fn rounded(piece: &[u8]) -> Bytes {
    let round = |bytes: &[u8; 4]| {
        let bits = u32::from_le_bytes(*bytes);
        let up = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        (up & 0xffff_0000).to_le_bytes()
    };
    piece.as_chunks().0.iter().flat_map(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_what_is_shown() {
        for text in ["f32", "bf16", "int8", "int4", "window:256+0", "window:7+12"] {
            assert_eq!(text.parse::<KvMode>().unwrap().to_string(), text);
        }
        assert_eq!(
            "window:256".parse::<KvMode>().unwrap().to_string(),
            "window:256+4"
        );
        for text in ["int2", "window:", "window:0", "window:8+", "window:-1", ""] {
            assert!(
                text.parse::<KvMode>()
                    .unwrap_err()
                    .to_string()
                    .contains("int8, int4"),
                "{text}"
            );
        }
    }

    #[test]
    fn rounding_takes_the_nearest_and_even_of_two() {
        let to = |value: f32| f32::from_le_bytes(*rounded(&value.to_le_bytes()).first_chunk().unwrap());
        assert_eq!(to(1.5), 1.5);
        assert_eq!(to(1.0 + 1.0 / 256.0), 1.0, "half way, down to even");
        assert_eq!(to(1.0 + 3.0 / 256.0), 1.0 + 1.0 / 64.0, "half way, up to even");
        assert_eq!(to(-1.0 - 1.2 / 256.0), -1.0 - 1.0 / 128.0);
    }
}
