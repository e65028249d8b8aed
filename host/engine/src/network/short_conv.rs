//! The short convolution of LFM2: each channel is a weighted sum of its last few inputs, gated before and after.

use super::state::HostRecurrent;
use crate::kernel::Rows;
use crate::kernel::delta_rule::convolve;
use crate::kernel::linear::Linear;
use portolan_base::kv::LayerKv;
use std::ops::Range;

/// One convolution layer's weights.
#[derive(Debug)]
pub(crate) struct ShortConv {
    /// The gate before, the gate after and the values, side by side.
    pub(crate) input: Linear,
    /// `[channels, width]`.
    pub(crate) conv: Vec<f32>,
    pub(crate) output: Linear,
    pub(crate) channels: usize,
}

impl ShortConv {
    /// The last inputs, and no memory beside them.
    pub(crate) fn kv(&self) -> LayerKv {
        LayerKv::Recurrent {
            conv_channels: self.channels as u32,
            conv_width: (self.conv.len() / self.channels) as u32,
            heads: 0,
            key_dim: 0,
            value_dim: 0,
        }
    }

    /// Runs the rows of `x` through the states of the sequences whose they are, in order.
    pub(crate) fn forward(&self, x: &Rows, states: &mut [(Range<usize>, &mut HostRecurrent)]) -> Rows {
        let projected = self.input.forward(x);
        let mut out = Rows::zeros(x.len(), self.channels);
        let mut gated = vec![0.0; self.channels];
        for (rows, state) in states {
            for row in rows.clone() {
                let (before, rest) = projected.row(row).split_at(self.channels);
                let (after, values) = rest.split_at(self.channels);
                for ((g, b), v) in gated.iter_mut().zip(before).zip(values) {
                    *g = b * v;
                }
                let out = out.row_mut(row);
                convolve(&mut state.conv, &self.conv, &gated, out);
                for (o, gate) in out.iter_mut().zip(after) {
                    *o *= gate;
                }
            }
        }
        self.output.forward(&out)
    }
}
