//! The forward pass: a stack of layers whose state goes in and out layer by layer.

pub(crate) mod attention;
pub(crate) mod config;
pub(crate) mod delta_net;
pub(crate) mod experts;
pub(crate) mod mlp;
pub(crate) mod short_conv;
pub(crate) mod state;

use crate::kernel::linear::Linear;
use crate::kernel::rope::{Rope, Rotation};
use crate::kernel::{Rows, rms_norm};
use attention::Attention;
use config::NetworkConfig;
use delta_net::DeltaNet;
use experts::Experts;
use mlp::Mlp;
use portolan_base::kv::LayerKv;
use short_conv::ShortConv;
use state::{LayerState, SequenceState};
use std::ops::{ControlFlow, Range};

/// Why a forward pass ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForwardError {
    /// The observer of the layers said stop.
    #[error("the job was cancelled")]
    Cancelled,
    /// The state was made for another model.
    #[error("the state of layer {0} is of another kind than the layer")]
    State(usize),
}

/// Sees a layer's state of a sequence as soon as it is complete; may stop the pass.
pub(crate) type Observer<'a> = dyn FnMut(usize, &LayerState) -> ControlFlow<()> + Send + 'a;

/// Some rows of a pass: tokens of one sequence, which follow those already in its state.
struct Part<'a> {
    rows: Range<usize>,
    state: &'a mut SequenceState,
}

/// A token mixer.
#[derive(Debug)]
pub(crate) enum Mixer {
    /// Softmax attention over all tokens so far.
    Attention(Attention),
    /// A recurrent state of fixed size.
    DeltaNet(DeltaNet),
    /// The last few inputs.
    ShortConv(ShortConv),
}

/// What follows the mixer.
#[derive(Debug)]
pub(crate) enum FeedForward {
    /// One network for every token.
    Dense(Mlp),
    /// A few of many, picked for each token.
    Experts(Experts),
}

impl FeedForward {
    fn forward(&self, x: &Rows) -> Rows {
        match self {
            Self::Dense(mlp) => mlp.forward(x),
            Self::Experts(experts) => experts.forward(x),
        }
    }
}

/// One layer: mixer and feed-forward network, each behind a norm and added to the residual stream.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) mixer_norm: Vec<f32>,
    pub(crate) mixer: Mixer,
    pub(crate) mlp_norm: Vec<f32>,
    pub(crate) mlp: FeedForward,
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
            Mixer::ShortConv(conv) => conv.kv(),
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
        observe: &mut Observer<'_>,
    ) -> Result<Rows, ForwardError> {
        let rows = 0..tokens.len();
        on_all_threads(|| self.pass(self.embed(tokens), &mut [Part { rows, state }], observe))
    }

    /// Runs one token of each of several sequences, given by its embedding, and returns the logits after each. What one
    /// sequence gets does not depend on the others. `observe` sees each layer's state of each sequence, and may stop the
    /// pass; the states are then unusable.
    pub(crate) fn step(
        &self,
        inputs: Rows,
        states: Vec<&mut SequenceState>,
        observe: &mut Observer<'_>,
    ) -> Result<Rows, ForwardError> {
        let part = |(row, state)| Part {
            rows: row..row + 1,
            state,
        };
        let mut parts: Vec<Part<'_>> = states.into_iter().enumerate().map(part).collect();
        on_all_threads(|| {
            let stream = self.pass(inputs, &mut parts, observe)?;
            Ok(self.head.forward(&self.normed(&stream, &self.norm)))
        })
    }

    /// The logits of every row of the residual stream.
    pub(crate) fn logits(&self, stream: &Rows) -> Rows {
        on_all_threads(|| self.head.forward(&self.normed(stream, &self.norm)))
    }

    /// The rows that tokens enter the first layer as.
    ///
    /// # Panics
    /// When a token is beyond the embedding table; jobs are checked against the vocabulary before they come here.
    pub(crate) fn embed(&self, tokens: &[u32]) -> Rows {
        let mut values = Vec::with_capacity(tokens.len() * self.config.hidden);
        for token in tokens {
            values.extend(self.embedding.weight_row(*token as usize));
        }
        Rows::new(values, self.config.hidden)
    }

    /// All layers, over the rows of several sequences.
    fn pass(
        &self,
        mut stream: Rows,
        parts: &mut [Part<'_>],
        observe: &mut Observer<'_>,
    ) -> Result<Rows, ForwardError> {
        let positions = parts.iter().flat_map(|part| {
            part.rows
                .clone()
                .map(|row| part.state.tokens + row - part.rows.start)
        });
        let rotation = self.rope.at(positions);
        for (index, layer) in self.layers.iter().enumerate() {
            let input = self.normed(&stream, &layer.mixer_norm);
            stream.add(&mix(index, layer, &input, &rotation, parts)?);
            for part in &*parts {
                if observe(index, &part.state.layers[index]).is_break() {
                    return Err(ForwardError::Cancelled);
                }
            }
            let input = self.normed(&stream, &layer.mlp_norm);
            stream.add(&layer.mlp.forward(&input));
        }
        for part in parts {
            part.state.tokens += part.rows.len();
        }
        Ok(stream)
    }

    fn normed(&self, stream: &Rows, weight: &[f32]) -> Rows {
        let mut out = stream.clone();
        for row in out.rows_mut() {
            rms_norm(row, weight, self.config.norm_epsilon);
        }
        out
    }
}

/// The mixer of layer number `index`, each sequence's rows with its own state.
fn mix(
    index: usize,
    layer: &Layer,
    input: &Rows,
    rotation: &Rotation,
    parts: &mut [Part<'_>],
) -> Result<Rows, ForwardError> {
    let kept = parts.iter_mut().map(|part| {
        let state = &mut part.state.layers[index];
        (part.rows.clone(), state)
    });
    match &layer.mixer {
        Mixer::Attention(attention) => {
            let own = kept.map(|(rows, state)| match state {
                LayerState::Attention(state) => Ok((rows, state)),
                LayerState::Recurrent(_) => Err(ForwardError::State(index)),
            });
            let mut states = own.collect::<Result<Vec<_>, _>>()?;
            Ok(attention.forward(input, rotation, &mut states))
        }
        Mixer::DeltaNet(_) | Mixer::ShortConv(_) => {
            let own = kept.map(|(rows, state)| match state {
                LayerState::Recurrent(state) => Ok((rows, state)),
                LayerState::Attention(_) => Err(ForwardError::State(index)),
            });
            let mut states = own.collect::<Result<Vec<_>, _>>()?;
            match &layer.mixer {
                Mixer::ShortConv(conv) => Ok(conv.forward(input, &mut states)),
                Mixer::DeltaNet(delta) => Ok(delta.forward(input, &mut states)),
                Mixer::Attention(_) => Err(ForwardError::State(index)),
            }
        }
    }
}

/// Runs `work` on a thread of the pool: from outside, each product would put this thread to sleep and wake another.
fn on_all_threads<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    rayon::scope(|_| work())
}
