//! The forward pass by the crate's own kernels, on the processor.

use super::attention::Attention;
use super::delta_net::DeltaNet;
use super::experts::Experts;
use super::mlp::Mlp;
use super::short_conv::ShortConv;
use super::state::{AttentionState, LayerState, RecurrentState};
use super::{ForwardError, Observer, Part};
use crate::kernel::linear::Linear;
use crate::kernel::rope::{Rope, Rotation};
use crate::kernel::{Rows, rms_norm};
use portolan_base::kv::LayerKv;

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

/// The layers of a network and what follows them.
#[derive(Debug)]
pub(crate) struct HostNetwork {
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: Vec<f32>,
    pub(crate) norm_epsilon: f32,
    pub(crate) head: Linear,
    pub(crate) rope: Rope,
}

impl HostNetwork {
    /// What each layer keeps, in order.
    pub(super) fn layer_kv(&self) -> Vec<LayerKv> {
        let kv = |layer: &Layer| match &layer.mixer {
            Mixer::Attention(attention) => attention.kv(),
            Mixer::DeltaNet(delta) => delta.kv(),
            Mixer::ShortConv(conv) => conv.kv(),
        };
        self.layers.iter().map(kv).collect()
    }

    /// All layers, over the rows of several sequences; the residual stream after the last.
    pub(super) fn pass(
        &self,
        stream: Rows,
        parts: &mut [Part<'_>],
        observe: &mut Observer<'_>,
    ) -> Result<Rows, ForwardError> {
        on_all_threads(|| self.layers(stream, parts, observe))
    }

    /// The logits of every row of the residual stream.
    pub(super) fn logits(&self, stream: &Rows) -> Rows {
        on_all_threads(|| self.head.forward(&self.normed(stream, &self.norm)))
    }

    fn layers(
        &self,
        mut stream: Rows,
        parts: &mut [Part<'_>],
        observe: &mut Observer<'_>,
    ) -> Result<Rows, ForwardError> {
        let rotation = self.rope.at(parts.iter().flat_map(Part::positions));
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
            rms_norm(row, weight, self.norm_epsilon);
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
                LayerState::Attention(AttentionState::Host(state)) => Ok((rows, state)),
                LayerState::Attention(AttentionState::Tensors(_)) | LayerState::Recurrent(_) => {
                    Err(ForwardError::State(index))
                }
            });
            let mut states = own.collect::<Result<Vec<_>, _>>()?;
            Ok(attention.forward(input, rotation, &mut states))
        }
        Mixer::DeltaNet(_) | Mixer::ShortConv(_) => {
            let own = kept.map(|(rows, state)| match state {
                LayerState::Recurrent(RecurrentState::Host(state)) => Ok((rows, state)),
                LayerState::Recurrent(RecurrentState::Tensors(_)) | LayerState::Attention(_) => {
                    Err(ForwardError::State(index))
                }
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
