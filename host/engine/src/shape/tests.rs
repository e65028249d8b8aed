//! Sizes of models whose sizes are known.

use super::*;
use crate::load_model;
use portolan_base::ModelName;
use portolan_base::kv::{KvDtype, KvLayout, KvSize};

fn parsed(text: &str) -> CacheShape {
    hugging_face::parse(Path::new("config.json"), text).unwrap()
}

fn problem(text: &str) -> String {
    hugging_face::parse(Path::new("config.json"), text)
        .unwrap_err()
        .to_string()
}

#[test]
fn the_estimate_is_what_the_engine_keeps() {
    for name in ["tiny-qwen3", "tiny-qwen3_5", "tiny-qwen3_5-h128"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/conformance/oracle")
            .join(name);
        let layout = KvLayout {
            model: ModelName::new(name).unwrap(),
            model_version: 1,
            dtype: KvDtype::F32,
            block_tokens: 64,
            window: None,
            layers: load_model(&folder).unwrap().layers(),
        };
        let size = CacheShape::read(&folder).unwrap().at(Tokens(100));
        let kept = KvSize::from(&layout);
        assert_eq!(
            (size.fixed, size.per_token),
            (kept.fixed, kept.per_token),
            "{name}"
        );
        assert_eq!(size.total, kept.at(Tokens(100)), "{name}");
    }
}

#[test]
fn a_dense_model_follows_the_formula() {
    // Qwen3-235B-A22B: 94 layers, 4 key/value heads of 128, bfloat16: 192,512 bytes a token.
    let shape = parsed(
        r#"{"num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
            "torch_dtype": "bfloat16"}"#,
    );
    let size = shape.at(Tokens(1000));
    assert_eq!(size.per_token, Bytes(2 * 94 * 4 * 128 * 2));
    assert_eq!(size.total, Bytes(192_512_000));
    assert_eq!(size.fixed, Bytes(0));
}

#[test]
fn latent_attention_keeps_one_vector_a_token() {
    let shape = parsed(
        r#"{"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}"#,
    );
    assert_eq!(shape.at(Tokens(1)).per_token, Bytes(61 * 576 * 2));
}

#[test]
fn a_window_stops_growing_when_it_is_full() {
    let shape = parsed(
        r#"{"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512,
            "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 100}"#,
    );
    let token = 2 * 2 * 64 * 2;
    assert_eq!(shape.at(Tokens(100)).total, Bytes(2 * 100 * token));
    assert_eq!(shape.at(Tokens(300)).total, Bytes((100 + 300) * token));
    assert_eq!(shape.at(Tokens(300)).fixed, Bytes(100 * token));
    let off = r#"{"num_hidden_layers": 1, "num_attention_heads": 8, "hidden_size": 512, "sliding_window": 100,
                  "use_sliding_window": false}"#;
    assert_eq!(parsed(off).at(Tokens(300)).fixed, Bytes(0));
}

#[test]
fn what_is_missing_or_odd_is_named() {
    assert!(problem("{}").contains("`num_hidden_layers` is missing"));
    assert!(problem("[]").contains("damaged or of another format"));
    let layers = |rest: &str| format!(r#"{{"num_hidden_layers": 1, "num_attention_heads": 2, {rest}}}"#);
    assert!(problem(&layers(r#""head_dim": 0"#)).contains("`head_dim` is 0"));
    assert!(problem(&layers(r#""head_dim": 4294967295"#)).contains("at most"));
    assert!(problem(&layers(r#""layer_types": ["mamba"]"#)).contains("holds \"mamba\""));
    assert!(
        problem(&layers(r#""layer_types": ["sliding_attention"]"#)).contains("`sliding_window` is missing")
    );
    assert!(problem(&layers(r#""head_dim": 4, "dtype": "int3""#)).contains("`dtype`"));
}
