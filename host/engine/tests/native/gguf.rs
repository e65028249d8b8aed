//! A GGUF file made here from random weights, so that the format's path is tested without a download.

use crate::support::{answer, config, decode_job, kv_for};
use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use portolan_base::Moment;
use portolan_engine::{NativeInstance, generate, load_model};
use portolan_ports::{ChatMessage, Role, TemplateValues};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

const HIDDEN: usize = 64;
const FEED_FORWARD: usize = 96;
const LAYERS: usize = 2;

/// The byte alphabet, three merges, two control tokens and one that a user defined.
fn vocabulary() -> Vec<String> {
    let mut spare = 0x100u32..;
    let mut tokens: Vec<String> = (0..=u8::MAX)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte).to_string(),
            _ => char::from_u32(spare.next().unwrap()).unwrap().to_string(),
        })
        .collect();
    tokens.extend(["ab", "Ġab", "12", "<|end|>", "<|begin|>", "<tool>"].map(str::to_owned));
    tokens
}

fn text(value: &str) -> Value {
    Value::String(value.to_owned())
}

fn texts<S: AsRef<str>>(values: impl IntoIterator<Item = S>) -> Value {
    Value::Array(values.into_iter().map(|value| text(value.as_ref())).collect())
}

fn metadata() -> Vec<(&'static str, Value)> {
    let tokens = vocabulary();
    let kind = |token: &String| match token.as_str() {
        "<|end|>" | "<|begin|>" => 3,
        "<tool>" => 4,
        _ => 1,
    };
    let kinds = tokens.iter().map(|token| Value::U32(kind(token))).collect();
    vec![
        ("general.architecture", text("llama")),
        ("llama.block_count", Value::U32(LAYERS as u32)),
        ("llama.context_length", Value::U32(512)),
        ("llama.embedding_length", Value::U32(HIDDEN as u32)),
        ("llama.feed_forward_length", Value::U32(FEED_FORWARD as u32)),
        ("llama.attention.head_count", Value::U32(4)),
        ("llama.attention.head_count_kv", Value::U32(2)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("smollm")),
        ("tokenizer.ggml.token_type", Value::Array(kinds)),
        ("tokenizer.ggml.merges", texts(["a b", "Ġ ab", "1 2"])),
        ("tokenizer.ggml.eos_token_id", Value::U32(259)),
        ("tokenizer.ggml.bos_token_id", Value::U32(260)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
        ("tokenizer.ggml.tokens", texts(tokens)),
        (
            "tokenizer.chat_template",
            text("{{ messages[0]['content'] }}<|end|>"),
        ),
    ]
}

fn tensor(seed: usize, shape: &[usize], dtype: GgmlDType) -> QTensor {
    let count: usize = shape.iter().product();
    let noise = |i: usize| ((i * 2_654_435_761 + seed * 40_503) % 65_536) as f32 / 65_536.0 - 0.5;
    let offset = if shape.len() == 1 { 1.0 } else { 0.0 };
    let values = (0..count).map(|i| 0.3 * noise(i) + offset).collect();
    QTensor::quantize(&Tensor::from_vec(values, shape, &Device::Cpu).unwrap(), dtype).unwrap()
}

fn tensors() -> Vec<(String, QTensor)> {
    let vocabulary = vocabulary().len();
    let (plain, quantised) = (GgmlDType::F32, GgmlDType::Q4_1);
    let mut all = vec![
        (
            "token_embd.weight".to_owned(),
            tensor(1, &[vocabulary, HIDDEN], GgmlDType::Q8_0),
        ),
        ("output_norm.weight".to_owned(), tensor(2, &[HIDDEN], plain)),
    ];
    for layer in 0..LAYERS {
        let parts: [(&str, &[usize], GgmlDType); 9] = [
            ("attn_norm", &[HIDDEN], plain),
            ("attn_q", &[HIDDEN, HIDDEN], quantised),
            ("attn_k", &[HIDDEN / 2, HIDDEN], quantised),
            ("attn_v", &[HIDDEN / 2, HIDDEN], quantised),
            ("attn_output", &[HIDDEN, HIDDEN], quantised),
            ("ffn_norm", &[HIDDEN], plain),
            ("ffn_gate", &[FEED_FORWARD, HIDDEN], quantised),
            ("ffn_up", &[FEED_FORWARD, HIDDEN], quantised),
            ("ffn_down", &[HIDDEN, FEED_FORWARD], quantised),
        ];
        for (i, (name, shape, dtype)) in parts.into_iter().enumerate() {
            all.push((
                format!("blk.{layer}.{name}.weight"),
                tensor(10 * layer + i, shape, dtype),
            ));
        }
    }
    all
}

fn write(folder: &Path, metadata: &[(&str, Value)], tensors: &[(String, QTensor)]) -> PathBuf {
    let path = folder.join("tiny.gguf");
    let mut file = std::fs::File::create(&path).unwrap();
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor))
        .collect();
    gguf_file::write(&mut file, &metadata, &tensors).unwrap();
    path
}

#[tokio::test]
async fn a_gguf_file_is_a_whole_model() {
    let folder = TempDir::new().unwrap();
    let model = Arc::new(load_model(&write(folder.path(), &metadata(), &tensors())).unwrap());
    assert_eq!((model.vocabulary(), model.context_tokens().0), (262, 512));
    let text = model.text();
    // Digits are cut one by one, so "1 2" is never merged.
    assert_eq!(
        text.encode("ab ab12", false).unwrap(),
        [256, 257, u32::from(b'1'), u32::from(b'2')]
    );
    assert_eq!(text.encode("ab<|end|>", true).unwrap(), [260, 256, 259]);
    let mut stream = text.stream();
    let shown: String = [257, 259, 261, 258]
        .map(|token| stream.push(token).unwrap())
        .concat();
    assert_eq!(shown, " ab<tool>12", "control tokens are not text");
    assert_eq!(text.stop_ids(), [259]);
    let message = ChatMessage {
        role: "user".to_owned(),
        content: "hi".to_owned(),
        rest: serde_json::Map::new(),
    };
    assert_eq!(
        text.render_chat(&[message], &TemplateValues::new(), Moment(0))
            .unwrap(),
        "hi<|end|>"
    );
    let prompt: Vec<u32> = (0..150).map(|i| (i * 37) % 256).collect();
    let whole = generate(&model, &prompt, 16, &mut |_| {}).unwrap();
    let first = NativeInstance::start(Arc::clone(&model), config("p", Role::Prefill)).unwrap();
    let second = NativeInstance::start(Arc::clone(&model), config("d", Role::Decode)).unwrap();
    let kv = kv_for(&first, &prompt).await;
    let mut job = decode_job(&prompt, kv, 16);
    job.stop_ids = text.stop_ids().to_vec();
    let split = answer(portolan_ports::Engine::decode(&second, job)).await;
    assert_eq!(split.tokens, whole.tokens);
    assert!(
        split.logits.iter().any(|logit| *logit != split.logits[0]),
        "the logits say something"
    );
}

#[test]
fn faults_of_a_file_are_named() {
    let folder = TempDir::new().unwrap();
    let refused = |metadata: &[(&str, Value)], tensors: &[(String, QTensor)], expected: &[&str]| {
        let error = load_model(&write(folder.path(), metadata, tensors))
            .unwrap_err()
            .to_string();
        assert!(
            expected.iter().all(|part| error.contains(part)),
            "{error:?} lacks one of {expected:?}"
        );
    };
    let with = |key: &'static str, value: Value| {
        let mut all = metadata();
        all.retain(|(name, _)| *name != key);
        all.push((key, value));
        all
    };
    refused(
        &with("general.architecture", text("bert")),
        &tensors(),
        &["general.architecture", "bert"],
    );
    refused(
        &with("llama.rope.scaling.type", text("yarn")),
        &tensors(),
        &["rope.scaling"],
    );
    refused(
        &with("llama.attention.head_count", Value::U32(3)),
        &tensors(),
        &["head_count_kv", "3 heads"],
    );
    refused(
        &with("tokenizer.ggml.pre", text("exotic")),
        &tensors(),
        &["tokenizer.ggml.pre", "exotic", "smollm"],
    );
    refused(
        &with("tokenizer.ggml.model", text("llama")),
        &tensors(),
        &["tokenizer", "llama"],
    );
    refused(
        &with("llama.feed_forward_length", Value::U32(80)),
        &tensors(),
        &["ffn_gate", "[96, 64]", "[80, 64]"],
    );
    let mut biased = tensors();
    biased.push((
        "blk.0.attn_q.bias".to_owned(),
        tensor(9, &[HIDDEN], GgmlDType::F32),
    ));
    refused(&metadata(), &biased, &["blk.0.attn_q.bias", "not supported"]);
    let mut short = tensors();
    short.retain(|(name, _)| name != "blk.1.attn_k.weight");
    refused(&metadata(), &short, &["blk.1.attn_k.weight"]);
    let path = folder.path().join("torn.gguf");
    std::fs::write(&path, b"GGUF\x03\0\0\0").unwrap();
    assert!(load_model(&path).unwrap_err().to_string().contains("torn.gguf"));

    // A download that was cut, in the head and in the last tensor.
    let whole = std::fs::read(write(folder.path(), &metadata(), &tensors())).unwrap();
    for (bytes, said) in [
        (200, "ends within its head"),
        (whole.len() - 1, "tensors reach to byte"),
    ] {
        std::fs::write(&path, &whole[..bytes]).unwrap();
        let error = load_model(&path).unwrap_err().to_string();
        assert!(
            error.contains(said) && error.contains("the download was cut"),
            "{bytes}: {error}"
        );
    }
    std::fs::write(&path, &whole).unwrap();
    assert!(load_model(&path).is_ok(), "the whole of it loads");
}
