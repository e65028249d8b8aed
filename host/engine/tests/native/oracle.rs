//! Logits, states and greedy tokens against the reference implementation's.

use crate::support::{
    MODELS, answer, config, decode_job, floats, folder, kv_for, load, npy, oracle, prefill, prefill_job,
    start, worst,
};
use candle_core::Device;
use portolan_base::TenantName;
use portolan_base::kv::LayerKv;
use portolan_engine::{NativeInstance, generate};
use portolan_ports::{DecodeEvent, Engine, FinishReason, Role, TextModel};
use proptest::prelude::*;
use std::sync::{Arc, LazyLock};

/// Absolute. Single-precision sums in another order differ by some 1e-5 at logits of ten; a wrong formula differs by
/// more than 1e-1.
const TOLERANCE: f32 = 2e-3;

#[tokio::test]
async fn a_second_instance_answers_as_the_reference_does_from_kv_alone() {
    for name in MODELS {
        let model = load(name);
        let first = NativeInstance::start(Arc::clone(&model), config("p", Role::Prefill)).unwrap();
        let second = NativeInstance::start(Arc::clone(&model), config("d", Role::Decode)).unwrap();
        for case in oracle(name).prompts {
            let kv = kv_for(&first, &case.prompt_ids).await;
            let max_tokens = case.greedy_ids.len() as u32;
            let answer = answer(second.decode(decode_job(&case.prompt_ids, kv, max_tokens))).await;
            let difference = worst(&answer.logits, &npy(&folder(name).join(&case.logits)));
            println!("{name} {}: logits differ by {difference:e}", case.logits);
            assert!(difference < TOLERANCE, "{name} {}: {difference}", case.logits);
            case.check_greedy(&answer.tokens, &format!("{name} {}", case.logits));
            assert_eq!(answer.end, Some(DecodeEvent::Finished(FinishReason::Length)));
        }
    }
}

#[tokio::test]
async fn every_layer_keeps_what_the_reference_keeps() {
    for name in MODELS {
        let engine = start(&load(name));
        for case in oracle(name).prompts {
            let expected =
                candle_core::safetensors::load(folder(name).join(&case.state), &Device::Cpu).unwrap();
            let expect = |layer: u16, part: &str| -> Vec<f32> {
                expected[&format!("layers.{layer}.{part}")]
                    .flatten_all()
                    .unwrap()
                    .to_vec1()
                    .unwrap()
            };
            let tokens = case.prompt_ids.len();
            let (pieces, _) = prefill(&engine, prefill_job(&case.prompt_ids, 0)).await.unwrap();
            for (layer, kind) in (0u16..).zip(&engine.describe().layout.layers) {
                let own: Vec<_> = pieces.iter().filter(|piece| piece.id.layer == layer).collect();
                let difference = match *kind {
                    LayerKv::FullAttention { kv_heads, head_dim } => {
                        let (heads, dim) = (kv_heads as usize, head_dim as usize);
                        let reference = [expect(layer, "k"), expect(layer, "v")].concat();
                        let mut difference: f32 = 0.0;
                        for piece in own {
                            let (start, len) = (piece.id.tokens.start as usize, piece.id.len().0 as usize);
                            let values = floats(&piece.bytes);
                            for head in 0..2 * heads {
                                let ours = &values[head * len * dim..][..len * dim];
                                let theirs = &reference[(head * tokens + start) * dim..][..len * dim];
                                difference = difference.max(worst(ours, theirs));
                            }
                        }
                        difference
                    }
                    LayerKv::Recurrent { .. } => {
                        let memory = match expected.contains_key(&format!("layers.{layer}.recurrent_state")) {
                            true => expect(layer, "recurrent_state"),
                            false => Vec::new(),
                        };
                        let reference = [expect(layer, "conv_state"), memory].concat();
                        worst(&floats(&own[0].bytes), &reference)
                    }
                };
                assert!(
                    difference < TOLERANCE,
                    "{name} {} layer {layer}: {difference}",
                    case.state
                );
            }
        }
    }
}

/// Special tokens, beginnings of them, and what lies beside them in a chat.
const PARTS: [&str; 14] = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|im_",
    "|>",
    "<",
    " ",
    "\n",
    "\n\n",
    "user\n",
    "Caf\u{e9}s, cafe\u{301}s and \u{1f980}s",
    "  two  spaces  ",
    "A sentence that is long enough to be remembered, and sent again: 12345 times, don't you think so?",
    "\u{4f60}\u{597d}\u{ff0c}\u{4e16}\u{754c}",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_chat_that_was_cut_before_has_the_tokens_it_has_in_one_piece(
        parts in prop::collection::vec(0..PARTS.len(), 0..12),
    ) {
        static TEXTS: LazyLock<Vec<Arc<dyn TextModel>>> =
            LazyLock::new(|| MODELS.iter().map(|name| load(name).text()).collect());
        let chat: String = parts.into_iter().map(|part| PARTS[part]).collect();
        let (acme, globex) = (TenantName::new("acme").unwrap(), TenantName::new("globex").unwrap());
        for text in TEXTS.iter() {
            let whole = text.encode(&chat, false).unwrap();
            for whose in [&acme, &globex, &acme] {
                prop_assert_eq!(&text.encode_chat(&chat, whose).unwrap(), &whole);
            }
        }
    }
}

#[test]
fn prompts_are_cut_into_the_reference_tokens_and_answers_come_back_as_its_text() {
    for name in MODELS {
        let text = load(name).text();
        for case in oracle(name).prompts {
            assert_eq!(
                text.encode(&case.prompt, false).unwrap(),
                case.prompt_ids,
                "{name} {:?}",
                case.prompt
            );
            let mut stream = text.stream();
            let mut back = String::new();
            for token in &case.prompt_ids {
                back.push_str(&stream.push(*token).unwrap());
            }
            back.push_str(&stream.finish().unwrap());
            assert_eq!(back, case.prompt);
        }
        assert_eq!(text.stop_ids(), [2047]);
    }
}

#[test]
fn generation_without_an_instance_gives_the_same_tokens() {
    for name in MODELS {
        let model = load(name);
        for case in oracle(name).prompts {
            let mut heard = Vec::new();
            let max_tokens = case.greedy_ids.len() as u32;
            let generated = generate(&model, &case.prompt_ids, max_tokens, &mut |token| {
                heard.push(token);
            })
            .unwrap();
            case.check_greedy(&generated.tokens, name);
            assert_eq!(heard, generated.tokens);
        }
    }
}
