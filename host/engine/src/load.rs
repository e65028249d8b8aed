//! A model from its files: a Hugging Face folder, or a GGUF file.

mod build;
mod error;
mod files;
mod folder;
mod gguf;
mod hf_config;
mod weights;

pub use error::LoadError;
pub use files::ModelFiles;
pub(crate) use folder::read as read_text;
pub use gguf::gguf_settings;
pub(crate) use gguf::layers as gguf_layers;

use crate::BLOCK_TOKENS;
use crate::device::{ComputeDevice, DeviceError};
use crate::generate::never_stop;
use crate::network::Network;
use crate::network::state::LayerState;
use crate::text::ModelText;
use bytes::Bytes;
use portolan_base::kv::{KvDtype, KvLayout, KvWindow, LayerKv};
use portolan_base::{ModelName, Tokens};
use portolan_ports::{EngineError, TextModel};
use std::path::Path;
use std::sync::Arc;

/// A model in memory or on a GPU: weights, tokenizer, chat template. Instances share one through an [`Arc`].
#[derive(Debug)]
pub struct LoadedModel {
    pub(crate) network: Network,
    text: Arc<ModelText>,
}

impl LoadedModel {
    pub(crate) fn new(network: Network, text: ModelText) -> Self {
        Self {
            network,
            text: Arc::new(text),
        }
    }

    /// Its tokenizer and chat template.
    pub fn text(&self) -> Arc<dyn TextModel> {
        Arc::clone(&self.text) as Arc<dyn TextModel>
    }

    /// The same model with attention over the latest tokens only. Its KV is other KV: a model name or version of its own
    /// keeps the two apart.
    #[must_use]
    pub fn with_window(mut self, window: KvWindow) -> Self {
        self.network.config.window = Some(KvWindow {
            tokens: window.tokens.max(1),
            ..window
        });
        self
    }

    /// The same model, computed on `device`. Its weights are copied there as 32-bit floats.
    ///
    /// # Errors
    /// [`DeviceError`] when the device is not there or fails, or does not compute models of this kind.
    pub fn on(self: &Arc<Self>, device: ComputeDevice) -> Result<Arc<Self>, DeviceError> {
        if device == ComputeDevice::Cpu {
            return Ok(Arc::clone(self));
        }
        Ok(Arc::new(Self {
            network: self.network.on(device)?,
            text: Arc::clone(&self.text),
        }))
    }

    /// What its attention looks at; none: every token so far.
    pub fn window(&self) -> Option<KvWindow> {
        self.network.config.window
    }

    /// What each layer keeps, in the order of the forward pass.
    pub fn layers(&self) -> Vec<LayerKv> {
        self.network.layer_kv()
    }

    /// The shapes of its KV, under a public name and version.
    pub fn layout(&self, model: ModelName, model_version: u64) -> KvLayout {
        KvLayout {
            model,
            model_version,
            dtype: KvDtype::F32,
            block_tokens: BLOCK_TOKENS,
            window: self.window(),
            layers: self.layers(),
        }
    }

    /// The KV of a fixed prompt of one block, layer by layer: equal bit for bit wherever KV may be shared. Tokens are
    /// spread over the vocabulary, so that weights, kernels and processor all show in it.
    ///
    /// # Errors
    /// [`EngineError::Broken`] when the model does not run.
    pub fn probe(&self) -> Result<Vec<Bytes>, EngineError> {
        let length = BLOCK_TOKENS.min(self.context_tokens().0.saturating_sub(1)).max(1);
        let stride = (self.vocabulary() / length).max(1);
        let tokens: Vec<u32> = (0..length)
            .map(|n| n * stride % self.vocabulary().max(1))
            .collect();
        let mut state = self.network.fresh_state();
        self.network.run(&tokens, &mut state, &mut never_stop)?;
        let piece = |layer: &LayerState| match layer {
            LayerState::Attention(state) => state.piece(0..tokens.len()),
            LayerState::Recurrent(state) => state.piece(),
        };
        Ok(state.layers.iter().map(piece).collect::<Result<_, _>>()?)
    }

    /// Longest prompt and answer together.
    pub fn context_tokens(&self) -> Tokens {
        Tokens(self.network.config.context as u32)
    }

    /// Token ids are below this.
    pub fn vocabulary(&self) -> u32 {
        self.network.config.vocabulary as u32
    }
}

/// Loads a model.
///
/// A folder holds `config.json`, `tokenizer.json`, and the weights as `model.safetensors` or as shards with
/// `model.safetensors.index.json`; `tokenizer_config.json`, `chat_template.jinja` and `generation_config.json` are
/// read when present. Architectures: `Qwen3ForCausalLM`, `Qwen3_5ForCausalLM`, `Qwen3NextForCausalLM`, `Lfm2ForCausalLM`.
///
/// A `.gguf` file holds everything; its weights are converted to 32-bit floats. Architecture: `llama`.
///
/// # Errors
/// [`LoadError`] names the file, key or tensor at fault and says what would be accepted.
pub fn load_model(path: &Path) -> Result<LoadedModel, LoadError> {
    if path.is_dir() {
        folder::load(path)
    } else if path.extension().is_some_and(|extension| extension == "gguf") {
        gguf::load(path)
    } else {
        Err(LoadError::NotAModel(path.to_owned()))
    }
}
