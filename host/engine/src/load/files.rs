//! A model's files without its weights: enough to cut prompts into tokens and to plan with, for models that another
//! engine runs, of whatever architecture.

use super::{LoadError, folder, gguf};
use crate::shape::{CacheShape, LayerShape};
use crate::text::ModelText;
use portolan_base::kv::{KvDtype, KvLayout, LayerKv};
use portolan_base::{ModelName, Tokens};
use portolan_ports::TextModel;
use std::path::Path;
use std::sync::Arc;

/// Tokens in a block of the layout: the prefix index' own.
const BLOCK_TOKENS: u32 = portolan_base::INDEX_BLOCK_TOKENS as u32;

/// What a model's files say of it.
#[derive(Debug)]
pub struct ModelFiles {
    pub(crate) text: Arc<ModelText>,
    pub(crate) context: Tokens,
    pub(crate) vocabulary: u32,
    pub(crate) shape: CacheShape,
}

impl ModelFiles {
    /// Reads tokenizer, chat template and sizes of the model at `path`, as [`super::load_model`] finds them.
    ///
    /// # Errors
    /// [`LoadError`] names the file and key at fault.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        if path.is_dir() {
            folder::files(path)
        } else if path.extension().is_some_and(|extension| extension == "gguf") {
            gguf::files(path)
        } else {
            Err(LoadError::NotAModel(path.to_owned()))
        }
    }

    /// Its tokenizer and chat template.
    pub fn text(&self) -> Arc<dyn TextModel> {
        Arc::clone(&self.text) as Arc<dyn TextModel>
    }

    /// Longest prompt and answer together.
    pub fn context_tokens(&self) -> Tokens {
        self.context
    }

    /// Token ids are below this.
    pub fn vocabulary(&self) -> u32 {
        self.vocabulary
    }

    /// Its KV under a public name and version, in sizes that are right and shapes that are not: another engine's KV is
    /// never read here, only planned with.
    pub fn layout(&self, model: ModelName, model_version: u64) -> KvLayout {
        let layer = |layer: &LayerShape| match *layer {
            LayerShape::Attention { per_token, .. } => LayerKv::FullAttention {
                kv_heads: 1,
                head_dim: half(per_token),
            },
            LayerShape::Latent { per_token } => LayerKv::FullAttention {
                kv_heads: 1,
                head_dim: half(per_token),
            },
            LayerShape::Recurrent { values } => LayerKv::Recurrent {
                conv_channels: 0,
                conv_width: 0,
                heads: 1,
                key_dim: 1,
                value_dim: u32::try_from(values).unwrap_or(u32::MAX),
            },
        };
        KvLayout {
            model,
            model_version,
            dtype: match self.shape.bits {
                32 => KvDtype::F32,
                _ => KvDtype::Bf16,
            },
            block_tokens: BLOCK_TOKENS,
            window: None,
            layers: self.shape.layers.iter().map(layer).collect(),
        }
    }
}

/// Keys and values count apart.
fn half(per_token: u64) -> u32 {
    u32::try_from(per_token.div_ceil(2)).unwrap_or(u32::MAX)
}
