//! The gated delta net as tensors. Products are one for all rows; the memory takes one token after the other, since each
//! corrects what those before it wrote.

use super::layer::{matrix, normed, product, vector};
use super::recurrent::{Recurrent, RecurrentShape, TensorRecurrent};
use super::short_conv::columns;
use crate::network::config::DeltaNetConfig;
use crate::network::delta_net::{DeltaNet, L2_EPSILON};
use candle_core::{D, Device, Error, Result, Tensor};
use candle_nn::ops::sigmoid;
use std::ops::Range;

/// The weights of [`DeltaNet`].
#[derive(Debug)]
pub(super) struct TensorDeltaNet {
    config: DeltaNetConfig,
    norm_epsilon: f32,
    qkv: Tensor,
    gate: Tensor,
    beta: Tensor,
    decay: Tensor,
    output: Tensor,
    /// `[width, channels]`.
    conv: Tensor,
    /// `-exp(A_log)`, one a head.
    rate: Tensor,
    decay_bias: Tensor,
    norm: Tensor,
}

/// What some tokens bring to every head.
struct Tokens {
    /// `[heads, tokens, key_dim]`.
    queries: Tensor,
    keys: Tensor,
    /// `[heads, tokens, value_dim]`.
    values: Tensor,
    /// `[heads, tokens, 1]`: what the memory is multiplied by before, and how much of the difference is written.
    kept: Tensor,
    beta: Tensor,
}

impl TensorDeltaNet {
    pub(super) fn new(host: &DeltaNet, on: &Device) -> Result<Self> {
        let rate: Vec<f32> = host.decay_log.iter().map(|log| -log.exp()).collect();
        Ok(Self {
            config: host.config,
            norm_epsilon: host.norm_epsilon,
            qkv: matrix(&host.qkv, on)?,
            gate: matrix(&host.gate, on)?,
            beta: matrix(&host.beta, on)?,
            decay: matrix(&host.decay, on)?,
            output: matrix(&host.output, on)?,
            conv: columns(&host.conv, host.config.channels(), on)?,
            rate: vector(&rate, on)?,
            decay_bias: vector(&host.decay_bias, on)?,
            norm: vector(&host.norm, on)?,
        })
    }

    pub(super) fn shape(&self) -> RecurrentShape {
        RecurrentShape {
            channels: self.config.channels(),
            width: self.config.conv_width,
            heads: self.config.value_heads,
            key_dim: self.config.key_dim,
            value_dim: self.config.value_dim,
        }
    }

    /// Runs the rows of `x` through the states of the sequences whose they are, in order.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        states: &mut [(Range<usize>, &mut TensorRecurrent)],
    ) -> Result<Tensor> {
        let (qkv, gate) = (product(x, &self.qkv)?, product(x, &self.gate)?);
        let beta = sigmoid(&product(x, &self.beta)?)?;
        let kept = self.kept(&product(x, &self.decay)?)?;
        let mut answers = Vec::with_capacity(states.len());
        for (rows, state) in states {
            let own = |all: &Tensor| all.narrow(0, rows.start, rows.len());
            let mut recurrent = state.get()?;
            let mixed = recurrent.convolve(&own(&qkv)?, &self.conv)?.silu()?;
            let tokens = self.tokens(&mixed, (&own(&kept)?, &own(&beta)?))?;
            answers.push(recall(&mut recurrent, &tokens)?);
            state.set(recurrent);
        }
        let heads = normed(&Tensor::cat(&answers, 0)?, &self.norm, self.norm_epsilon)?;
        let gated = (heads.reshape(gate.shape())? * gate.silu()?)?;
        product(&gated, &self.output)
    }

    /// How much of its memory each head keeps at each row.
    fn kept(&self, decay: &Tensor) -> Result<Tensor> {
        let x = decay.broadcast_add(&self.decay_bias)?;
        // Softplus, which would be infinite for large values if it were computed as it is written.
        let soft = (x.relu()? + (x.abs()?.neg()?.exp()? + 1.0)?.log()?)?;
        soft.broadcast_mul(&self.rate)?.exp()
    }

    fn tokens(&self, mixed: &Tensor, (kept, beta): (&Tensor, &Tensor)) -> Result<Tokens> {
        let DeltaNetConfig {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            ..
        } = self.config;
        let (rows, keys_at) = (mixed.dim(0)?, key_heads * key_dim);
        // Of a key head, for each value head that shares it.
        let of_key_heads = |at: usize| {
            let heads = mixed
                .narrow(1, at, keys_at)?
                .reshape((rows, key_heads, 1, key_dim))?;
            let shared = (rows, key_heads, value_heads / key_heads, key_dim);
            by_head(
                &unit(&heads)?
                    .broadcast_as(shared)?
                    .reshape((rows, value_heads, key_dim))?,
            )
        };
        let values = mixed.narrow(1, 2 * keys_at, value_heads * value_dim)?;
        let of_each = |all: &Tensor| by_head(&all.reshape((rows, value_heads, 1))?);
        Ok(Tokens {
            queries: (of_key_heads(0)? / (key_dim as f64).sqrt())?,
            keys: of_key_heads(keys_at)?,
            values: by_head(&values.reshape((rows, value_heads, value_dim))?)?,
            kept: of_each(kept)?,
            beta: of_each(beta)?,
        })
    }
}

/// Writes each token into the memory and reads its query's answer: `[tokens, heads, value_dim]`.
fn recall(state: &mut Recurrent, tokens: &Tokens) -> Result<Tensor> {
    let mut memory = state
        .memory
        .take()
        .ok_or_else(|| Error::msg("a delta net without a memory"))?;
    let count = tokens.keys.dim(1)?;
    let mut answers = Vec::with_capacity(count);
    for token in 0..count {
        let of = |all: &Tensor| all.narrow(1, token, 1)?.contiguous();
        let key = of(&tokens.keys)?;
        memory = memory.broadcast_mul(&of(&tokens.kept)?)?;
        let recalled = key.matmul(&memory)?;
        let correction = (of(&tokens.values)? - recalled)?.broadcast_mul(&of(&tokens.beta)?)?;
        memory = (memory + key.transpose(1, 2)?.broadcast_mul(&correction)?)?;
        answers.push(of(&tokens.queries)?.matmul(&memory)?);
    }
    state.memory = Some(memory);
    Tensor::cat(&answers, 1)?.transpose(0, 1)?.contiguous()
}

/// Heads of length one.
fn unit(heads: &Tensor) -> Result<Tensor> {
    let squares = heads.sqr()?.sum_keepdim(D::Minus1)?;
    heads.broadcast_div(&(squares + f64::from(L2_EPSILON))?.sqrt()?)
}

/// `[rows, heads, width]` as `[heads, rows, width]`.
fn by_head(rows: &Tensor) -> Result<Tensor> {
    rows.transpose(0, 1)?.contiguous()
}
