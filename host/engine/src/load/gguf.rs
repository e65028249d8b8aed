//! A GGUF file of the Llama architecture.

use super::weights::Gguf;
use super::{LoadError, LoadedModel, ModelFiles, build};
use crate::kernel::rope::{RopePairs, RopeScaling};
use crate::network::config::{
    AttentionConfig, LayerKind, NetworkConfig, NormWeight, OutputGate, OutputHead, QkNorm, RopeConfig,
    TensorNames,
};
use crate::shape::CacheShape;
use crate::text::{ModelText, TextParts};
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use portolan_base::Tokens;
use portolan_base::kv::LayerKv;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{PreTokenizerWrapper, Tokenizer};

/// Base frequency of a rotary embedding when the file names none; the format's default.
const DEFAULT_ROPE_BASE: f32 = 10_000.0;

pub(super) fn load(path: &Path) -> Result<LoadedModel, LoadError> {
    let (file, content) = open(path)?;
    whole(path, &content)?;
    let meta = Metadata {
        path,
        content: &content,
    };
    let config = config(&meta)?;
    let text = text(&meta)?;
    let weights = Gguf {
        content: &content,
        file: RefCell::new(file),
        path,
    };
    let network = build::build(path, config, &weights)?;
    Ok(LoadedModel::new(network, text))
}

/// The same without the weights: only the file's head is read.
pub(super) fn files(path: &Path) -> Result<ModelFiles, LoadError> {
    let (_, content) = open(path)?;
    let meta = Metadata {
        path,
        content: &content,
    };
    let config = config(&meta)?;
    Ok(ModelFiles {
        text: Arc::new(text(&meta)?),
        context: Tokens(u32::try_from(config.context).unwrap_or(u32::MAX)),
        vocabulary: u32::try_from(config.vocabulary).unwrap_or(u32::MAX),
        shape: CacheShape::read(path)?,
    })
}

/// What each layer keeps; only the file's head is read.
pub(crate) fn layers(path: &Path) -> Result<Vec<LayerKv>, LoadError> {
    let (_, content) = open(path)?;
    let config = config(&Metadata {
        path,
        content: &content,
    })?;
    let kept = LayerKv::FullAttention {
        kv_heads: config.attention.kv_heads as u32,
        head_dim: config.attention.head_dim as u32,
    };
    Ok(vec![kept; config.layers.len()])
}

/// The settings in the head of a `.gguf` file, with their values where those are texts.
///
/// # Errors
/// When the file cannot be read, or is none of this format.
pub fn gguf_settings(path: &Path) -> Result<BTreeMap<String, Option<String>>, LoadError> {
    let (_, content) = open(path)?;
    let text = |value: Value| match value {
        Value::String(text) => Some(text),
        _ => None,
    };
    Ok(content
        .metadata
        .into_iter()
        .map(|(key, value)| (key, text(value)))
        .collect())
}

fn open(path: &Path) -> Result<(BufReader<File>, Content), LoadError> {
    let file = File::open(path).map_err(|source| LoadError::File {
        path: path.to_owned(),
        source,
    })?;
    let mut file = BufReader::new(file);
    let content = Content::read(&mut file).map_err(|e| LoadError::Format {
        path: path.to_owned(),
        reason: match is_end(&e) {
            true => "it ends within its head: the download was cut; get it again".to_owned(),
            false => e.to_string(),
        },
    })?;
    Ok((file, content))
}

/// Whether a file ended where more was expected.
fn is_end(error: &candle_core::Error) -> bool {
    match error {
        candle_core::Error::Io(error) => error.kind() == std::io::ErrorKind::UnexpectedEof,
        candle_core::Error::Context { inner, .. }
        | candle_core::Error::WithPath { inner, .. }
        | candle_core::Error::WithBacktrace { inner, .. } => is_end(inner),
        // The reader holds what a head declares against what remains of the file, and has no kind of its own for that.
        error => error.to_string().contains("remaining"),
    }
}

/// Refuses a file that ends before its last tensor does.
fn whole(path: &Path, content: &Content) -> Result<(), LoadError> {
    let found = std::fs::metadata(path).map_err(|source| LoadError::File {
        path: path.to_owned(),
        source,
    })?;
    let end = |info: &candle_core::quantized::gguf_file::TensorInfo| {
        let blocks = info.shape.elem_count() / info.ggml_dtype.block_size();
        let bytes = (blocks as u64).saturating_mul(info.ggml_dtype.type_size() as u64);
        content
            .tensor_data_offset
            .saturating_add(info.offset)
            .saturating_add(bytes)
    };
    let needed = content.tensor_infos.values().map(end).max().unwrap_or(0);
    if found.len() >= needed {
        return Ok(());
    }
    Err(LoadError::Format {
        path: path.to_owned(),
        reason: format!(
            "it has {} bytes, and its tensors reach to byte {needed}: the download was cut; get it again",
            found.len()
        ),
    })
}

struct Metadata<'a> {
    path: &'a Path,
    content: &'a Content,
}

impl Metadata<'_> {
    fn problem(&self, key: &str, problem: &str) -> LoadError {
        LoadError::Setting {
            path: self.path.to_owned(),
            key: key.to_owned(),
            problem: problem.to_owned(),
        }
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.content.metadata.get(key)
    }

    fn text(&self, key: &str) -> Result<Option<&str>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.problem(key, "is not text")),
        }
    }

    fn count(&self, key: &str) -> Result<Option<usize>, LoadError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let number = value.to_u64().or_else(|_| value.to_u32().map(u64::from));
        let number = number.map_err(|_| self.problem(key, "is not a whole number"))?;
        match number {
            0 => Err(self.problem(key, "is 0; it must be at least 1")),
            n if n > 1 << 24 => Err(self.problem(key, "is larger than any model's; the file is damaged")),
            n => Ok(Some(n as usize)),
        }
    }

    fn required(&self, key: &str) -> Result<usize, LoadError> {
        self.count(key)?.ok_or_else(|| self.problem(key, "is missing"))
    }

    fn number(&self, key: &str) -> Result<Option<f32>, LoadError> {
        let read = |value: &Value| {
            value
                .to_f32()
                .map_err(|_| self.problem(key, "is not a 32-bit float"))
        };
        self.get(key).map(read).transpose()
    }

    fn token(&self, key: &str) -> Result<Option<u32>, LoadError> {
        let read = |value: &Value| value.to_u32().map_err(|_| self.problem(key, "is not a token id"));
        self.get(key).map(read).transpose()
    }
}

fn config(meta: &Metadata<'_>) -> Result<NetworkConfig, LoadError> {
    check_supported(meta)?;
    let hidden = meta.required("llama.embedding_length")?;
    let attention = attention(meta, hidden)?;
    let layers = meta.required("llama.block_count")?;
    if layers > usize::from(u16::MAX) {
        return Err(meta.problem(
            "llama.block_count",
            "is larger than any model's; the file is damaged",
        ));
    }
    let epsilon = "llama.attention.layer_norm_rms_epsilon";
    Ok(NetworkConfig {
        hidden,
        intermediate: meta.required("llama.feed_forward_length")?,
        vocabulary: token_count(meta)?,
        context: meta.required("llama.context_length")?,
        norm_epsilon: meta
            .number(epsilon)?
            .ok_or_else(|| meta.problem(epsilon, "is missing"))?,
        norm_weight: NormWeight::Plain,
        head: OutputHead::OwnIfPresent,
        rope: rope(meta, attention.head_dim)?,
        attention,
        window: None,
        delta_net: None,
        short_conv: None,
        layers: vec![LayerKind::Attention; layers],
        experts: None,
        dense_layers: Vec::new(),
        names: TensorNames::Llama,
    })
}

/// Refuses what the forward pass does not compute.
fn check_supported(meta: &Metadata<'_>) -> Result<(), LoadError> {
    let architecture = meta.text("general.architecture")?.unwrap_or("(none)");
    if architecture != "llama" {
        let problem = format!("is {architecture:?}; only \"llama\" is supported in GGUF files");
        return Err(meta.problem("general.architecture", &problem));
    }
    let tensors = &meta.content.tensor_infos;
    let scaling = meta.text("llama.rope.scaling.type")?.unwrap_or("none");
    if scaling != "none" || tensors.contains_key("rope_freqs.weight") {
        let problem = "asks for a scaled rotary embedding, which is not supported";
        return Err(meta.problem("llama.rope.scaling.type", problem));
    }
    if let Some(name) = tensors.keys().find(|name| name.ends_with(".bias")) {
        return Err(meta.problem(name, "is a bias; projections with a bias are not supported"));
    }
    Ok(())
}

fn attention(meta: &Metadata<'_>, hidden: usize) -> Result<AttentionConfig, LoadError> {
    let heads = meta.required("llama.attention.head_count")?;
    let kv_heads = meta.count("llama.attention.head_count_kv")?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) || !hidden.is_multiple_of(heads) {
        let problem =
            format!("is {kv_heads}; it must divide {heads} heads, and they the {hidden} values of a token");
        return Err(meta.problem("llama.attention.head_count_kv", &problem));
    }
    let head_dim = meta
        .count("llama.attention.key_length")?
        .unwrap_or(hidden / heads);
    let value_dim = meta.count("llama.attention.value_length")?.unwrap_or(head_dim);
    if value_dim != head_dim {
        let problem = format!("is {value_dim}; it must equal the width of a key, {head_dim}");
        return Err(meta.problem("llama.attention.value_length", &problem));
    }
    Ok(AttentionConfig {
        heads,
        kv_heads,
        head_dim,
        qk_norm: QkNorm::Absent,
        gate: OutputGate::Absent,
    })
}

fn rope(meta: &Metadata<'_>, head_dim: usize) -> Result<RopeConfig, LoadError> {
    let width = meta.count("llama.rope.dimension_count")?.unwrap_or(head_dim);
    if width > head_dim || !width.is_multiple_of(2) {
        let problem = format!("is {width}; it must be even and at most the head's {head_dim}");
        return Err(meta.problem("llama.rope.dimension_count", &problem));
    }
    let theta = meta.number("llama.rope.freq_base")?.unwrap_or(DEFAULT_ROPE_BASE);
    Ok(RopeConfig {
        theta,
        width,
        pairs: RopePairs::Adjacent,
        scaling: RopeScaling::None,
    })
}

fn token_count(meta: &Metadata<'_>) -> Result<usize, LoadError> {
    match meta.get("tokenizer.ggml.tokens") {
        Some(Value::Array(tokens)) => Ok(tokens.len()),
        _ => Err(meta.problem("tokenizer.ggml.tokens", "is missing or not a list")),
    }
}

fn text(meta: &Metadata<'_>) -> Result<ModelText, LoadError> {
    let unusable = |reason: String| LoadError::Tokenizer {
        path: meta.path.to_owned(),
        reason,
    };
    let mut tokenizer = Tokenizer::from_gguf(meta.content).map_err(|e| unusable(e.to_string()))?;
    let pre = meta.text("tokenizer.ggml.pre")?.unwrap_or("gpt-2");
    if let Some(cut) = pre_tokenizer(pre).map_err(|problem| meta.problem("tokenizer.ggml.pre", &problem))? {
        tokenizer.with_pre_tokenizer(Some(cut));
    }
    let bos = meta.token("tokenizer.ggml.bos_token_id")?;
    let eos = meta.token("tokenizer.ggml.eos_token_id")?;
    let end_of_turn = meta.token("tokenizer.ggml.eot_token_id")?;
    let name = |id: Option<u32>| id.and_then(|id| tokenizer.id_to_token(id));
    let parts = TextParts {
        template: meta.text("tokenizer.chat_template")?.map(str::to_owned),
        bos: name(bos),
        eos: name(eos),
        silent: control_tokens(meta),
        stop_ids: eos.into_iter().chain(end_of_turn).collect(),
        tokenizer,
    };
    ModelText::new(meta.path, meta.path, parts)
}

/// Tokens of the kinds "unknown" and "control". Tokens that a user defined are text, though they are never cut.
fn control_tokens(meta: &Metadata<'_>) -> HashSet<u32> {
    let kinds = match meta.get("tokenizer.ggml.token_type") {
        Some(Value::Array(kinds)) => kinds.as_slice(),
        _ => &[],
    };
    let controls = |kind: &Value| match kind {
        Value::I32(kind) => matches!(kind, 2 | 3),
        Value::U32(kind) => matches!(kind, 2 | 3),
        _ => false,
    };
    (0..)
        .zip(kinds)
        .filter(|(_, kind)| controls(kind))
        .map(|(id, _)| id)
        .collect()
}

/// How text is cut before byte pairs are merged, by the name GGUF gives it; `None` where the tokenizer built from
/// the file has the right cut already.
fn pre_tokenizer(name: &str) -> Result<Option<PreTokenizerWrapper>, String> {
    let gpt2 = ByteLevel::new(false, true, true);
    match name {
        "gpt-2" | "gpt2" | "default" => Ok(Some(gpt2.into())),
        "smollm" => Ok(Some(
            Sequence::new(vec![Digits::new(true).into(), gpt2.into()]).into(),
        )),
        "qwen2" => Ok(None),
        other => Err(format!("is {other:?}; gpt-2, smollm and qwen2 are supported")),
    }
}
