//! What a network looks like, read from a Hugging Face `config.json` or from GGUF metadata.

use super::experts::ExpertWeights;
use crate::kernel::rope::{RopePairs, RopeScaling};
use portolan_base::kv::KvWindow;

/// How a norm's weight is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NormWeight {
    /// As it is used.
    Plain,
    /// Less one.
    OffsetByOne,
}

/// Whether queries and keys are normalised head by head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QkNorm {
    /// They are not.
    Absent,
    /// By an RMS norm of the head's width.
    PerHead,
}

/// Whether the query projection also yields a gate for the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputGate {
    /// It does not.
    Absent,
    /// The second half of each head's projection gates the output through a sigmoid.
    Sigmoid,
}

/// Which matrix makes the logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputHead {
    /// One of its own.
    Own,
    /// The embedding.
    Embedding,
    /// One of its own where the weights have it, else the embedding: GGUF does not say which.
    OwnIfPresent,
}

/// What mixes the tokens of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerKind {
    /// Softmax attention.
    Attention,
    /// Gated delta net.
    DeltaNet,
    /// Short convolution.
    ShortConv,
}

/// How the projections of a delta net lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeltaNetFile {
    /// Each a matrix of its own, or queries, keys and values one below the other.
    Flat,
    /// In two matrices, whose rows belong to one key head after the other.
    ByKeyHead,
}

/// Shapes of the feed-forward networks of layers that have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpertsConfig {
    pub(crate) count: usize,
    pub(crate) per_token: usize,
    pub(crate) intermediate: usize,
    pub(crate) shared_intermediate: usize,
    pub(crate) weights: ExpertWeights,
}

/// What a checkpoint calls its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorNames {
    /// As Llama and Qwen do.
    Llama,
    /// As LFM2 does.
    Lfm2,
}

/// Shapes of the attention layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AttentionConfig {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) qk_norm: QkNorm,
    pub(crate) gate: OutputGate,
}

/// Shapes of the recurrent layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeltaNetConfig {
    pub(crate) key_heads: usize,
    pub(crate) value_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) conv_width: usize,
    pub(crate) file: DeltaNetFile,
}

impl DeltaNetConfig {
    /// Channels of the convolution: queries, keys and values side by side.
    pub(crate) fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }
}

/// Rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RopeConfig {
    pub(crate) theta: f32,
    /// Values of a head that are rotated.
    pub(crate) width: usize,
    pub(crate) pairs: RopePairs,
    pub(crate) scaling: RopeScaling,
}

/// A whole network.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NetworkConfig {
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) vocabulary: usize,
    /// Longest prompt and answer together.
    pub(crate) context: usize,
    pub(crate) norm_epsilon: f32,
    pub(crate) norm_weight: NormWeight,
    pub(crate) head: OutputHead,
    pub(crate) rope: RopeConfig,
    pub(crate) attention: AttentionConfig,
    /// What attention looks at; none: every token so far. Not the model's own: the operator's choice.
    pub(crate) window: Option<KvWindow>,
    /// Present when any layer is of [`LayerKind::DeltaNet`].
    pub(crate) delta_net: Option<DeltaNetConfig>,
    /// Columns of the convolution of layers of [`LayerKind::ShortConv`].
    pub(crate) short_conv: Option<usize>,
    pub(crate) layers: Vec<LayerKind>,
    pub(crate) experts: Option<ExpertsConfig>,
    /// Layers with one feed-forward network though the model has experts.
    pub(crate) dense_layers: Vec<usize>,
    pub(crate) names: TensorNames,
}
