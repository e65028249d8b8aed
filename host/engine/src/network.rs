//! The forward pass: a stack of layers whose state goes in and out layer by layer.

pub(crate) mod attention;
pub(crate) mod config;
pub(crate) mod delta_net;
pub(crate) mod mlp;
pub(crate) mod state;

use crate::kernel::linear::Linear;
use crate::kernel::rope::Rope;
use crate::kernel::{Rows, rms_norm};
use attention::Attention;
use config::NetworkConfig;
use delta_net::DeltaNet;
use mlp::Mlp;
use portolan_base::kv::LayerKv;
use state::{LayerState, SequenceState};
use std::ops::ControlFlow;

/// Why a forward pass ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForwardError {
    /// The observer of the layers said stop.
    #[error("the job was cancelled")]
    Cancelled,
    /// The state was made for another model.
    #[error("the state of layer {0} is of another kind than the layer")]
    State(usize),
    /// The tensor library failed.
    #[error("the tensor library failed")]
    Tensor(#[source] Box<candle_core::Error>),
}

impl From<candle_core::Error> for ForwardError {
    fn from(error: candle_core::Error) -> Self {
        Self::Tensor(Box::new(error))
    }
}

/// A token mixer.
#[derive(Debug)]
pub(crate) enum Mixer {
    /// Softmax attention over all tokens so far.
    Attention(Attention),
    /// A recurrent state of fixed size.
    DeltaNet(DeltaNet),
}

/// One layer: mixer and feed-forward network, each behind a norm and added to the residual stream.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) mixer_norm: Vec<f32>,
    pub(crate) mixer: Mixer,
    pub(crate) mlp_norm: Vec<f32>,
    pub(crate) mlp: Mlp,
}

/// A transformer with its weights.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) config: NetworkConfig,
    pub(crate) embedding: Linear,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: Vec<f32>,
    pub(crate) head: Linear,
    pub(crate) rope: Rope,
}

impl Network {
    /// What each layer keeps, in order.
    pub(crate) fn layer_kv(&self) -> Vec<LayerKv> {
        let kv = |layer: &Layer| match &layer.mixer {
            Mixer::Attention(attention) => attention.kv(),
            Mixer::DeltaNet(delta) => delta.kv(),
        };
        self.layers.iter().map(kv).collect()
    }

    /// The state before the first token.
    pub(crate) fn fresh_state(&self) -> SequenceState {
        SequenceState::new(&self.layer_kv(), self.config.window)
    }

    /// Runs `tokens`, which follow those already in `state`, and returns the residual stream after the last layer.
    /// `observe` sees each layer's state as soon as it is complete, and may stop the pass; `state` is then unusable.
    pub(crate) fn run(
        &self,
        tokens: &[u32],
        state: &mut SequenceState,
        observe: &mut dyn FnMut(usize, &LayerState) -> ControlFlow<()>,
    ) -> Result<Rows, ForwardError> {
        let mut stream = self.embed(tokens)?;
        let start = state.tokens;
        let rotation = self.rope.at(start, tokens.len());
        for (index, (layer, kept)) in self.layers.iter().zip(&mut state.layers).enumerate() {
            let input = self.normed(&stream, &layer.mixer_norm);
            let mixed = match (&layer.mixer, &mut *kept) {
                (Mixer::Attention(attention), LayerState::Attention(kept)) => {
                    attention.forward(&input, &rotation, kept)?
                }
                (Mixer::DeltaNet(delta), LayerState::Recurrent(kept)) => delta.forward(&input, kept)?,
                _ => return Err(ForwardError::State(index)),
            };
            if observe(index, kept).is_break() {
                return Err(ForwardError::Cancelled);
            }
            stream.add(&mixed);
            let input = self.normed(&stream, &layer.mlp_norm);
            stream.add(&layer.mlp.forward(&input)?);
        }
        state.tokens += tokens.len();
        Ok(stream)
    }

    /// The logits of one row of the residual stream.
    pub(crate) fn logits(&self, row: &[f32]) -> Result<Vec<f32>, ForwardError> {
        let last = self.normed(&Rows::new(row.to_vec(), row.len()), &self.norm);
        Ok(self.head.forward(&last)?.values().to_vec())
    }

    /// The logits of every row of the residual stream.
    pub(crate) fn all_logits(&self, stream: &Rows) -> Result<Rows, ForwardError> {
        Ok(self.head.forward(&self.normed(stream, &self.norm))?)
    }

    fn embed(&self, tokens: &[u32]) -> Result<Rows, ForwardError> {
        let mut values = Vec::with_capacity(tokens.len() * self.config.hidden);
        for token in tokens {
            values.extend(self.embedding.weight_row(*token as usize)?);
        }
        Ok(Rows::new(values, self.config.hidden))
    }

    fn normed(&self, stream: &Rows, weight: &[f32]) -> Rows {
        let mut out = stream.clone();
        for row in out.rows_mut() {
            rms_norm(row, weight, self.config.norm_epsilon);
        }
        out
    }
}
