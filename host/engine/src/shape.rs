//! How large a model's KV is, read from its configuration alone: no weights, and models that the native engine does
//! not run as well.

mod hugging_face;
#[cfg(test)]
mod tests;

use crate::load::{LoadError, gguf_layers, read_text};
use portolan_base::kv::LayerKv;
use portolan_base::{Bytes, Tokens};
use std::path::Path;

/// What one layer keeps of a sequence, in numbers rather than bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerShape {
    /// Keys and values of each token.
    Attention {
        /// Numbers a token: 2 × key/value heads × head width.
        per_token: u64,
        /// Only this many of the latest tokens are kept; `None` keeps all.
        window: Option<u32>,
    },
    /// One compressed vector a token, from which keys and values are made (multi-head latent attention).
    Latent {
        /// Numbers a token: rank of the compression plus the rotated part of a key.
        per_token: u64,
    },
    /// A state of fixed size.
    Recurrent {
        /// Numbers, whatever the length.
        values: u64,
    },
}

/// What a model keeps of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// One entry a layer, in the order of the forward pass.
    pub layers: Vec<LayerShape>,
    /// Bits of one number as the model's files state it: 32, 16 or 8.
    pub bits: u32,
}

/// The size of a sequence's KV at one length: `fixed + per_token × tokens`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceSize {
    /// Bytes that do not grow at this length: recurrent states, and windows that are full.
    pub fixed: Bytes,
    /// Bytes that each token adds.
    pub per_token: Bytes,
    /// All bytes.
    pub total: Bytes,
}

impl CacheShape {
    /// Reads the shape of the model at `path`: a folder with `config.json`, or a `.gguf` file.
    ///
    /// # Errors
    /// [`LoadError`] names the file and key at fault.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        if path.is_dir() {
            let file = path.join("config.json");
            return hugging_face::parse(&file, &read_text(&file)?);
        }
        if path.extension().is_some_and(|extension| extension == "gguf") {
            return Ok(Self {
                layers: gguf_layers(path)?.iter().map(LayerShape::from).collect(),
                bits: 32,
            });
        }
        Err(LoadError::NotAModel(path.to_owned()))
    }

    /// The KV of a sequence of `tokens`.
    pub fn at(&self, tokens: Tokens) -> SequenceSize {
        let tokens = u64::from(tokens.0);
        let (mut fixed, mut per_token) = (0u64, 0u64);
        for layer in &self.layers {
            match *layer {
                LayerShape::Attention {
                    per_token: each,
                    window: Some(window),
                } if tokens > u64::from(window) => {
                    fixed += each * u64::from(window);
                }
                LayerShape::Attention { per_token: each, .. } | LayerShape::Latent { per_token: each } => {
                    per_token += each;
                }
                LayerShape::Recurrent { values } => fixed += values,
            }
        }
        let bytes = |values: u64| Bytes((values * u64::from(self.bits)).div_ceil(8));
        SequenceSize {
            fixed: bytes(fixed),
            per_token: bytes(per_token),
            total: bytes(fixed + per_token * tokens),
        }
    }
}

impl From<&LayerKv> for LayerShape {
    fn from(layer: &LayerKv) -> Self {
        match *layer {
            LayerKv::FullAttention { kv_heads, head_dim } => Self::Attention {
                per_token: 2 * u64::from(kv_heads) * u64::from(head_dim),
                window: None,
            },
            LayerKv::Recurrent {
                conv_channels,
                conv_width,
                heads,
                key_dim,
                value_dim,
            } => Self::Recurrent {
                values: u64::from(conv_channels) * u64::from(conv_width)
                    + u64::from(heads) * u64::from(key_dim) * u64::from(value_dim),
            },
        }
    }
}
