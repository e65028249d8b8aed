//! A Hugging Face model folder.

use super::weights::Safetensors;
use super::{LoadError, LoadedModel, ModelFiles, build, hf_config};
use crate::shape::CacheShape;
use crate::text::{ModelText, TextParts};
use portolan_base::Tokens;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizers::Tokenizer;

#[derive(Debug, Deserialize)]
struct ShardIndex {
    weight_map: HashMap<String, String>,
}

pub(super) fn load(folder: &Path) -> Result<LoadedModel, LoadError> {
    let config_path = folder.join("config.json");
    let config_text = read(&config_path)?;
    let config = hf_config::parse(&config_path, &config_text)?;
    let text = text(folder, &json(&config_path, &config_text)?)?;
    let weights = Safetensors::read(folder, &weight_files(folder)?)?;
    let network = build::build(folder, config, &weights)?;
    Ok(LoadedModel::new(network, text))
}

/// The same without the weights, for any architecture.
pub(super) fn files(folder: &Path) -> Result<ModelFiles, LoadError> {
    let path = folder.join("config.json");
    let config = json(&path, &read(&path)?)?;
    let language = config.get("text_config").unwrap_or(&config);
    let size = |key: &str| {
        let value = language.get(key).and_then(Value::as_u64);
        let size = value.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
        size.ok_or_else(|| LoadError::Setting {
            path: path.clone(),
            key: key.to_owned(),
            problem: "is missing or no whole number from 1".to_owned(),
        })
    };
    Ok(ModelFiles {
        text: Arc::new(text(folder, &config)?),
        context: Tokens(size("max_position_embeddings")?),
        vocabulary: size("vocab_size")?,
        shape: CacheShape::read(folder)?,
    })
}

/// The one file of weights, or all that the index names.
fn weight_files(folder: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let index_path = folder.join("model.safetensors.index.json");
    if !index_path.exists() {
        return Ok(vec![folder.join("model.safetensors")]);
    }
    let index: ShardIndex = serde_json::from_str(&read(&index_path)?).map_err(|e| LoadError::Format {
        path: index_path.clone(),
        reason: e.to_string(),
    })?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    let outside = |name: &&String| {
        Path::new(name)
            .file_name()
            .is_none_or(|file| file != name.as_str())
    };
    if let Some(name) = names.iter().find(outside) {
        let problem = format!("names {name:?}; shards must lie in the model's own folder");
        return Err(LoadError::Setting {
            path: index_path,
            key: "weight_map".to_owned(),
            problem,
        });
    }
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

fn text(folder: &Path, config: &Value) -> Result<ModelText, LoadError> {
    let tokenizer_path = folder.join("tokenizer.json");
    let tokenizer = Tokenizer::from_bytes(read(&tokenizer_path)?).map_err(|e| LoadError::Tokenizer {
        path: tokenizer_path.clone(),
        reason: e.to_string(),
    })?;
    let settings = optional_json(&folder.join("tokenizer_config.json"))?;
    let generation = optional_json(&folder.join("generation_config.json"))?;
    let template_path = folder.join("chat_template.jinja");
    let template = match template_path.exists() {
        true => Some(read(&template_path)?),
        false => settings.get("chat_template").and_then(default_template),
    };
    let mut stop_ids: Vec<u32> = [config, &generation].into_iter().flat_map(stop_ids).collect();
    let bos = special_token(&settings, "bos_token");
    let eos = special_token(&settings, "eos_token");
    stop_ids.extend(eos.as_deref().and_then(|eos| tokenizer.token_to_id(eos)));
    let template_path = if template_path.exists() {
        template_path
    } else {
        folder.join("tokenizer_config.json")
    };
    let added = tokenizer.get_added_tokens_decoder();
    let silent = added
        .iter()
        .filter(|(_, token)| token.special)
        .map(|(id, _)| *id)
        .collect();
    let parts = TextParts {
        tokenizer,
        template,
        bos,
        eos,
        silent,
        stop_ids,
    };
    ModelText::new(&tokenizer_path, &template_path, parts)
}

/// One template, or the one named `default` of several.
fn default_template(value: &Value) -> Option<String> {
    match value {
        Value::String(template) => Some(template.clone()),
        Value::Array(named) => named
            .iter()
            .find(|entry| entry["name"] == "default")
            .and_then(|entry| entry["template"].as_str())
            .map(str::to_owned),
        _ => None,
    }
}

/// A token given as text, or as an object that describes it.
fn special_token(settings: &Value, key: &str) -> Option<String> {
    let value = settings.get(key)?;
    value
        .as_str()
        .or_else(|| value.get("content")?.as_str())
        .map(str::to_owned)
}

/// `eos_token_id`, which is a number or a list.
fn stop_ids(config: &Value) -> Vec<u32> {
    let number = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let text = config.get("text_config").unwrap_or(config);
    match text.get("eos_token_id") {
        Some(Value::Array(ids)) => ids.iter().filter_map(number).collect(),
        Some(id) => number(id).into_iter().collect(),
        None => Vec::new(),
    }
}

fn optional_json(path: &Path) -> Result<Value, LoadError> {
    if path.exists() {
        json(path, &read(path)?)
    } else {
        Ok(Value::Null)
    }
}

fn json(path: &Path, text: &str) -> Result<Value, LoadError> {
    serde_json::from_str(text).map_err(|e| LoadError::Format {
        path: path.to_owned(),
        reason: e.to_string(),
    })
}

/// A file's text.
pub(crate) fn read(path: &Path) -> Result<String, LoadError> {
    std::fs::read_to_string(path).map_err(|source| LoadError::File {
        path: path.to_owned(),
        source,
    })
}
