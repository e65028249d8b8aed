//! `config.json` of a Hugging Face checkpoint.

use super::LoadError;
use crate::kernel::rope::{RopePairs, RopeScaling};
use crate::network::config::{
    AttentionConfig, DeltaNetConfig, DeltaNetFile, ExpertsConfig, LayerKind, NetworkConfig, NormWeight,
    OutputGate, OutputHead, QkNorm, RopeConfig, TensorNames,
};
use crate::network::experts::ExpertWeights;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// Base frequency of a rotary embedding when the configuration names none; the reference implementation's default.
const DEFAULT_ROPE_THETA: f32 = 10_000.0;

/// Token ids above this would not fit the range that the tokenizer and the wire use.
const VOCABULARY_MAX: usize = 1 << 24;

#[derive(Debug, Deserialize)]
struct Config {
    #[serde(default)]
    architectures: Vec<String>,
    /// The language model's part of a checkpoint that also sees images.
    text_config: Option<Value>,
    tie_word_embeddings: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct TextConfig {
    hidden_size: usize,
    intermediate_size: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: usize,
    #[serde(alias = "norm_eps")]
    rms_norm_eps: f32,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: Option<usize>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    use_sliding_window: bool,
    hidden_act: Option<String>,
    tie_word_embeddings: Option<bool>,
    tie_embedding: Option<bool>,
    rope_theta: Option<f32>,
    partial_rotary_factor: Option<f32>,
    rope_parameters: Option<RopeParameters>,
    rope_scaling: Option<RopeParameters>,
    layer_types: Option<Vec<String>>,
    linear_conv_kernel_dim: Option<usize>,
    linear_key_head_dim: Option<usize>,
    linear_value_head_dim: Option<usize>,
    linear_num_key_heads: Option<usize>,
    linear_num_value_heads: Option<usize>,
    num_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    shared_expert_intermediate_size: Option<usize>,
    norm_topk_prob: Option<bool>,
    decoder_sparse_step: Option<usize>,
    #[serde(default)]
    mlp_only_layers: Vec<usize>,
    full_attn_idxs: Option<Vec<usize>>,
    #[serde(rename = "conv_L_cache")]
    conv_columns: Option<usize>,
    #[serde(default)]
    conv_bias: bool,
    block_ff_dim: Option<usize>,
    #[serde(default)]
    block_auto_adjust_ff_dim: bool,
    block_ffn_dim_multiplier: Option<f64>,
    block_multiple_of: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
struct RopeParameters {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f32>,
    partial_rotary_factor: Option<f32>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Architecture {
    Llama,
    Qwen3,
    Qwen35,
    Qwen3Next,
    Lfm2,
}

impl Architecture {
    fn named(name: &str) -> Option<Self> {
        match name {
            "LlamaForCausalLM" => Some(Self::Llama),
            "Qwen3ForCausalLM" => Some(Self::Qwen3),
            "Qwen3_5ForCausalLM" | "Qwen3_5ForConditionalGeneration" => Some(Self::Qwen35),
            "Qwen3NextForCausalLM" => Some(Self::Qwen3Next),
            "Lfm2ForCausalLM" => Some(Self::Lfm2),
            _ => None,
        }
    }
}

/// Reads and checks `config.json`, whose text is `text`.
pub(super) fn parse(path: &Path, text: &str) -> Result<NetworkConfig, LoadError> {
    let malformed = |e: serde_json::Error| LoadError::Format {
        path: path.to_owned(),
        reason: e.to_string(),
    };
    let whole: Value = serde_json::from_str(text).map_err(malformed)?;
    let outer = Config::deserialize(&whole).map_err(malformed)?;
    let check = Check { path };
    let architecture = outer
        .architectures
        .iter()
        .find_map(|name| Architecture::named(name))
        .ok_or_else(|| {
            let found = outer.architectures.join(", ");
            check.setting(
                "architectures",
                format!(
                    "names [{found}]; LlamaForCausalLM, Qwen3ForCausalLM, Qwen3_5ForCausalLM, Qwen3NextForCausalLM and \
                     Lfm2ForCausalLM are supported"
                ),
            )
        })?;
    let config = TextConfig::deserialize(outer.text_config.as_ref().unwrap_or(&whole)).map_err(malformed)?;
    check.supported(&config)?;
    let layers = check.layers(&config)?;
    let attention = check.attention(&config, architecture)?;
    Ok(NetworkConfig {
        hidden: check.positive("hidden_size", config.hidden_size)?,
        intermediate: check.intermediate(&config, architecture)?,
        vocabulary: check.within("vocab_size", config.vocab_size, VOCABULARY_MAX)?,
        context: check.within(
            "max_position_embeddings",
            config.max_position_embeddings,
            u32::MAX as usize,
        )?,
        norm_epsilon: config.rms_norm_eps,
        norm_weight: match architecture {
            Architecture::Llama | Architecture::Qwen3 | Architecture::Lfm2 => NormWeight::Plain,
            Architecture::Qwen35 | Architecture::Qwen3Next => NormWeight::OffsetByOne,
        },
        head: match config
            .tie_word_embeddings
            .or(outer.tie_word_embeddings)
            .or(config.tie_embedding)
            .unwrap_or(architecture == Architecture::Lfm2)
        {
            true => OutputHead::Embedding,
            false => OutputHead::Own,
        },
        rope: check.rope(&config, attention.head_dim)?,
        attention,
        window: None,
        delta_net: match layers.contains(&LayerKind::DeltaNet) {
            true => Some(check.delta_net(&config, architecture)?),
            false => None,
        },
        short_conv: match layers.contains(&LayerKind::ShortConv) {
            true => Some(check.required("conv_L_cache", config.conv_columns)?),
            false => None,
        },
        experts: check.experts(&config, architecture)?,
        dense_layers: dense_layers(&config),
        names: match architecture {
            Architecture::Lfm2 => TensorNames::Lfm2,
            _ => TensorNames::Llama,
        },
        layers,
    })
}

/// Layers without experts: those named, and all but every so manieth.
fn dense_layers(config: &TextConfig) -> Vec<usize> {
    let step = config.decoder_sparse_step.unwrap_or(1).max(1);
    let skipped = (0..config.num_hidden_layers).filter(|index| !(index + 1).is_multiple_of(step));
    config.mlp_only_layers.iter().copied().chain(skipped).collect()
}

struct Check<'a> {
    path: &'a Path,
}

impl Check<'_> {
    fn setting(&self, key: &str, problem: String) -> LoadError {
        LoadError::Setting {
            path: self.path.to_owned(),
            key: key.to_owned(),
            problem,
        }
    }

    fn within(&self, key: &str, value: usize, max: usize) -> Result<usize, LoadError> {
        match value {
            0 => Err(self.setting(key, "is 0; it must be at least 1".to_owned())),
            v if v > max => Err(self.setting(key, format!("is {v}; at most {max} is supported"))),
            v => Ok(v),
        }
    }

    /// Sizes that are multiplied with each other: 2^20 is a hundred times the largest in use, and keeps products
    /// of three of them within 64 bits.
    fn positive(&self, key: &str, value: usize) -> Result<usize, LoadError> {
        self.within(key, value, 1 << 20)
    }

    fn required(&self, key: &str, value: Option<usize>) -> Result<usize, LoadError> {
        let value = value.ok_or_else(|| self.setting(key, "is missing".to_owned()))?;
        self.positive(key, value)
    }

    /// Refuses what the forward pass does not compute.
    fn supported(&self, config: &TextConfig) -> Result<(), LoadError> {
        if let Some(other) = config.hidden_act.as_deref().filter(|act| *act != "silu") {
            return Err(self.setting("hidden_act", format!("is {other:?}; only \"silu\" is supported")));
        }
        if config.conv_bias {
            return Err(self.setting(
                "conv_bias",
                "is true; convolutions with a bias are not supported".to_owned(),
            ));
        }
        for (key, bias) in [
            ("attention_bias", config.attention_bias),
            ("mlp_bias", config.mlp_bias),
        ] {
            if bias {
                let problem = "is true; projections with a bias are not supported";
                return Err(self.setting(key, problem.to_owned()));
            }
        }
        if config.use_sliding_window {
            return Err(self.setting(
                "use_sliding_window",
                "is true; windowed attention is not supported".to_owned(),
            ));
        }
        Ok(())
    }

    /// How the rotary embedding is stretched. Newer files say so in `rope_parameters`, older ones in `rope_scaling`.
    fn scaling(&self, config: &TextConfig) -> Result<RopeScaling, LoadError> {
        let places = [
            ("rope_parameters", &config.rope_parameters),
            ("rope_scaling", &config.rope_scaling),
        ];
        for (key, rope) in places {
            let Some(rope) = rope else { continue };
            let positive = |name: &str, value: Option<f32>| match value {
                Some(value) if value.is_finite() && value > 0.0 => Ok(value),
                _ => Err(self.setting(key, format!("has no {name} above 0"))),
            };
            let factor = || positive("factor", rope.factor);
            match rope.rope_type.as_deref().unwrap_or("default") {
                "default" => {}
                "linear" => return Ok(RopeScaling::Linear { factor: factor()? }),
                "llama3" => {
                    let low = positive("low_freq_factor", rope.low_freq_factor)?;
                    let high = positive("high_freq_factor", rope.high_freq_factor)?;
                    let original = positive(
                        "original_max_position_embeddings",
                        rope.original_max_position_embeddings,
                    )?;
                    if low >= high {
                        let problem =
                            format!("has low_freq_factor {low}; it must be below high_freq_factor, {high}");
                        return Err(self.setting(key, problem));
                    }
                    return Ok(RopeScaling::Llama3 {
                        factor: factor()?,
                        low,
                        high,
                        original,
                    });
                }
                kind => {
                    let known = "\"default\", \"linear\" and \"llama3\" are supported";
                    return Err(self.setting(key, format!("has rope_type {kind:?}; {known}")));
                }
            }
        }
        Ok(RopeScaling::None)
    }

    fn layers(&self, config: &TextConfig) -> Result<Vec<LayerKind>, LoadError> {
        let count = self.within(
            "num_hidden_layers",
            config.num_hidden_layers,
            usize::from(u16::MAX),
        )?;
        let Some(types) = &config.layer_types else {
            return Ok(match &config.full_attn_idxs {
                None => vec![LayerKind::Attention; count],
                Some(attention) => (0..count)
                    .map(|index| match attention.contains(&index) {
                        true => LayerKind::Attention,
                        false => LayerKind::ShortConv,
                    })
                    .collect(),
            });
        };
        if types.len() != count {
            return Err(self.setting(
                "layer_types",
                format!("has {} entries for {count} layers", types.len()),
            ));
        }
        let kind = |name: &String| match name.as_str() {
            "full_attention" => Ok(LayerKind::Attention),
            "linear_attention" => Ok(LayerKind::DeltaNet),
            "conv" => Ok(LayerKind::ShortConv),
            other => Err(self.setting(
                "layer_types",
                format!(
                    "holds {other:?}; \"full_attention\", \"linear_attention\" and \"conv\" are supported"
                ),
            )),
        };
        types.iter().map(kind).collect()
    }

    fn attention(
        &self,
        config: &TextConfig,
        architecture: Architecture,
    ) -> Result<AttentionConfig, LoadError> {
        let heads = self.positive("num_attention_heads", config.num_attention_heads)?;
        let kv_heads = self.positive("num_key_value_heads", config.num_key_value_heads)?;
        if !heads.is_multiple_of(kv_heads) {
            let problem = format!("is {kv_heads}; it must divide the {heads} attention heads");
            return Err(self.setting("num_key_value_heads", problem));
        }
        let head_dim = self.positive("head_dim", config.head_dim.unwrap_or(config.hidden_size / heads))?;
        let gate = match architecture {
            Architecture::Llama | Architecture::Qwen3 | Architecture::Lfm2 => OutputGate::Absent,
            Architecture::Qwen35 | Architecture::Qwen3Next => OutputGate::Sigmoid,
        };
        Ok(AttentionConfig {
            heads,
            kv_heads,
            head_dim,
            qk_norm: match architecture {
                Architecture::Llama => QkNorm::Absent,
                _ => QkNorm::PerHead,
            },
            gate,
        })
    }

    fn rope(&self, config: &TextConfig, head_dim: usize) -> Result<RopeConfig, LoadError> {
        let nested = config.rope_parameters.as_ref();
        let theta = nested
            .and_then(|rope| rope.rope_theta)
            .or(config.rope_theta)
            .unwrap_or(DEFAULT_ROPE_THETA);
        let factor = nested
            .and_then(|rope| rope.partial_rotary_factor)
            .or(config.partial_rotary_factor)
            .unwrap_or(1.0);
        let width = (head_dim as f32 * factor) as usize;
        if width == 0 || width > head_dim || !width.is_multiple_of(2) {
            let problem = format!("is {factor}; it must make an even part of a head of {head_dim}");
            return Err(self.setting("partial_rotary_factor", problem));
        }
        Ok(RopeConfig {
            theta,
            width,
            pairs: RopePairs::Halves,
            scaling: self.scaling(config)?,
        })
    }

    /// LFM2 states a width that is two thirds too wide, and how to round what is left.
    fn intermediate(&self, config: &TextConfig, architecture: Architecture) -> Result<usize, LoadError> {
        let stated = config.block_ff_dim.or(config.intermediate_size);
        let stated = self.required("intermediate_size", stated)?;
        if architecture != Architecture::Lfm2 || !config.block_auto_adjust_ff_dim {
            return Ok(stated);
        }
        let multiple = self.positive("block_multiple_of", config.block_multiple_of.unwrap_or(256))?;
        let factor = config.block_ffn_dim_multiplier.unwrap_or(1.0);
        let width = ((2 * stated / 3) as f64 * factor) as usize;
        self.positive("intermediate_size", width.div_ceil(multiple) * multiple)
    }

    fn experts(
        &self,
        config: &TextConfig,
        architecture: Architecture,
    ) -> Result<Option<ExpertsConfig>, LoadError> {
        if architecture != Architecture::Qwen3Next {
            return Ok(None);
        }
        let count = self.required("num_experts", config.num_experts)?;
        let per_token = self.required("num_experts_per_tok", config.num_experts_per_tok)?;
        if per_token > count {
            let problem = format!("is {per_token}; there are {count} experts");
            return Err(self.setting("num_experts_per_tok", problem));
        }
        let shared = "shared_expert_intermediate_size";
        Ok(Some(ExpertsConfig {
            count,
            per_token,
            intermediate: self.required("moe_intermediate_size", config.moe_intermediate_size)?,
            shared_intermediate: self.required(shared, config.shared_expert_intermediate_size)?,
            weights: match config.norm_topk_prob.unwrap_or(true) {
                true => ExpertWeights::Normalised,
                false => ExpertWeights::Probabilities,
            },
        }))
    }

    fn delta_net(
        &self,
        config: &TextConfig,
        architecture: Architecture,
    ) -> Result<DeltaNetConfig, LoadError> {
        let key_heads = self.required("linear_num_key_heads", config.linear_num_key_heads)?;
        let value_heads = self.required("linear_num_value_heads", config.linear_num_value_heads)?;
        if !value_heads.is_multiple_of(key_heads) {
            let problem = format!("is {value_heads}; it must be a multiple of the {key_heads} key heads");
            return Err(self.setting("linear_num_value_heads", problem));
        }
        Ok(DeltaNetConfig {
            key_heads,
            value_heads,
            key_dim: self.required("linear_key_head_dim", config.linear_key_head_dim)?,
            value_dim: self.required("linear_value_head_dim", config.linear_value_head_dim)?,
            conv_width: self.required("linear_conv_kernel_dim", config.linear_conv_kernel_dim)?,
            file: match architecture {
                Architecture::Qwen3Next => DeltaNetFile::ByKeyHead,
                _ => DeltaNetFile::Flat,
            },
        })
    }
}
