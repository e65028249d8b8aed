//! One tile: groups of values become a lowest value, a step and codes, and back.

use super::{QuantError, Side, group};
use half::f16;
use portolan_base::kv::KvQuant;

/// Bytes of a group's lowest value and step.
pub(super) const PARAMS_BYTES: usize = 4;

/// Adding this to a number from 0 to 2^22 leaves its nearest integer in the low bits of the sum: rounding without a
/// branch or a call, so that the loop over a row becomes vector instructions.
const ROUND: f32 = 12_582_912.0;

/// Partial results kept side by side over a row, as wide as a vector register.
const LANES: usize = 8;

/// Bytes that the codes of so many values take.
pub(super) const fn code_bytes(quant: KvQuant, values: usize) -> usize {
    match quant {
        KvQuant::Int8 => values,
        KvQuant::Int4 => values.div_ceil(2),
    }
}

/// The highest code.
const fn top(quant: KvQuant) -> f32 {
    match quant {
        KvQuant::Int8 => 255.0,
        KvQuant::Int4 => 15.0,
    }
}

/// Where a group begins and how it steps, as the reader will see it.
#[derive(Clone, Copy, Debug, Default)]
struct Params {
    lowest: f32,
    step: f32,
}

impl Params {
    /// The parameters of a group whose values lie between `low` and `high`.
    fn of(low: f32, high: f32, quant: KvQuant, out: &mut Vec<u8>) -> Self {
        let lowest = rounded_down(low);
        let step = rounded_up((high - lowest.to_f32()) / top(quant));
        out.extend_from_slice(&lowest.to_le_bytes());
        out.extend_from_slice(&step.to_le_bytes());
        Self {
            lowest: lowest.to_f32(),
            step: step.to_f32(),
        }
    }

    fn read(bytes: [u8; PARAMS_BYTES]) -> Result<Self, QuantError> {
        let [a, b, c, d] = bytes;
        let lowest = f16::from_le_bytes([a, b]).to_f32();
        let step = f16::from_le_bytes([c, d]).to_f32();
        if lowest.is_finite() && step.is_finite() && step >= 0.0 {
            Ok(Self { lowest, step })
        } else {
            Err(QuantError::Params { lowest, step })
        }
    }

    fn inverse(self) -> f32 {
        if self.step > 0.0 { 1.0 / self.step } else { 0.0 }
    }
}

/// Appends a tile of rows of `width` values; `None` when one of them is no number or too large.
pub(super) fn encode(
    quant: KvQuant,
    side: Side,
    width: usize,
    values: &[f32],
    out: &mut Vec<u8>,
) -> Option<()> {
    // Bits without their sign order as magnitudes do, and whatever is no number lies above all of them.
    let largest = values
        .iter()
        .fold(0u32, |max, v| max.max(v.to_bits() & 0x7fff_ffff));
    if largest > f16::MAX.to_f32().to_bits() {
        return None;
    }
    let mut codes = Vec::with_capacity(values.len());
    match side {
        Side::Keys => encode_by_channel(quant, width, values, (out, &mut codes)),
        Side::Values => encode_by_token(quant, width, values, (out, &mut codes)),
    }
    match quant {
        KvQuant::Int8 => out.extend_from_slice(&codes),
        KvQuant::Int4 => {
            let (pairs, odd) = codes.as_chunks::<2>();
            let start = out.len();
            out.resize(start + pairs.len(), 0);
            for (packed, [low, high]) in out[start..].iter_mut().zip(pairs) {
                *packed = low | (high << 4);
            }
            out.extend_from_slice(odd);
        }
    }
    Some(())
}

fn encode_by_channel(
    quant: KvQuant,
    width: usize,
    values: &[f32],
    (out, codes): (&mut Vec<u8>, &mut Vec<u8>),
) {
    let (mut low, mut high) = (values[..width].to_vec(), values[..width].to_vec());
    for row in values.chunks_exact(width) {
        for ((low, high), v) in low.iter_mut().zip(&mut high).zip(row) {
            *low = lesser(*low, *v);
            *high = greater(*high, *v);
        }
    }
    let groups: Vec<_> = low
        .iter()
        .zip(&high)
        .map(|(low, high)| Params::of(*low, *high, quant, out))
        .collect();
    let (lowest, inverse): (Vec<_>, Vec<_>) = groups.iter().map(|g| (g.lowest, g.inverse())).unzip();
    for row in values.chunks_exact(width) {
        let columns = row.iter().zip(&lowest).zip(&inverse);
        codes.extend(columns.map(|((v, lowest), inverse)| code((v - lowest) * inverse, top(quant))));
    }
}

fn encode_by_token(quant: KvQuant, width: usize, values: &[f32], (out, codes): (&mut Vec<u8>, &mut Vec<u8>)) {
    for row in values.chunks_exact(width) {
        for part in row.chunks(group(quant)) {
            let (low, high) = bounds(part);
            let params = Params::of(low, high, quant, out);
            let inverse = params.inverse();
            codes.extend(
                part.iter()
                    .map(|v| code((v - params.lowest) * inverse, top(quant))),
            );
        }
    }
}

/// Fills `values`, rows of `width`, from a tile of the right size.
pub(super) fn decode(
    quant: KvQuant,
    side: Side,
    width: usize,
    tile: &[u8],
    values: &mut [f32],
) -> Result<(), QuantError> {
    let (params, packed) = tile.split_at(tile.len() - code_bytes(quant, values.len()));
    let (mut lowest, mut step) = (Vec::new(), Vec::new());
    for bytes in params.as_chunks::<PARAMS_BYTES>().0 {
        let group = Params::read(*bytes)?;
        lowest.push(group.lowest);
        step.push(group.step);
    }
    let unpacked;
    let codes = match quant {
        KvQuant::Int8 => packed,
        KvQuant::Int4 => {
            unpacked = unpack(packed);
            &unpacked
        }
    };
    let rows = values.chunks_exact_mut(width).zip(codes.chunks_exact(width));
    match side {
        Side::Keys => {
            for (row, codes) in rows {
                for (((v, code), lowest), step) in row.iter_mut().zip(codes).zip(&lowest).zip(&step) {
                    *v = lowest + step * f32::from(*code);
                }
            }
        }
        Side::Values => {
            let mut groups = lowest.iter().zip(&step);
            for (row, codes) in rows {
                let parts = row.chunks_mut(group(quant)).zip(codes.chunks(group(quant)));
                for ((part, codes), (lowest, step)) in parts.zip(groups.by_ref()) {
                    for (v, code) in part.iter_mut().zip(codes) {
                        *v = lowest + step * f32::from(*code);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Two codes a byte, the first in the low half; one more than there were when their number is odd.
fn unpack(packed: &[u8]) -> Vec<u8> {
    let mut codes = vec![0; packed.len() * 2];
    for (pair, byte) in codes.as_chunks_mut::<2>().0.iter_mut().zip(packed) {
        *pair = [byte & 15, byte >> 4];
    }
    codes
}

/// The nearest code; `steps` is not negative.
fn code(steps: f32, top: f32) -> u8 {
    (lesser(steps, top) + ROUND).to_bits() as u8
}

/// As `f32::min` for numbers, in one instruction.
fn lesser(a: f32, b: f32) -> f32 {
    if b < a { b } else { a }
}

fn greater(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// The lowest and the highest of some values, of which there is at least one.
fn bounds(values: &[f32]) -> (f32, f32) {
    let (mut low, mut high) = ([values[0]; LANES], [values[0]; LANES]);
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            low[i] = lesser(low[i], chunk[i]);
            high[i] = greater(high[i], chunk[i]);
        }
    }
    let all = |lanes: [f32; LANES], pick: fn(f32, f32) -> f32| {
        lanes.iter().chain(rest).copied().fold(values[0], pick)
    };
    (all(low, lesser), all(high, greater))
}

/// The greatest `f16` that is not above `value`.
fn rounded_down(value: f32) -> f16 {
    let near = f16::from_f32(value);
    if near.to_f32() <= value {
        return near;
    }
    match near.to_bits() {
        // Below both zeros comes the smallest negative number.
        0x0000 | 0x8000 => f16::from_bits(0x8001),
        bits if near.is_sign_positive() => f16::from_bits(bits - 1),
        bits => f16::from_bits(bits + 1),
    }
}

/// The least `f16` that is not below `value`, which is not negative.
fn rounded_up(value: f32) -> f16 {
    let near = f16::from_f32(value);
    if near.to_f32() >= value {
        near
    } else {
        f16::from_bits(near.to_bits() + 1)
    }
}
