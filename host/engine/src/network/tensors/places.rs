//! Where the rows of a pass lie in their sequences: their rotation, and what each may see. The same for all layers.

use crate::kernel::rope::{Rope, RopePairs};
use candle_core::{D, Device, Result, Tensor};
use candle_nn::rotary_emb::{rope, rope_i};
use std::ops::Range;

/// The positions of a pass.
#[derive(Debug)]
pub(super) struct Places {
    /// `[rows, pairs]`.
    cosines: Tensor,
    sines: Tensor,
    /// Values of a head that are rotated.
    width: usize,
    pairs: RopePairs,
    /// One a sequence, where a row is not to see some of what is there.
    masks: Vec<Option<Tensor>>,
}

impl Places {
    /// Of sequences whose rows come one below the other, each at these positions.
    pub(super) fn new(rope: &Rope, sequences: &[Range<usize>], on: &Device) -> Result<Self> {
        let rotation = rope.at(sequences.iter().cloned().flatten());
        let (width, pairs) = rope.shape();
        let (sines, cosines): (Vec<f32>, Vec<f32>) = rotation.angles().iter().copied().unzip();
        let rows = sequences.iter().map(ExactSizeIterator::len).sum();
        let shape: (usize, usize) = (rows, width / 2);
        Ok(Self {
            cosines: Tensor::from_vec(cosines, shape, on)?,
            sines: Tensor::from_vec(sines, shape, on)?,
            width,
            pairs,
            masks: sequences
                .iter()
                .map(|rows| mask(rows, on))
                .collect::<Result<_>>()?,
        })
    }

    /// What the rows of sequence number `index` may not see, to be added to their scores.
    pub(super) fn mask(&self, index: usize) -> Option<&Tensor> {
        self.masks.get(index).and_then(Option::as_ref)
    }

    /// Rotates `[rows, heads, head_dim]` to its positions; `[heads, rows, head_dim]`.
    pub(super) fn rotate(&self, heads: &Tensor) -> Result<Tensor> {
        let heads = heads.transpose(0, 1)?.contiguous()?;
        let rest = heads.dim(D::Minus1)? - self.width;
        if rest == 0 {
            return self.rotated(&heads);
        }
        let first = self.rotated(&heads.narrow(D::Minus1, 0, self.width)?.contiguous()?)?;
        Tensor::cat(&[first, heads.narrow(D::Minus1, self.width, rest)?], D::Minus1)
    }

    fn rotated(&self, heads: &Tensor) -> Result<Tensor> {
        let batch = heads.unsqueeze(0)?;
        let rotated = match self.pairs {
            RopePairs::Halves => rope(&batch, &self.cosines, &self.sines),
            RopePairs::Adjacent => rope_i(&batch, &self.cosines, &self.sines),
        };
        rotated?.squeeze(0)
    }
}

/// `[rows, tokens]`: nothing for what a row sees, everything below for what comes after it. The last row sees all.
fn mask(rows: &Range<usize>, on: &Device) -> Result<Option<Tensor>> {
    if rows.len() <= 1 {
        return Ok(None);
    }
    let tokens = rows.end;
    let values: Vec<f32> = rows
        .clone()
        .flat_map(|row| (0..tokens).map(move |token| if token <= row { 0.0 } else { f32::NEG_INFINITY }))
        .collect();
    Tensor::from_vec(values, (rows.len(), tokens), on).map(Some)
}
