//! A network from its configuration and its weights.

use super::LoadError;
use super::weights::Weights;
use crate::kernel::linear::Linear;
use crate::kernel::rope::Rope;
use crate::network::attention::Attention;
use crate::network::config::{
    AttentionConfig, DeltaNetConfig, LayerKind, NetworkConfig, NormWeight, OutputGate, OutputHead, QkNorm,
};
use crate::network::delta_net::DeltaNet;
use crate::network::mlp::Mlp;
use crate::network::{Layer, Mixer, Network};
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
        .map(|(index, kind)| builder.layer(&format!("{prefix}layers.{index}."), *kind))
        .collect::<Result<_, _>>()?;
    let norm = builder.norm(&format!("{prefix}norm.weight"), config.hidden)?;
    let rope = Rope::new(config.rope.theta, config.rope.width, config.rope.pairs);
    Ok(Network {
        embedding,
        layers,
        norm,
        head,
        rope,
        config,
    })
}

struct Builder<'a> {
    path: &'a Path,
    config: &'a NetworkConfig,
    weights: &'a dyn Weights,
}

impl Builder<'_> {
    fn layer(&self, at: &str, kind: LayerKind) -> Result<Layer, LoadError> {
        let NetworkConfig {
            hidden, intermediate, ..
        } = *self.config;
        let mixer = match (kind, self.config.delta_net) {
            (LayerKind::DeltaNet, Some(delta)) => {
                Mixer::DeltaNet(self.delta_net(&format!("{at}linear_attn."), delta)?)
            }
            _ => Mixer::Attention(self.attention(&format!("{at}self_attn."), self.config.attention)?),
        };
        Ok(Layer {
            mixer_norm: self.norm(&format!("{at}input_layernorm.weight"), hidden)?,
            mixer,
            mlp_norm: self.norm(&format!("{at}post_attention_layernorm.weight"), hidden)?,
            mlp: Mlp {
                gate: self.linear(&format!("{at}mlp.gate_proj.weight"), intermediate, hidden)?,
                up: self.linear(&format!("{at}mlp.up_proj.weight"), intermediate, hidden)?,
                down: self.linear(&format!("{at}mlp.down_proj.weight"), hidden, intermediate)?,
            },
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
        Ok(Attention {
            config,
            norm_epsilon: self.config.norm_epsilon,
            query: self.linear(&format!("{at}q_proj.weight"), projected, hidden)?,
            key: self.linear(&format!("{at}k_proj.weight"), keys, hidden)?,
            value: self.linear(&format!("{at}v_proj.weight"), keys, hidden)?,
            output: self.linear(&format!("{at}o_proj.weight"), hidden, queries)?,
            query_norm: head_norm("q_norm")?,
            key_norm: head_norm("k_norm")?,
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
        Ok(DeltaNet {
            config,
            norm_epsilon: self.config.norm_epsilon,
            qkv: self.linear(&format!("{at}in_proj_qkv.weight"), channels, hidden)?,
            gate: self.linear(&format!("{at}in_proj_z.weight"), values, hidden)?,
            beta: self.linear(&format!("{at}in_proj_b.weight"), value_heads, hidden)?,
            decay: self.linear(&format!("{at}in_proj_a.weight"), value_heads, hidden)?,
            output: self.linear(&format!("{at}out_proj.weight"), hidden, values)?,
            conv: self.vector(&format!("{at}conv1d.weight"), &[channels, 1, conv_width])?,
            decay_log: self.vector(&format!("{at}A_log"), &[value_heads])?,
            decay_bias: self.vector(&format!("{at}dt_bias"), &[value_heads])?,
            norm: self.vector(&format!("{at}norm.weight"), &[value_dim])?,
        })
    }

    fn linear(&self, name: &str, outputs: usize, inputs: usize) -> Result<Linear, LoadError> {
        let weight = self.weights.tensor(name, &[outputs, inputs])?;
        Linear::new(&weight).map_err(|source| self.unusable(name, source))
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
        let tensor = self.weights.tensor(name, shape)?;
        tensor
            .flatten_all()
            .and_then(|t| t.to_vec1())
            .map_err(|source| self.unusable(name, source))
    }

    fn unusable(&self, name: &str, source: candle_core::Error) -> LoadError {
        LoadError::Tensor {
            path: self.path.to_owned(),
            name: name.to_owned(),
            source: Box::new(source),
        }
    }
}
