//! Models whose files are wrong: the error names what, where, and what would be right.

use crate::support::{folder, load, oracle};
use candle_core::{DType, Device, Tensor};
use portolan_base::Moment;
use portolan_engine::load_model;
use portolan_ports::{ChatMessage, TemplateValues, TextError, TextModel};
use std::collections::HashMap;
use std::path::Path;
use tempfile::TempDir;

/// A copy of the dense model that a test may damage.
fn copy() -> TempDir {
    let copy = TempDir::new().unwrap();
    for name in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
    ] {
        std::fs::copy(folder("tiny-qwen3").join(name), copy.path().join(name)).unwrap();
    }
    copy
}

fn edit_config(folder: &Path, edit: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) {
    let path = folder.join("config.json");
    let mut config = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    edit(&mut config);
    std::fs::write(path, serde_json::to_string(&config).unwrap()).unwrap();
}

fn weights(folder: &Path) -> HashMap<String, Tensor> {
    candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu).unwrap()
}

fn refused(folder: &Path, expected: &[&str]) {
    let error = load_model(folder).unwrap_err().to_string();
    for part in expected {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    refused(Path::new("/nowhere"), &["/nowhere", "GGUF"]);
    let model = copy();
    std::fs::remove_file(model.path().join("tokenizer.json")).unwrap();
    refused(model.path(), &["tokenizer.json", "could not be read"]);
    let model = copy();
    std::fs::write(model.path().join("config.json"), "{").unwrap();
    refused(model.path(), &["config.json", "EOF"]);
    let model = copy();
    std::fs::write(model.path().join("model.safetensors"), [0; 100]).unwrap();
    refused(model.path(), &["model.safetensors", "damaged"]);
    let model = copy();
    let whole = std::fs::read(model.path().join("model.safetensors")).unwrap();
    std::fs::write(model.path().join("model.safetensors"), &whole[..whole.len() / 2]).unwrap();
    refused(model.path(), &["model.safetensors", "damaged"]);
}

#[test]
fn settings_that_the_forward_pass_does_not_compute_are_refused() {
    let cases: [(&str, serde_json::Value, &[&str]); 10] = [
        (
            "architectures",
            serde_json::json!(["MambaForCausalLM"]),
            &["MambaForCausalLM", "Qwen3ForCausalLM"],
        ),
        (
            "hidden_act",
            serde_json::json!("gelu"),
            &["hidden_act", "gelu", "silu"],
        ),
        ("attention_bias", serde_json::json!(true), &["attention_bias"]),
        ("mlp_bias", serde_json::json!(true), &["mlp_bias"]),
        (
            "rope_scaling",
            serde_json::json!({"rope_type": "linear"}),
            &["rope_scaling", "factor"],
        ),
        (
            "rope_parameters",
            serde_json::json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0,
                "original_max_position_embeddings": 64}),
            &["rope_parameters", "low_freq_factor"],
        ),
        (
            "rope_parameters",
            serde_json::json!({"rope_type": "yarn"}),
            &["rope_parameters", "yarn"],
        ),
        (
            "num_key_value_heads",
            serde_json::json!(3),
            &["num_key_value_heads", "3", "4"],
        ),
        (
            "layer_types",
            serde_json::json!(["full_attention"]),
            &["layer_types", "1 entries", "4 layers"],
        ),
        ("hidden_size", serde_json::json!(0), &["hidden_size", "0"]),
    ];
    for (key, value, expected) in cases {
        let model = copy();
        edit_config(model.path(), |config| {
            config.insert(key.to_owned(), value);
        });
        refused(model.path(), &[&["config.json"], expected].concat());
    }
}

#[test]
fn tensors_that_are_missing_or_of_another_shape_are_named() {
    let model = copy();
    let mut tensors = weights(model.path());
    tensors.remove("model.layers.2.mlp.up_proj.weight");
    candle_core::safetensors::save(&tensors, model.path().join("model.safetensors")).unwrap();
    refused(model.path(), &["model.layers.2.mlp.up_proj.weight", "no tensor"]);
    let model = copy();
    let mut tensors = weights(model.path());
    tensors.remove("lm_head.weight");
    candle_core::safetensors::save(&tensors, model.path().join("model.safetensors")).unwrap();
    refused(model.path(), &["lm_head.weight", "no tensor"]);
    edit_config(model.path(), |config| {
        config.insert("tie_word_embeddings".to_owned(), serde_json::json!(true));
    });
    load_model(model.path()).unwrap();
    let model = copy();
    edit_config(model.path(), |config| {
        config.insert("intermediate_size".to_owned(), serde_json::json!(256));
    });
    refused(model.path(), &["mlp.gate_proj.weight", "[128, 64]", "[256, 64]"]);
}

#[test]
fn weights_of_sixteen_bits_count_as_the_floats_they_are_the_upper_half_of() {
    let (half, whole) = (copy(), copy());
    let (mut halves, mut floats) = (HashMap::new(), HashMap::new());
    for (name, tensor) in weights(half.path()) {
        let rounded = tensor.to_dtype(DType::BF16).unwrap();
        floats.insert(name.clone(), rounded.to_dtype(DType::F32).unwrap());
        halves.insert(name, rounded);
    }
    for (model, tensors) in [(&half, &halves), (&whole, &floats)] {
        candle_core::safetensors::save(tensors, model.path().join("model.safetensors")).unwrap();
    }
    let (half, whole) = (
        load_model(half.path()).unwrap(),
        load_model(whole.path()).unwrap(),
    );
    assert_eq!(half.probe().unwrap(), whole.probe().unwrap());
    let exact = load_model(&folder("tiny-qwen3")).unwrap();
    assert_ne!(half.probe().unwrap(), exact.probe().unwrap());
}

#[test]
fn shards_are_put_together_and_may_not_lie_elsewhere() {
    let model = copy();
    let mut map = HashMap::new();
    let mut shards = [HashMap::new(), HashMap::new()];
    for (i, (name, tensor)) in weights(model.path()).into_iter().enumerate() {
        map.insert(name.clone(), format!("part-{}.safetensors", i % 2));
        shards[i % 2].insert(name, tensor);
    }
    for (i, shard) in shards.iter().enumerate() {
        candle_core::safetensors::save(shard, model.path().join(format!("part-{i}.safetensors"))).unwrap();
    }
    std::fs::remove_file(model.path().join("model.safetensors")).unwrap();
    let index = model.path().join("model.safetensors.index.json");
    std::fs::write(&index, serde_json::json!({ "weight_map": map }).to_string()).unwrap();
    let case = &oracle("tiny-qwen3").prompts[0];
    let sharded = load_model(model.path()).unwrap();
    let generated = portolan_engine::generate(&sharded, &case.prompt_ids, 4, &mut |_| {}).unwrap();
    assert_eq!(generated.tokens, case.greedy_ids[..4]);
    std::fs::write(&index, r#"{"weight_map": {"a": "../part-0.safetensors"}}"#).unwrap();
    refused(model.path(), &["weight_map", "../part-0.safetensors"]);
}

/// Released Qwen3.5 checkpoints also see images: the language model is a part of the configuration and of the names.
#[test]
fn the_language_part_of_a_larger_checkpoint_is_found() {
    let model = TempDir::new().unwrap();
    let source = folder("tiny-qwen3_5");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(source.join(name), model.path().join(name)).unwrap();
    }
    let text: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(source.join("config.json")).unwrap()).unwrap();
    let config =
        serde_json::json!({"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text});
    std::fs::write(model.path().join("config.json"), config.to_string()).unwrap();
    let renamed: HashMap<String, Tensor> = weights(&source)
        .into_iter()
        .map(|(name, tensor)| (name.replacen("model.", "model.language_model.", 1), tensor))
        .collect();
    candle_core::safetensors::save(&renamed, model.path().join("model.safetensors")).unwrap();
    let case = &oracle("tiny-qwen3_5").prompts[0];
    let loaded = load_model(model.path()).unwrap();
    let generated = portolan_engine::generate(&loaded, &case.prompt_ids, 4, &mut |_| {}).unwrap();
    assert_eq!(generated.tokens, case.greedy_ids[..4]);
    assert_eq!(loaded.text().stop_ids(), [2047]);
}

#[test]
fn a_chat_is_rendered_with_the_models_own_template_and_a_model_without_one_says_so() {
    let hello = ChatMessage {
        role: "user".to_owned(),
        content: "Hello".to_owned(),
        rest: serde_json::Map::new(),
    };
    let text = load("tiny-qwen3").text();
    let render = |text: &dyn TextModel| {
        text.render_chat(std::slice::from_ref(&hello), &TemplateValues::new(), Moment(0))
    };
    let rendered = render(text.as_ref()).unwrap();
    assert_eq!(
        rendered,
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    );
    let tokens = text.encode(&rendered, false).unwrap();
    assert_eq!(
        (tokens[0], tokens.iter().filter(|token| **token == 2047).count()),
        (2046, 1)
    );
    let model = copy();
    std::fs::remove_file(model.path().join("tokenizer_config.json")).unwrap();
    let bare = load_model(model.path()).unwrap().text();
    assert_eq!(render(bare.as_ref()), Err(TextError::NoChatTemplate));
    std::fs::write(
        model.path().join("chat_template.jinja"),
        "{{ messages[0].content }}!",
    )
    .unwrap();
    assert_eq!(
        render(load_model(model.path()).unwrap().text().as_ref()).unwrap(),
        "Hello!"
    );
}
