//! One layer of a model as tensors.

use super::delta_net::TensorDeltaNet;
use super::experts::TensorExperts;
use super::kv::TensorKv;
use super::places::Places;
use super::recurrent::TensorRecurrent;
use super::short_conv::TensorShortConv;
use crate::kernel::linear::Linear;
use crate::network::attention::Attention;
use crate::network::config::{AttentionConfig, OutputGate};
use crate::network::host::{FeedForward, Layer, Mixer};
use crate::network::mlp::Mlp;
use crate::network::state::{AttentionState, LayerState, RecurrentState};
use candle_core::{Device, Result, Tensor};
use candle_nn::ops::{rms_norm, sigmoid, softmax_last_dim};
use portolan_base::kv::LayerKv;
use std::ops::Range;

/// The shape of a layer's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KvShape {
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
}

/// Mixer and feed-forward network, each behind a norm.
#[derive(Debug)]
pub(super) struct TensorLayer {
    pub(super) mixer_norm: Tensor,
    pub(super) mixer: TensorMixer,
    pub(super) mlp_norm: Tensor,
    pub(super) mlp: TensorFeedForward,
}

/// The weights of [`Mixer`].
#[derive(Debug)]
pub(super) enum TensorMixer {
    Attention(TensorAttention),
    DeltaNet(TensorDeltaNet),
    ShortConv(TensorShortConv),
}

/// The weights of [`FeedForward`].
#[derive(Debug)]
pub(super) enum TensorFeedForward {
    Dense(TensorMlp),
    Experts(TensorExperts),
}

/// The weights of [`Attention`].
#[derive(Debug)]
pub(super) struct TensorAttention {
    config: AttentionConfig,
    norm_epsilon: f32,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    query_norm: Option<Tensor>,
    key_norm: Option<Tensor>,
}

/// The weights of [`Mlp`].
#[derive(Debug)]
pub(super) struct TensorMlp {
    gate: Tensor,
    up: Tensor,
    down: Tensor,
}

impl TensorLayer {
    /// Copies a layer to a device.
    pub(super) fn new(layer: &Layer, on: &Device) -> Result<Self> {
        Ok(Self {
            mixer_norm: vector(&layer.mixer_norm, on)?,
            mixer: match &layer.mixer {
                Mixer::Attention(attention) => TensorMixer::Attention(TensorAttention::new(attention, on)?),
                Mixer::DeltaNet(delta) => TensorMixer::DeltaNet(TensorDeltaNet::new(delta, on)?),
                Mixer::ShortConv(conv) => TensorMixer::ShortConv(TensorShortConv::new(conv, on)?),
            },
            mlp_norm: vector(&layer.mlp_norm, on)?,
            mlp: match &layer.mlp {
                FeedForward::Dense(mlp) => TensorFeedForward::Dense(TensorMlp::new(mlp, on)?),
                FeedForward::Experts(experts) => TensorFeedForward::Experts(TensorExperts::new(experts, on)?),
            },
        })
    }

    /// What it keeps.
    pub(super) fn kv(&self) -> LayerKv {
        match &self.mixer {
            TensorMixer::Attention(attention) => attention.shape().kv(),
            TensorMixer::DeltaNet(delta) => delta.shape().kv(),
            TensorMixer::ShortConv(conv) => conv.shape().kv(),
        }
    }

    /// What it keeps before the first token.
    pub(super) fn fresh_state(&self, device: &Device) -> LayerState {
        let recurrent = |shape| {
            let state = TensorRecurrent::new(device.clone(), shape);
            LayerState::Recurrent(RecurrentState::Tensors(state))
        };
        match &self.mixer {
            TensorMixer::Attention(attention) => {
                let state = TensorKv::new(device.clone(), attention.shape());
                LayerState::Attention(AttentionState::Tensors(state))
            }
            TensorMixer::DeltaNet(delta) => recurrent(delta.shape()),
            TensorMixer::ShortConv(conv) => recurrent(conv.shape()),
        }
    }
}

impl KvShape {
    fn kv(self) -> LayerKv {
        LayerKv::FullAttention {
            kv_heads: self.kv_heads as u32,
            head_dim: self.head_dim as u32,
        }
    }
}

impl TensorFeedForward {
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(mlp) => mlp.forward(x),
            Self::Experts(experts) => experts.forward(x),
        }
    }
}

impl TensorAttention {
    fn new(host: &Attention, on: &Device) -> Result<Self> {
        let norm = |weight: &Option<Vec<f32>>| weight.as_deref().map(|weight| vector(weight, on)).transpose();
        Ok(Self {
            config: host.config,
            norm_epsilon: host.norm_epsilon,
            query: matrix(&host.query, on)?,
            key: matrix(&host.key, on)?,
            value: matrix(&host.value, on)?,
            output: matrix(&host.output, on)?,
            query_norm: norm(&host.query_norm)?,
            key_norm: norm(&host.key_norm)?,
        })
    }

    pub(super) fn shape(&self) -> KvShape {
        let AttentionConfig {
            kv_heads, head_dim, ..
        } = self.config;
        KvShape { kv_heads, head_dim }
    }

    /// Appends the keys and values of `x` (`[rows, hidden]`) to the states of the sequences whose rows they are, and
    /// attends to all of each.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        places: &Places,
        states: &mut [(Range<usize>, &mut TensorKv)],
    ) -> Result<Tensor> {
        let AttentionConfig {
            kv_heads, head_dim, ..
        } = self.config;
        let heads = (x.dim(0)?, kv_heads, head_dim);
        let (queries, gate) = self.queries(x)?;
        let keys = product(x, &self.key)?.reshape(heads)?;
        let values = product(x, &self.value)?.reshape(heads)?;
        let queries = places.rotate(&self.head_normed(queries, &self.query_norm)?)?;
        let keys = places.rotate(&self.head_normed(keys, &self.key_norm)?)?;
        let new = Tensor::cat(&[keys, values.transpose(0, 1)?.contiguous()?], 0)?;
        let mut mixed = Vec::with_capacity(states.len());
        for (index, (rows, state)) in states.iter_mut().enumerate() {
            state.append(&new.narrow(1, rows.start, rows.len())?)?;
            let own = queries.narrow(1, rows.start, rows.len())?;
            mixed.push(self.attend(&own, state, places.mask(index))?);
        }
        let mut mixed = Tensor::cat(&mixed, 0)?;
        if let Some(gate) = gate {
            mixed = (mixed * sigmoid(&gate)?)?;
        }
        product(&mixed, &self.output)
    }

    /// Queries, `[rows, heads, head_dim]`, and the gates, `[rows, heads * head_dim]`, that alternate with them head by
    /// head where there are any.
    fn queries(&self, x: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
        let AttentionConfig { heads, head_dim, .. } = self.config;
        let rows = x.dim(0)?;
        let projected = product(x, &self.query)?;
        match self.config.gate {
            OutputGate::Absent => Ok((projected.reshape((rows, heads, head_dim))?, None)),
            OutputGate::Sigmoid => {
                let both = projected.reshape((rows, heads, 2, head_dim))?;
                let half = |at| both.narrow(2, at, 1)?.squeeze(2)?.contiguous();
                Ok((half(0)?, Some(half(1)?.reshape((rows, heads * head_dim))?)))
            }
        }
    }

    fn head_normed(&self, heads: Tensor, weight: &Option<Tensor>) -> Result<Tensor> {
        match weight {
            Some(weight) => normed(&heads, weight, self.norm_epsilon),
            None => Ok(heads),
        }
    }

    /// Attention of `[heads, rows, head_dim]` queries, the last of a sequence, to all of it; `[rows, heads * head_dim]`.
    /// Query heads share key/value heads in groups, whose rows are multiplied together.
    fn attend(&self, queries: &Tensor, state: &TensorKv, mask: Option<&Tensor>) -> Result<Tensor> {
        let AttentionConfig {
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.config;
        let rows = queries.dim(1)?;
        let (keys, values) = state.keys_values()?;
        let (group, tokens) = (heads / kv_heads, keys.dim(1)?);
        let queries = queries
            .contiguous()?
            .reshape((kv_heads, group * rows, head_dim))?;
        let scale = 1.0 / (head_dim as f64).sqrt();
        let mut scores = (queries.matmul(&keys.t()?)? * scale)?;
        if let Some(mask) = mask {
            let by_query = scores.reshape((kv_heads, group, rows, tokens))?;
            scores = by_query
                .broadcast_add(mask)?
                .reshape((kv_heads, group * rows, tokens))?;
        }
        let mixed = softmax_last_dim(&scores)?.matmul(&values)?;
        let by_row = mixed.reshape((heads, rows, head_dim))?.transpose(0, 1)?;
        by_row.contiguous()?.reshape((rows, heads * head_dim))
    }
}

impl TensorMlp {
    pub(super) fn new(host: &Mlp, on: &Device) -> Result<Self> {
        Ok(Self {
            gate: matrix(&host.gate, on)?,
            up: matrix(&host.up, on)?,
            down: matrix(&host.down, on)?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let gated = (product(x, &self.gate)?.silu()? * product(x, &self.up)?)?;
        product(&gated, &self.down)
    }
}

/// `x · Wᵀ`, of rows and a matrix as checkpoints store it.
pub(super) fn product(x: &Tensor, weights: &Tensor) -> Result<Tensor> {
    x.matmul(&weights.t()?)
}

pub(super) fn normed(x: &Tensor, weight: &Tensor, epsilon: f32) -> Result<Tensor> {
    rms_norm(x, weight, epsilon)
}

pub(super) fn matrix(linear: &Linear, on: &Device) -> Result<Tensor> {
    Tensor::from_vec(linear.floats(), (linear.outputs(), linear.inputs()), on)
}

pub(super) fn vector(values: &[f32], on: &Device) -> Result<Tensor> {
    Tensor::from_slice(values, values.len(), on)
}
