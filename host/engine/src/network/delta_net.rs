//! The gated delta net of Qwen3.5: a short convolution, then a memory per head that each token decays, corrects and
//! reads.

use super::config::DeltaNetConfig;
use super::state::HostRecurrent;
use crate::kernel::delta_rule::{DeltaInput, convolve, delta_step};
use crate::kernel::linear::{Linear, forward_all};
use crate::kernel::{Rows, l2_norm, rms_norm, sigmoid, silu, softplus};
use portolan_base::kv::LayerKv;
use rayon::prelude::*;
use std::ops::Range;

/// Added to the squared length of a query or key before its root is taken; the reference implementation's value.
pub(crate) const L2_EPSILON: f32 = 1e-6;

/// One recurrent layer's weights.
#[derive(Debug)]
pub(crate) struct DeltaNet {
    pub(crate) config: DeltaNetConfig,
    pub(crate) norm_epsilon: f32,
    /// Queries, keys and values, side by side.
    pub(crate) qkv: Linear,
    /// The output gate.
    pub(crate) gate: Linear,
    /// How much of a token each head writes.
    pub(crate) beta: Linear,
    /// How much of its memory each head keeps.
    pub(crate) decay: Linear,
    pub(crate) output: Linear,
    /// `[channels, conv_width]`.
    pub(crate) conv: Vec<f32>,
    /// `A_log`, one a head.
    pub(crate) decay_log: Vec<f32>,
    /// `dt_bias`, one a head.
    pub(crate) decay_bias: Vec<f32>,
    /// Weight of the norm of each head's output.
    pub(crate) norm: Vec<f32>,
}

impl DeltaNet {
    pub(crate) fn kv(&self) -> LayerKv {
        let DeltaNetConfig {
            value_heads,
            key_dim,
            value_dim,
            conv_width,
            ..
        } = self.config;
        LayerKv::Recurrent {
            conv_channels: self.config.channels() as u32,
            conv_width: conv_width as u32,
            heads: value_heads as u32,
            key_dim: key_dim as u32,
            value_dim: value_dim as u32,
        }
    }

    /// Runs the rows of `x` through the states of the sequences whose they are, in order.
    pub(crate) fn forward(&self, x: &Rows, states: &mut [(Range<usize>, &mut HostRecurrent)]) -> Rows {
        let [qkv, gate, beta, decay] = forward_all([&self.qkv, &self.gate, &self.beta, &self.decay], x);
        let value_dim = self.config.value_dim;
        let mut heads = Rows::new(Vec::with_capacity(gate.values().len()), gate.width());
        for (rows, state) in states {
            let mixed = self.convolved(&qkv.part(rows), &mut state.conv);
            let (beta, decay) = (beta.part(rows), decay.part(rows));
            heads.append(&self.recur(&mixed, &beta, &decay, &mut state.memory));
        }
        for (head, gate) in heads
            .values_mut()
            .chunks_exact_mut(value_dim)
            .zip(gate.values().chunks_exact(value_dim))
        {
            rms_norm(head, &self.norm, self.norm_epsilon);
            for (h, g) in head.iter_mut().zip(gate) {
                *h *= silu(*g);
            }
        }
        self.output.forward(&heads)
    }

    /// Convolves each token's channels; query and key heads come out with length one, queries scaled for the memory.
    fn convolved(&self, qkv: &Rows, state: &mut [f32]) -> Rows {
        let DeltaNetConfig {
            key_heads, key_dim, ..
        } = self.config;
        let scale = 1.0 / (key_dim as f32).sqrt();
        let mut out = Rows::zeros(qkv.len(), qkv.width());
        for (input, row) in qkv.rows().zip(out.rows_mut()) {
            convolve(state, &self.conv, input, row);
            row.iter_mut().for_each(|x| *x = silu(*x));
            for (i, head) in row[..2 * key_heads * key_dim]
                .chunks_exact_mut(key_dim)
                .enumerate()
            {
                l2_norm(head, L2_EPSILON);
                if i < key_heads {
                    head.iter_mut().for_each(|q| *q *= scale);
                }
            }
        }
        out
    }

    /// Every head's answers, `[tokens, heads * value_dim]`. Heads are independent and run side by side.
    fn recur(&self, mixed: &Rows, beta: &Rows, decay: &Rows, memory: &mut [f32]) -> Rows {
        let DeltaNetConfig {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            ..
        } = self.config;
        let (keys_at, values_at) = (key_heads * key_dim, 2 * key_heads * key_dim);
        let answers = |(head, memory): (usize, &mut [f32])| {
            let key_head = head / (value_heads / key_heads) * key_dim;
            let rate = -self.decay_log[head].exp();
            let mut out = vec![0.0; mixed.len() * value_dim];
            for (i, (row, out)) in mixed.rows().zip(out.chunks_exact_mut(value_dim)).enumerate() {
                let token = DeltaInput {
                    query: &row[key_head..][..key_dim],
                    key: &row[keys_at + key_head..][..key_dim],
                    value: &row[values_at + head * value_dim..][..value_dim],
                    decay: (rate * softplus(decay.row(i)[head] + self.decay_bias[head])).exp(),
                    beta: sigmoid(beta.row(i)[head]),
                };
                delta_step(memory, token, out);
            }
            out
        };
        let by_head: Vec<Vec<f32>> = memory
            .par_chunks_mut(key_dim * value_dim)
            .enumerate()
            .map(answers)
            .collect();
        let mut out = Rows::zeros(mixed.len(), value_heads * value_dim);
        for (i, row) in out.rows_mut().enumerate() {
            for (slot, head) in row.chunks_exact_mut(value_dim).zip(&by_head) {
                slot.copy_from_slice(&head[i * value_dim..][..value_dim]);
            }
        }
        out
    }
}
