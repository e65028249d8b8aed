//! The shape of a model's KV from its `config.json`.

use super::{CacheShape, LayerShape};
use crate::load::LoadError;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// The keys that say what is kept. Everything else in the file is of no concern here.
#[derive(Debug, Deserialize)]
struct Keys {
    num_hidden_layers: Option<u32>,
    num_attention_heads: Option<u32>,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    hidden_size: Option<u32>,
    layer_types: Option<Vec<String>>,
    sliding_window: Option<u32>,
    use_sliding_window: Option<bool>,
    kv_lora_rank: Option<u32>,
    qk_rope_head_dim: Option<u32>,
    linear_conv_kernel_dim: Option<u32>,
    linear_num_key_heads: Option<u32>,
    linear_num_value_heads: Option<u32>,
    linear_key_head_dim: Option<u32>,
    linear_value_head_dim: Option<u32>,
    #[serde(rename = "conv_L_cache")]
    conv_columns: Option<u32>,
    #[serde(alias = "torch_dtype")]
    dtype: Option<String>,
}

/// No model has a size above this; beyond it products could overflow.
const SIZE_MAX: u32 = 1 << 20;

/// Reads `text`, the configuration at `path`.
pub(super) fn parse(path: &Path, text: &str) -> Result<CacheShape, LoadError> {
    let malformed = |e: serde_json::Error| LoadError::Format {
        path: path.to_owned(),
        reason: e.to_string(),
    };
    let whole: Value = serde_json::from_str(text).map_err(malformed)?;
    let language = whole.get("text_config").unwrap_or(&whole);
    let reader = Reader {
        path,
        keys: Keys::deserialize(language).map_err(malformed)?,
    };
    Ok(CacheShape {
        layers: reader.layers()?,
        bits: reader.bits(&whole)?,
    })
}

struct Reader<'a> {
    path: &'a Path,
    keys: Keys,
}

impl Reader<'_> {
    fn problem(&self, key: &str, problem: impl Into<String>) -> LoadError {
        LoadError::Setting {
            path: self.path.to_owned(),
            key: key.to_owned(),
            problem: problem.into(),
        }
    }

    fn size(&self, key: &str, value: Option<u32>) -> Result<u64, LoadError> {
        match value {
            None => Err(self.problem(key, "is missing; without it the size of the KV is not known")),
            Some(0) => Err(self.problem(key, "is 0; it must be at least 1")),
            Some(value) if value > SIZE_MAX => {
                Err(self.problem(key, format!("is {value}; at most {SIZE_MAX}")))
            }
            Some(value) => Ok(u64::from(value)),
        }
    }

    fn layers(&self) -> Result<Vec<LayerShape>, LoadError> {
        let count = self.size("num_hidden_layers", self.keys.num_hidden_layers)?;
        let Some(types) = &self.keys.layer_types else {
            return Ok(vec![self.attention(self.window_of_all())?; count as usize]);
        };
        if types.len() as u64 != count {
            let problem = format!("has {} entries for {count} layers", types.len());
            return Err(self.problem("layer_types", problem));
        }
        types.iter().map(|kind| self.layer(kind)).collect()
    }

    fn layer(&self, kind: &str) -> Result<LayerShape, LoadError> {
        match kind {
            "full_attention" => self.attention(None),
            "sliding_attention" => {
                let window = self.size("sliding_window", self.keys.sliding_window)?;
                self.attention(Some(window as u32))
            }
            "linear_attention" => self.recurrent(),
            "conv" => Ok(LayerShape::Recurrent {
                values: self.size("hidden_size", self.keys.hidden_size)?
                    * self.size("conv_L_cache", self.keys.conv_columns)?,
            }),
            other => Err(self.problem(
                "layer_types",
                format!(
                    "holds {other:?}; full_attention, sliding_attention, linear_attention and conv are known"
                ),
            )),
        }
    }

    /// The window where one key speaks for every layer. A model that has the key and switches it off says so.
    fn window_of_all(&self) -> Option<u32> {
        match self.keys.use_sliding_window {
            Some(false) => None,
            _ => self.keys.sliding_window,
        }
    }

    fn attention(&self, window: Option<u32>) -> Result<LayerShape, LoadError> {
        if self.keys.kv_lora_rank.is_some() {
            let rank = self.size("kv_lora_rank", self.keys.kv_lora_rank)?;
            let rotated = self.size("qk_rope_head_dim", self.keys.qk_rope_head_dim)?;
            return Ok(LayerShape::Latent {
                per_token: rank + rotated,
            });
        }
        let heads = self.size("num_attention_heads", self.keys.num_attention_heads)?;
        let kv_heads = match self.keys.num_key_value_heads {
            None => heads,
            stated => self.size("num_key_value_heads", stated)?,
        };
        let head_dim = match self.keys.head_dim {
            None => self.size("hidden_size", self.keys.hidden_size)? / heads,
            stated => self.size("head_dim", stated)?,
        };
        Ok(LayerShape::Attention {
            per_token: 2 * kv_heads * head_dim,
            window,
        })
    }

    /// A gated delta net: the last inputs of its convolution, and one matrix a value head.
    fn recurrent(&self) -> Result<LayerShape, LoadError> {
        let keys = &self.keys;
        let key_heads = self.size("linear_num_key_heads", keys.linear_num_key_heads)?;
        let value_heads = self.size("linear_num_value_heads", keys.linear_num_value_heads)?;
        let key_dim = self.size("linear_key_head_dim", keys.linear_key_head_dim)?;
        let value_dim = self.size("linear_value_head_dim", keys.linear_value_head_dim)?;
        let columns = self.size("linear_conv_kernel_dim", keys.linear_conv_kernel_dim)?;
        let channels = 2 * key_heads * key_dim + value_heads * value_dim;
        Ok(LayerShape::Recurrent {
            values: channels * columns + value_heads * key_dim * value_dim,
        })
    }

    fn bits(&self, whole: &Value) -> Result<u32, LoadError> {
        let outer = || whole.get("dtype").or_else(|| whole.get("torch_dtype"))?.as_str();
        match self.keys.dtype.as_deref().or_else(outer) {
            None | Some("bfloat16" | "float16") => Ok(16),
            Some("float32") => Ok(32),
            Some("float8_e4m3fn" | "float8_e5m2") => Ok(8),
            Some(other) => Err(self.problem(
                "dtype",
                format!("is {other:?}; float32, bfloat16, float16 and float8 are known"),
            )),
        }
    }
}
