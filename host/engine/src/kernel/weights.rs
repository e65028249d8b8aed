//! Weights as they lie in memory, and their way into 32-bit floats, a few rows at a time.

use super::strip::vectorised;
use super::unpack::unpack;
use std::ops::Range;

/// Weights that share one scale and one offset.
pub(crate) const GROUP: usize = 32;

/// A matrix, row-major, each row as wide as the inputs.
#[derive(Clone, Debug)]
pub(crate) enum Weights {
    /// As they are multiplied.
    F32(Vec<f32>),
    /// The upper half of a 32-bit float.
    Bf16(Vec<u16>),
    /// Whole numbers of eight bits with a scale and an offset for each [`GROUP`].
    Grouped(Grouped),
}

/// `weight = scale × code + offset`: what the 4-, 5- and 8-bit formats of GGUF files with groups of 32 store, in a form
/// that vector instructions read. Nothing is rounded on the way: a code has at most 8 bits and a scale 11, so that their
/// product is exact.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grouped {
    pub(crate) codes: Vec<i8>,
    /// A scale and an offset for each group.
    pub(crate) scales: Vec<(f32, f32)>,
}

impl Weights {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(values) => values.len(),
            Self::Grouped(grouped) => grouped.codes.len(),
        }
    }

    /// Some rows of a matrix whose rows are `inputs` wide, in the order given.
    pub(crate) fn pick(&self, inputs: usize, rows: &[Range<usize>]) -> Self {
        fn parts<T: Clone>(values: &[T], width: usize, rows: &[Range<usize>]) -> Vec<T> {
            let part = |row: &Range<usize>| values[row.start * width..row.end * width].to_vec();
            rows.iter().flat_map(part).collect()
        }
        match self {
            Self::F32(values) => Self::F32(parts(values, inputs, rows)),
            Self::Bf16(values) => Self::Bf16(parts(values, inputs, rows)),
            Self::Grouped(grouped) => Self::Grouped(Grouped {
                codes: parts(&grouped.codes, inputs, rows),
                scales: parts(&grouped.scales, inputs / GROUP, rows),
            }),
        }
    }

    /// Some of them as floats: themselves, or converted into `scratch`. Of grouped weights whole groups.
    #[inline]
    pub(crate) fn floats<'a>(&'a self, start: usize, len: usize, scratch: &'a mut Vec<f32>) -> &'a [f32] {
        match self {
            Self::F32(values) => &values[start..][..len],
            Self::Bf16(values) => {
                scratch.resize(len, 0.0);
                let values = &values[start..][..len];
                vectorised(|| {
                    for (out, half) in scratch.iter_mut().zip(values) {
                        *out = f32::from_bits(u32::from(*half) << 16);
                    }
                });
                scratch
            }
            Self::Grouped(grouped) => {
                scratch.resize(len, 0.0);
                let codes = &grouped.codes[start..][..len];
                unpack(codes, &grouped.scales[start / GROUP..], scratch);
                scratch
            }
        }
    }
}

impl Grouped {
    /// Adds a group whose codes are the two halves of each byte, the lower halves first.
    pub(crate) fn push_nibbles(&mut self, nibbles: &[u8], (scale, offset): (f32, f32)) {
        self.codes.extend(nibbles.iter().map(|byte| (byte & 15) as i8));
        self.codes.extend(nibbles.iter().map(|byte| (byte >> 4) as i8));
        self.scales.push((scale, offset));
    }

    /// Adds a group of signed codes.
    pub(crate) fn push_bytes(&mut self, codes: &[u8], scale: f32) {
        self.codes.extend(codes.iter().map(|byte| byte.cast_signed()));
        self.scales.push((scale, 0.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_gives_its_floats_back() {
        let mut scratch = Vec::new();
        let mut grouped = Grouped::default();
        grouped.push_nibbles(&std::array::from_fn::<u8, 16, _>(|i| i as u8 | 0x30), (0.5, -1.0));
        grouped.push_bytes(&[0xFF; 32], 2.0);
        let grouped = Weights::Grouped(grouped);
        assert_eq!(grouped.len(), 64);
        let floats = grouped.floats(0, 64, &mut scratch);
        assert_eq!((floats[0], floats[5], floats[15]), (-1.0, 1.5, 6.5));
        assert_eq!((floats[16], floats[31], floats[40]), (0.5, 0.5, -2.0));
        assert_eq!(grouped.floats(32, 32, &mut scratch), [-2.0; 32]);
        let turned = grouped.pick(32, &[1..2, 0..1]);
        assert_eq!(turned.floats(0, 64, &mut scratch)[31..33], [-2.0, -1.0]);
        let half = Weights::Bf16(vec![0x3F80, 0xC000]);
        assert_eq!(half.floats(0, 2, &mut scratch), [1.0, -2.0]);
    }
}
