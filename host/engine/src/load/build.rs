//! A network from its configuration and its weights.

use super::LoadError;
use super::weights::Weights;
use crate::kernel::linear::Linear;
use crate::kernel::rope::Rope;
use crate::kernel::weights::Weights as Matrix;
use crate::network::Network;
use crate::network::attention::Attention;
use crate::network::config::{
    AttentionConfig, DeltaNetConfig, DeltaNetFile, ExpertsConfig, LayerKind, NetworkConfig, NormWeight,
    OutputGate, OutputHead, QkNorm, TensorNames,
};
use crate::network::delta_net::DeltaNet;
use crate::network::experts::{Experts, Picking};
use crate::network::host::{FeedForward, HostNetwork, Layer, Mixer};
use crate::network::mlp::Mlp;
use crate::network::short_conv::ShortConv;
use std::ops::Range;
use std::path::Path;

/// Where the language model's tensors begin: alone, or inside a checkpoint that also sees images.
const PREFIXES: [&str; 2] = ["model.", "model.language_model."];

/// Reads every tensor that `config` asks for.
pub(super) fn build(path: &Path, config: NetworkConfig, weights: &dyn Weights) -> Result<Network, LoadError> {
    let embedding_name = |prefix: &&str| weights.has(&format!("{prefix}embed_tokens.weight"));
    let prefix = PREFIXES.into_iter().find(embedding_name).unwrap_or(PREFIXES[0]);
    let builder = Builder {
        path,
        config: &config,
        weights,
        named: match config.names {
            TensorNames::Llama => LLAMA,
            TensorNames::Lfm2 => LFM2,
        },
    };
    let embedding = builder.linear(
        &format!("{prefix}embed_tokens.weight"),
        config.vocabulary,
        config.hidden,
    )?;
    let own_head = || builder.linear("lm_head.weight", config.vocabulary, config.hidden);
    let head = match config.head {
        OutputHead::Own => own_head()?,
        OutputHead::OwnIfPresent if weights.has("lm_head.weight") => own_head()?,
        OutputHead::OwnIfPresent | OutputHead::Embedding => embedding.clone(),
    };
    let layers = config
        .layers
        .iter()
        .enumerate()
        .map(|(index, kind)| builder.layer(&format!("{prefix}layers.{index}."), (index, *kind)))
        .collect::<Result<_, _>>()?;
    let norm = builder.norm(
        &format!("{prefix}{}.weight", builder.named.last_norm),
        config.hidden,
    )?;
    let rope = &config.rope;
    let rope = Rope::new(rope.theta, rope.width, rope.pairs, rope.scaling);
    let norm_epsilon = config.norm_epsilon;
    let layers = HostNetwork {
        layers,
        norm,
        norm_epsilon,
        head,
        rope,
    };
    Ok(Network::new(config, embedding, layers))
}

struct Builder<'a> {
    path: &'a Path,
    config: &'a NetworkConfig,
    weights: &'a dyn Weights,
    named: Named,
}

/// What the tensors of a layer are called.
struct Named {
    mixer_norm: &'static str,
    mlp_norm: &'static str,
    mlp: &'static str,
    /// Gate, up and down.
    mlp_parts: (&'static str, &'static str, &'static str),
    attention_output: &'static str,
    /// Of queries and of keys.
    head_norms: (&'static str, &'static str),
    last_norm: &'static str,
}

const LLAMA: Named = Named {
    mixer_norm: "input_layernorm",
    mlp_norm: "post_attention_layernorm",
    mlp: "mlp.",
    mlp_parts: ("gate_proj", "up_proj", "down_proj"),
    attention_output: "o_proj",
    head_norms: ("q_norm", "k_norm"),
    last_norm: "norm",
};

const LFM2: Named = Named {
    mixer_norm: "operator_norm",
    mlp_norm: "ffn_norm",
    mlp: "feed_forward.",
    mlp_parts: ("w1", "w3", "w2"),
    attention_output: "out_proj",
    head_norms: ("q_layernorm", "k_layernorm"),
    last_norm: "embedding_norm",
};

impl Builder<'_> {
    fn layer(&self, at: &str, (index, kind): (usize, LayerKind)) -> Result<Layer, LoadError> {
        let hidden = self.config.hidden;
        let named = &self.named;
        Ok(Layer {
            mixer_norm: self.norm(&format!("{at}{}.weight", named.mixer_norm), hidden)?,
            mixer: self.mixer(at, kind)?,
            mlp_norm: self.norm(&format!("{at}{}.weight", named.mlp_norm), hidden)?,
            mlp: match self.config.experts {
                Some(experts) if !self.config.dense_layers.contains(&index) => {
                    FeedForward::Experts(self.experts(&format!("{at}mlp."), experts)?)
                }
                _ => FeedForward::Dense(self.mlp(&format!("{at}{}", named.mlp), self.config.intermediate)?),
            },
        })
    }

    fn mixer(&self, at: &str, kind: LayerKind) -> Result<Mixer, LoadError> {
        match (kind, self.config.delta_net, self.config.short_conv) {
            (LayerKind::DeltaNet, Some(delta), _) => self
                .delta_net(&format!("{at}linear_attn."), delta)
                .map(Mixer::DeltaNet),
            (LayerKind::ShortConv, _, Some(width)) => self
                .short_conv(&format!("{at}conv."), width)
                .map(Mixer::ShortConv),
            _ => self
                .attention(&format!("{at}self_attn."), self.config.attention)
                .map(Mixer::Attention),
        }
    }

    fn mlp(&self, at: &str, intermediate: usize) -> Result<Mlp, LoadError> {
        let hidden = self.config.hidden;
        let (gate, up, down) = self.named.mlp_parts;
        Ok(Mlp {
            gate: self.linear(&format!("{at}{gate}.weight"), intermediate, hidden)?,
            up: self.linear(&format!("{at}{up}.weight"), intermediate, hidden)?,
            down: self.linear(&format!("{at}{down}.weight"), hidden, intermediate)?,
        })
    }

    fn experts(&self, at: &str, config: ExpertsConfig) -> Result<Experts, LoadError> {
        let hidden = self.config.hidden;
        let expert = |number| self.mlp(&format!("{at}experts.{number}."), config.intermediate);
        Ok(Experts {
            router: self.linear(&format!("{at}gate.weight"), config.count, hidden)?,
            experts: (0..config.count).map(expert).collect::<Result<_, _>>()?,
            picking: Picking {
                per_token: config.per_token,
                weights: config.weights,
            },
            shared: self.mlp(&format!("{at}shared_expert."), config.shared_intermediate)?,
            shared_gate: self.linear(&format!("{at}shared_expert_gate.weight"), 1, hidden)?,
        })
    }

    fn attention(&self, at: &str, config: AttentionConfig) -> Result<Attention, LoadError> {
        let hidden = self.config.hidden;
        let (queries, keys) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let projected = match config.gate {
            OutputGate::Absent => queries,
            OutputGate::Sigmoid => 2 * queries,
        };
        let head_norm = |name: &str| match config.qk_norm {
            QkNorm::Absent => Ok(None),
            QkNorm::PerHead => self
                .norm(&format!("{at}{name}.weight"), config.head_dim)
                .map(Some),
        };
        let (query_norm, key_norm) = self.named.head_norms;
        Ok(Attention {
            config,
            norm_epsilon: self.config.norm_epsilon,
            query: self.linear(&format!("{at}q_proj.weight"), projected, hidden)?,
            key: self.linear(&format!("{at}k_proj.weight"), keys, hidden)?,
            value: self.linear(&format!("{at}v_proj.weight"), keys, hidden)?,
            output: self.linear(
                &format!("{at}{}.weight", self.named.attention_output),
                hidden,
                queries,
            )?,
            query_norm: head_norm(query_norm)?,
            key_norm: head_norm(key_norm)?,
        })
    }

    fn short_conv(&self, at: &str, width: usize) -> Result<ShortConv, LoadError> {
        let channels = self.config.hidden;
        Ok(ShortConv {
            input: self.linear(&format!("{at}in_proj.weight"), 3 * channels, channels)?,
            conv: self.vector(&format!("{at}conv.weight"), &[channels, 1, width])?,
            output: self.linear(&format!("{at}out_proj.weight"), channels, channels)?,
            channels,
        })
    }

    fn delta_net(&self, at: &str, config: DeltaNetConfig) -> Result<DeltaNet, LoadError> {
        let hidden = self.config.hidden;
        let DeltaNetConfig {
            value_heads,
            value_dim,
            conv_width,
            ..
        } = config;
        let (channels, values) = (config.channels(), value_heads * value_dim);
        let [qkv, gate, beta, decay] = match config.file {
            DeltaNetFile::Flat => [
                self.linear(&format!("{at}in_proj_qkv.weight"), channels, hidden)?,
                self.linear(&format!("{at}in_proj_z.weight"), values, hidden)?,
                self.linear(&format!("{at}in_proj_b.weight"), value_heads, hidden)?,
                self.linear(&format!("{at}in_proj_a.weight"), value_heads, hidden)?,
            ],
            DeltaNetFile::ByKeyHead => self.projections_by_key_head(at, config)?,
        };
        Ok(DeltaNet {
            config,
            norm_epsilon: self.config.norm_epsilon,
            qkv,
            gate,
            beta,
            decay,
            output: self.linear(&format!("{at}out_proj.weight"), hidden, values)?,
            conv: self.vector(&format!("{at}conv1d.weight"), &[channels, 1, conv_width])?,
            decay_log: self.vector(&format!("{at}A_log"), &[value_heads])?,
            decay_bias: self.vector(&format!("{at}dt_bias"), &[value_heads])?,
            norm: self.vector(&format!("{at}norm.weight"), &[value_dim])?,
        })
    }

    /// Two matrices as four: queries, keys and values; gates; beta; decay. Each key head's rows in the first are its
    /// query, its key, then the values and the gates of the value heads that share it; in the second their beta and decay.
    fn projections_by_key_head(&self, at: &str, config: DeltaNetConfig) -> Result<[Linear; 4], LoadError> {
        let (hidden, heads) = (self.config.hidden, config.key_heads);
        let sharing = config.value_heads / heads;
        let (key, value) = (config.key_dim, sharing * config.value_dim);
        let wide = self.weights.matrix(
            &format!("{at}in_proj_qkvz.weight"),
            [config.channels() + config.value_heads * config.value_dim, hidden],
        )?;
        let narrow_name = format!("{at}in_proj_ba.weight");
        let narrow = self
            .weights
            .matrix(&narrow_name, [2 * config.value_heads, hidden])?;
        let of_each = |stride: usize, start: usize, len: usize| -> Vec<Range<usize>> {
            (0..heads)
                .map(|head| head * stride + start..head * stride + start + len)
                .collect()
        };
        let all = 2 * key + 2 * value;
        let qkv = [
            of_each(all, 0, key),
            of_each(all, key, key),
            of_each(all, 2 * key, value),
        ]
        .concat();
        let picked = |from: &Matrix, rows: &[Range<usize>]| {
            Linear::new(from.pick(hidden, rows), hidden).ok_or_else(|| self.not_whole(at))
        };
        Ok([
            picked(&wide, &qkv)?,
            picked(&wide, &of_each(all, 2 * key + value, value))?,
            picked(&narrow, &of_each(2 * sharing, 0, sharing))?,
            picked(&narrow, &of_each(2 * sharing, sharing, sharing))?,
        ])
    }

    fn linear(&self, name: &str, outputs: usize, inputs: usize) -> Result<Linear, LoadError> {
        let weights = self.weights.matrix(name, [outputs, inputs])?;
        Linear::new(weights, inputs).ok_or_else(|| self.not_whole(name))
    }

    fn not_whole(&self, name: &str) -> LoadError {
        LoadError::Format {
            path: self.path.to_owned(),
            reason: format!("tensor `{name}` does not hold whole rows of weights"),
        }
    }

    /// A norm's weight as it is multiplied with.
    fn norm(&self, name: &str, width: usize) -> Result<Vec<f32>, LoadError> {
        let mut weight = self.vector(name, &[width])?;
        if self.config.norm_weight == NormWeight::OffsetByOne {
            weight.iter_mut().for_each(|w| *w += 1.0);
        }
        Ok(weight)
    }

    fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        self.weights.vector(name, shape)
    }
}
