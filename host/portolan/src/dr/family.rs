//! What each family of models needs beside its weights, and which file of it is for what.
//!
//! | form | needs |
//! |---|---|
//! | folder, any family | `config.json`, `tokenizer.json`, weights (all shards that the index names) |
//! | folder, Qwen and Llama | a chat template, `generation_config.json`, the rotary settings in `config.json` |
//! | folder, quantised | `quantization_config` in `config.json`, or `quantize_config.json` |
//! | folder, with adapters | `adapter_config.json` and the adapter's weights, each in a folder of its own |
//! | `.gguf` file | in its head: architecture, tokenizer, chat template, rotary settings; for quantised weights the version of the quantisation |

use super::error::DrError;
use super::manifest::Role;
use portolan_engine::gguf_settings;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A file of a model, and what it is for.
pub(super) type Found = (PathBuf, Vec<Role>);

/// Architectures whose prompts are rendered by a chat template and whose positions are rotary.
const CHATTING: &[&str] = &["qwen", "llama", "mistral", "gemma", "deepseek", "kimi", "minimax"];

/// The files of a model.
///
/// # Errors
/// [`DrError::Lacks`] names what the model's family needs and the model lacks.
pub(super) fn files_of(model: &str, path: &Path) -> Result<Vec<Found>, DrError> {
    match path.is_dir() {
        true => folder(model, path),
        false => gguf(model, path),
    }
}

fn gguf(model: &str, path: &Path) -> Result<Vec<Found>, DrError> {
    let unreadable = |error: portolan_engine::LoadError| DrError::Model {
        model: model.to_owned(),
        detail: error.to_string(),
    };
    let settings = gguf_settings(path).map_err(unreadable)?;
    let lacks = |what: &str, key: &str| {
        let detail = format!("the head of {} has no {key}", path.display());
        DrError::lacks(format!("{what} of model {model}"), detail)
    };
    let architecture = settings.get("general.architecture").cloned().flatten();
    let architecture = architecture.ok_or_else(|| lacks("the config", "general.architecture"))?;
    let has = |key: &str| settings.contains_key(key);
    if !has("tokenizer.ggml.tokens") {
        return Err(lacks("the tokenizer", "tokenizer.ggml.tokens"));
    }
    if !has("tokenizer.chat_template") && is_chatting(&architecture) {
        return Err(lacks("the chat template", "tokenizer.chat_template"));
    }
    let rope = format!("{architecture}.rope.");
    if is_chatting(&architecture) && !settings.keys().any(|key| key.starts_with(&rope)) {
        return Err(lacks("the RoPE scaling", &format!("{rope}…")));
    }
    let mut roles = vec![
        Role::Weights,
        Role::Config,
        Role::Tokenizer,
        Role::ChatTemplate,
        Role::GenerationConfig,
        Role::RopeScaling,
    ];
    if has("general.quantization_version") {
        roles.push(Role::QuantisationConfig);
    }
    Ok(vec![(path.to_owned(), roles)])
}

fn folder(model: &str, path: &Path) -> Result<Vec<Found>, DrError> {
    let place = |file: &str| path.join(file);
    let lacks = |what: &str, detail: String| DrError::lacks(format!("{what} of model {model}"), detail);
    let config = json(&place("config.json"))?.ok_or_else(|| {
        lacks(
            "the config",
            format!("there is no config.json in {}", path.display()),
        )
    })?;
    let (mut found, family) = (Vec::new(), family(&config));
    let text = config.get("text_config").unwrap_or(&config);
    let mut roles = vec![Role::Config];
    let rotary = ["rope_scaling", "rope_theta", "rope_parameters"];
    if rotary.iter().any(|key| text.get(key).is_some()) {
        roles.push(Role::RopeScaling);
    } else if is_chatting(&family) {
        let detail = format!(
            "config.json has none of {}, and {family} needs one",
            rotary.join(", ")
        );
        return Err(lacks("the RoPE scaling", detail));
    }
    if config.get("quantization_config").is_some() {
        roles.push(Role::QuantisationConfig);
    }
    found.push((place("config.json"), roles));
    if !place("tokenizer.json").exists() {
        let detail = format!("there is no tokenizer.json in {}", path.display());
        return Err(lacks("the tokenizer", detail));
    }
    found.push((place("tokenizer.json"), vec![Role::Tokenizer]));
    tokenizer_settings(path, &mut found)?;
    let has = |found: &[Found], role| found.iter().any(|(_, roles)| roles.contains(&role));
    if is_chatting(&family) && !has(&found, Role::ChatTemplate) {
        let detail =
            format!("{family} needs chat_template.jinja, or `chat_template` in tokenizer_config.json");
        return Err(lacks("the chat template", detail));
    }
    if place("generation_config.json").exists() {
        found.push((place("generation_config.json"), vec![Role::GenerationConfig]));
    } else if is_chatting(&family) {
        let detail = format!(
            "there is no generation_config.json in {}; its stop tokens would be lost",
            path.display()
        );
        return Err(lacks("the generation config", detail));
    }
    if place("quantize_config.json").exists() {
        found.push((place("quantize_config.json"), vec![Role::QuantisationConfig]));
    }
    found.extend(weights(model, path)?);
    adapters(model, path, &mut found)?;
    Ok(found)
}

/// `model_type`, or the first architecture, in lower case.
fn family(config: &Value) -> String {
    let named = config.get("model_type").and_then(Value::as_str);
    let first = || config.get("architectures")?.get(0)?.as_str();
    named.or_else(first).unwrap_or_default().to_lowercase()
}

fn is_chatting(family: &str) -> bool {
    CHATTING
        .iter()
        .any(|known| family.to_lowercase().starts_with(known))
}

fn tokenizer_settings(path: &Path, found: &mut Vec<Found>) -> Result<(), DrError> {
    let settings_path = path.join("tokenizer_config.json");
    if let Some(settings) = json(&settings_path)? {
        let mut roles = vec![Role::Tokenizer];
        if settings.get("chat_template").is_some() {
            roles.push(Role::ChatTemplate);
        }
        found.push((settings_path, roles));
    }
    for (file, role) in [
        ("chat_template.jinja", Role::ChatTemplate),
        ("special_tokens_map.json", Role::Tokenizer),
        ("added_tokens.json", Role::Tokenizer),
        ("vocab.json", Role::Tokenizer),
        ("merges.txt", Role::Tokenizer),
        ("tokenizer.model", Role::Tokenizer),
    ] {
        if path.join(file).exists() {
            found.push((path.join(file), vec![role]));
        }
    }
    Ok(())
}

/// The one file of weights, or the index and every shard it names.
fn weights(model: &str, path: &Path) -> Result<Vec<Found>, DrError> {
    let lacks = |file: &str| {
        let detail = format!("there is no {file} in {}", path.display());
        DrError::lacks(format!("weights of model {model}"), detail)
    };
    let index_path = path.join("model.safetensors.index.json");
    let Some(index) = json(&index_path)? else {
        let one = path.join("model.safetensors");
        return match one.exists() {
            true => Ok(vec![(one, vec![Role::Weights])]),
            false => Err(lacks("model.safetensors")),
        };
    };
    let map = index.get("weight_map").and_then(Value::as_object);
    let shards: BTreeSet<&str> = map
        .into_iter()
        .flat_map(|map| map.values())
        .filter_map(Value::as_str)
        .collect();
    let mut found = vec![(index_path, vec![Role::Weights])];
    for shard in shards {
        let file = path.join(shard);
        if !file.exists() {
            return Err(lacks(shard));
        }
        found.push((file, vec![Role::Weights]));
    }
    Ok(found)
}

/// Folders within the model's that hold an adapter.
fn adapters(model: &str, path: &Path, found: &mut Vec<Found>) -> Result<(), DrError> {
    let entries = std::fs::read_dir(path).map_err(DrError::file(path))?;
    for folder in entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_dir())
    {
        if folder.join("adapter_config.json").exists() {
            found.extend(adapter(model, &folder)?);
        }
    }
    Ok(())
}

/// An adapter's manifest and weights.
pub(super) fn adapter(model: &str, folder: &Path) -> Result<Vec<Found>, DrError> {
    let place = |file: &str| folder.join(file);
    let lacks = |file: &str| {
        let detail = format!("there is no {file} in {}", folder.display());
        DrError::lacks(format!("an adapter (LoRA) of {model}"), detail)
    };
    if !place("adapter_config.json").exists() {
        return Err(lacks("adapter_config.json"));
    }
    let weights = ["adapter_model.safetensors", "adapter_model.bin"].map(place);
    let weights = weights.into_iter().find(|file| file.exists());
    let weights = weights.ok_or_else(|| lacks("adapter_model.safetensors"))?;
    Ok(vec![
        (place("adapter_config.json"), vec![Role::LoraManifest]),
        (weights, vec![Role::LoraManifest, Role::Weights]),
    ])
}

/// A JSON file; none when there is none.
fn json(path: &Path) -> Result<Option<Value>, DrError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(DrError::file(path)(source)),
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| DrError::Damaged {
            what: path.display().to_string(),
            detail: error.to_string(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn qwen() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (file, text) in [
            (
                "config.json",
                r#"{"model_type": "qwen3", "rope_theta": 1000000.0, "quantization_config": {"bits": 4}}"#,
            ),
            ("tokenizer.json", "{}"),
            ("tokenizer_config.json", r#"{"chat_template": "x"}"#),
            ("generation_config.json", "{}"),
            (
                "model.safetensors.index.json",
                r#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}"#,
            ),
            ("one.safetensors", "1"),
            ("two.safetensors", "2"),
        ] {
            fs::write(folder.path().join(file), text).unwrap();
        }
        folder
    }

    #[test]
    fn every_file_of_a_whole_model_is_found_with_what_it_is_for() {
        let folder = qwen();
        let lora = folder.path().join("polite");
        fs::create_dir(&lora).unwrap();
        fs::write(lora.join("adapter_config.json"), "{}").unwrap();
        fs::write(lora.join("adapter_model.safetensors"), "").unwrap();
        let found = files_of("m", folder.path()).unwrap();
        let has = |role| found.iter().any(|(_, roles)| roles.contains(&role));
        for role in [
            Role::Weights,
            Role::Config,
            Role::Tokenizer,
            Role::ChatTemplate,
            Role::GenerationConfig,
            Role::QuantisationConfig,
            Role::RopeScaling,
            Role::LoraManifest,
        ] {
            assert!(has(role), "{role:?}");
        }
        assert_eq!(found.len(), 9);
    }

    #[test]
    fn what_a_family_needs_and_a_model_lacks_is_named() {
        for (without, text, named) in [
            ("config.json", None, "the config of model m"),
            ("tokenizer.json", None, "the tokenizer of model m"),
            ("tokenizer_config.json", None, "the chat template of model m"),
            (
                "tokenizer_config.json",
                Some("{}"),
                "qwen3 needs chat_template.jinja",
            ),
            ("generation_config.json", None, "the generation config of model m"),
            ("two.safetensors", None, "there is no two.safetensors"),
            (
                "config.json",
                Some(r#"{"model_type": "llama"}"#),
                "the RoPE scaling of model m",
            ),
        ] {
            let folder = qwen();
            match text {
                None => fs::remove_file(folder.path().join(without)).unwrap(),
                Some(text) => fs::write(folder.path().join(without), text).unwrap(),
            }
            let refused = files_of("m", folder.path()).unwrap_err().to_string();
            assert!(refused.contains(named), "{refused}");
        }
        let folder = qwen();
        fs::create_dir(folder.path().join("polite")).unwrap();
        fs::write(folder.path().join("polite/adapter_config.json"), "{}").unwrap();
        let refused = files_of("m", folder.path()).unwrap_err().to_string();
        assert!(refused.contains("an adapter (LoRA) of m"), "{refused}");
    }

    #[test]
    fn the_demos_gguf_file_is_whole_and_a_cut_one_is_not() {
        let Some(folder) = std::env::var_os("PORTOLAN_MODEL_DIR") else {
            return;
        };
        let path = PathBuf::from(folder).join("SmolLM2-135M-Instruct.Q4_1.gguf");
        let found = files_of("m", &path).unwrap();
        assert!(found[0].1.contains(&Role::QuantisationConfig) && found[0].1.contains(&Role::ChatTemplate));
        let cut = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
        let mut head = vec![0; 4096];
        std::io::Read::read_exact(&mut fs::File::open(&path).unwrap(), &mut head).unwrap();
        fs::write(cut.path(), head).unwrap();
        assert!(files_of("m", cut.path()).is_err());
    }
}
