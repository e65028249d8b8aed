//! Attention KV in eight or four bits: smaller by two to seven times, and no longer the KV that was computed.
//!
//! A piece is `[2, heads, tokens, head_dim]`, keys first. It is cut into *tiles*: the values of one head for up to
//! [`group`] tokens. Within a tile the keys of one *channel* form a group, and the values of one *token* do (up to
//! [`group`] channels at a time): outliers of keys stay in their channels, those of values in their tokens (KIVI,
//! arXiv 2402.02750), so each group has a narrow range of its own. A group is written as its lowest value and its step,
//! both in half precision, and one code a value: `value ≈ lowest + step × code`. The lowest value is rounded down and
//! the step up, so no value lies outside, and each comes back within half a step.
//!
//! | coded piece, tile by tile, keys before values | bytes |
//! |---|---|
//! | lowest value and step of each group, `f16`, little endian | 4 a group |
//! | codes, row by row | 1 a value; for four bits two values a byte, the first in the low half |
//!
//! Coding is deterministic. A piece stays as it is where coding gains nothing (a token or two), or where a value is no
//! number or beyond ±65504: whoever reads a piece tells by its size which it is, since a coded piece is always smaller.
//!
//! Recurrent states are never coded. Attention reads each quantised key and value as it was stored; a recurrence feeds
//! its state into itself at every token, so an error put into it once is carried along and grows with the answer, and
//! a state is small beside the KV of the prompts that are worth sending.

mod tile;

#[cfg(test)]
mod tests;

use half::f16;
use portolan_base::kv::{KvDtype, KvLayout, KvQuant, LayerKv, PieceId};
use tile::{PARAMS_BYTES, code_bytes};

/// Values that share a lowest value and a step. Four bits leave 16 steps, so a narrower range pays for itself; at eight
/// bits it would not.
pub const fn group(quant: KvQuant) -> usize {
    match quant {
        KvQuant::Int8 => 64,
        KvQuant::Int4 => 32,
    }
}

/// Why bytes are not a coded piece.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// Another size than the piece's shape calls for.
    #[error("a quantised piece has {got} bytes, its shape calls for {expected}")]
    Size {
        /// Bytes found.
        got: usize,
        /// Bytes expected.
        expected: usize,
    },
    /// A group begins or steps by something that is no number.
    #[error("a group of a quantised piece begins at {lowest} and steps by {step}")]
    Params {
        /// Its lowest value.
        lowest: f32,
        /// Its step.
        step: f32,
    },
}

/// Whose values a group holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Keys: one channel of all tokens of the tile.
    Keys,
    /// Values: some channels of one token.
    Values,
}

/// The shape of an attention piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceShape {
    dtype: KvDtype,
    heads: usize,
    tokens: usize,
    head_dim: usize,
}

impl PieceShape {
    /// The shape of `piece`; `None` for a recurrent state, an empty piece, and a layer that does not exist.
    pub fn of(layout: &KvLayout, piece: &PieceId) -> Option<Self> {
        let Some(LayerKv::FullAttention { kv_heads, head_dim }) = layout.layers.get(usize::from(piece.layer))
        else {
            return None;
        };
        let shape = Self {
            dtype: layout.dtype,
            heads: *kv_heads as usize,
            tokens: piece.len().0 as usize,
            head_dim: *head_dim as usize,
        };
        // A coded piece has four bytes a value and more at worst: nothing below counts beyond what fits.
        (1..usize::MAX / 16)
            .contains(&shape.plain_len()?)
            .then_some(shape)
    }

    /// Bytes of the piece as it was computed; `None` when they cannot be counted.
    pub fn plain_len(&self) -> Option<usize> {
        let values = self.heads.checked_mul(self.tokens)?.checked_mul(self.head_dim)?;
        values.checked_mul(2 * self.dtype.size() as usize)
    }

    /// Bytes of the piece when coded; `None` when that would not be fewer.
    pub fn coded_len(&self, quant: KvQuant) -> Option<usize> {
        let plain = self.plain_len()?;
        let head: usize = [Side::Keys, Side::Values]
            .into_iter()
            .flat_map(|side| {
                self.tiles(quant)
                    .map(move |tokens| self.tile_len(quant, side, tokens))
            })
            .sum();
        let coded = self.heads.checked_mul(head)?;
        (coded < plain).then_some(coded)
    }

    /// Codes a piece; `None` when it has to stay as it is, or is not of this shape.
    pub fn encode(&self, quant: KvQuant, plain: &[u8]) -> Option<Vec<u8>> {
        let coded_len = self.coded_len(quant)?;
        if plain.len() != self.plain_len()? {
            return None;
        }
        let mut out = Vec::with_capacity(coded_len);
        let mut values = Vec::new();
        let mut rest = plain;
        for side in [Side::Keys, Side::Values] {
            for _ in 0..self.heads {
                for tokens in self.tiles(quant) {
                    let (tile, after) = rest.split_at(tokens * self.row_len());
                    rest = after;
                    read(self.dtype, tile, &mut values);
                    tile::encode(quant, side, self.head_dim, &values, &mut out)?;
                }
            }
        }
        Some(out)
    }

    /// Makes a piece of what [`PieceShape::encode`] made of it.
    ///
    /// # Errors
    /// When `coded` was not made from a piece of this shape.
    pub fn decode(&self, quant: KvQuant, coded: &[u8]) -> Result<Vec<u8>, QuantError> {
        let expected = self.coded_len(quant).unwrap_or(0);
        if coded.len() != expected {
            let got = coded.len();
            return Err(QuantError::Size { got, expected });
        }
        let mut out = Vec::with_capacity(self.plain_len().unwrap_or(0));
        let mut values = Vec::new();
        let mut rest = coded;
        for side in [Side::Keys, Side::Values] {
            for _ in 0..self.heads {
                for tokens in self.tiles(quant) {
                    let (tile, after) = rest.split_at(self.tile_len(quant, side, tokens));
                    rest = after;
                    values.clear();
                    values.resize(tokens * self.head_dim, 0.0);
                    tile::decode(quant, side, self.head_dim, tile, &mut values)?;
                    write(self.dtype, &values, &mut out);
                }
            }
        }
        Ok(out)
    }

    /// Bytes of one token of one head, plain.
    fn row_len(&self) -> usize {
        self.head_dim * self.dtype.size() as usize
    }

    /// Tokens of each tile of a head.
    fn tiles(&self, quant: KvQuant) -> impl Iterator<Item = usize> + use<> {
        let (tokens, group) = (self.tokens, group(quant));
        (0..tokens.div_ceil(group)).map(move |tile| group.min(tokens - tile * group))
    }

    fn tile_len(&self, quant: KvQuant, side: Side, tokens: usize) -> usize {
        let groups = match side {
            Side::Keys => self.head_dim,
            Side::Values => tokens * self.head_dim.div_ceil(group(quant)),
        };
        groups * PARAMS_BYTES + code_bytes(quant, tokens * self.head_dim)
    }
}

fn read(dtype: KvDtype, bytes: &[u8], values: &mut Vec<f32>) {
    values.clear();
    match dtype {
        KvDtype::F32 => values.extend(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))),
        KvDtype::Bf16 => values.extend(
            bytes
                .as_chunks()
                .0
                .iter()
                .map(|b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16)),
        ),
        KvDtype::F16 => values.extend(
            bytes
                .as_chunks()
                .0
                .iter()
                .map(|b| f16::from_le_bytes(*b).to_f32()),
        ),
    }
}

fn write(dtype: KvDtype, values: &[f32], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + values.len() * dtype.size() as usize, 0);
    let place = &mut out[start..];
    match dtype {
        KvDtype::F32 => {
            for (bytes, v) in place.as_chunks_mut().0.iter_mut().zip(values) {
                *bytes = v.to_le_bytes();
            }
        }
        KvDtype::Bf16 => {
            for (bytes, v) in place.as_chunks_mut().0.iter_mut().zip(values) {
                *bytes = nearest_bf16(*v).to_le_bytes();
            }
        }
        KvDtype::F16 => {
            for (bytes, v) in place.as_chunks_mut().0.iter_mut().zip(values) {
                // The step beyond the largest number would be infinite.
                let v = v.clamp(f16::MIN.to_f32(), f16::MAX.to_f32());
                *bytes = f16::from_f32(v).to_le_bytes();
            }
        }
    }
}

/// The bits of the nearest bfloat16, ties to even. What is written is always a number, so there is no branch for what is
/// not, and the loop becomes vector instructions.
fn nearest_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}
