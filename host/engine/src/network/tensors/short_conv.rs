//! The short convolution of LFM2 as tensors.

use super::layer::{matrix, product};
use super::recurrent::{RecurrentShape, TensorRecurrent};
use crate::network::short_conv::ShortConv;
use candle_core::{Device, Result, Tensor};
use std::ops::Range;

/// The weights of [`ShortConv`].
#[derive(Debug)]
pub(super) struct TensorShortConv {
    input: Tensor,
    /// `[width, channels]`.
    conv: Tensor,
    output: Tensor,
    shape: RecurrentShape,
}

impl TensorShortConv {
    pub(super) fn new(host: &ShortConv, on: &Device) -> Result<Self> {
        Ok(Self {
            input: matrix(&host.input, on)?,
            conv: columns(&host.conv, host.channels, on)?,
            output: matrix(&host.output, on)?,
            shape: RecurrentShape {
                channels: host.channels,
                width: host.conv.len() / host.channels.max(1),
                heads: 0,
                key_dim: 0,
                value_dim: 0,
            },
        })
    }

    pub(super) fn shape(&self) -> RecurrentShape {
        self.shape
    }

    /// Runs the rows of `x` through the states of the sequences whose they are, in order.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        states: &mut [(Range<usize>, &mut TensorRecurrent)],
    ) -> Result<Tensor> {
        let channels = self.shape.channels;
        let projected = product(x, &self.input)?;
        let part = |index: usize| projected.narrow(1, index * channels, channels);
        let (gated, after) = ((part(0)? * part(2)?)?, part(1)?);
        let mut out = Vec::with_capacity(states.len());
        for (rows, state) in states {
            let mut own = state.get()?;
            out.push(own.convolve(&gated.narrow(0, rows.start, rows.len())?, &self.conv)?);
            state.set(own);
        }
        product(&(Tensor::cat(&out, 0)? * after)?, &self.output)
    }
}

/// The weights of a convolution, `[channels, width]`, as `[width, channels]`.
pub(super) fn columns(weights: &[f32], channels: usize, on: &Device) -> Result<Tensor> {
    let width = weights.len() / channels.max(1);
    Tensor::from_slice(weights, (channels, width), on)?
        .t()?
        .contiguous()
}
