//! Attention over a window: the same as over everything while nothing falls out of it, and from then on the same
//! whatever was cached, received or dropped.

use crate::support::{
    MODELS, answer, config, decode_job, folder, key, kv_for, load, prefill, prefill_job, prompt, start,
};
use portolan_base::Bytes;
use portolan_base::kv::KvWindow;
use portolan_engine::{InstanceConfig, LoadedModel, NativeInstance, generate, load_model};
use portolan_ports::{Engine, EngineError, KvSet, Role};
use std::sync::Arc;

/// Sees two blocks and a half, and the first three tokens.
const NARROW: KvWindow = KvWindow {
    tokens: 100,
    sinks: 3,
};

fn windowed(name: &str, window: KvWindow) -> Arc<LoadedModel> {
    Arc::new(load_model(&folder(name)).unwrap().with_window(window))
}

#[tokio::test]
async fn a_window_that_holds_the_whole_context_changes_no_bit() {
    let prompt = prompt(200);
    let wide = KvWindow {
        tokens: 208,
        sinks: 0,
    };
    for name in MODELS {
        let mut bits = Vec::new();
        for model in [load(name), windowed(name, wide), windowed(name, NARROW)] {
            let engine = start(&model);
            let kv = kv_for(&engine, &prompt).await;
            bits.push(answer(engine.decode(decode_job(&prompt, kv, 8))).await.bits());
        }
        assert_eq!(bits[0], bits[1], "{name}");
        assert_ne!(bits[0], bits[2], "{name}: a narrow one does change something");
    }
}

#[tokio::test]
async fn cached_received_and_computed_kv_give_the_same_answer_beyond_the_window() {
    let prompt = prompt(400);
    let before = &prompt[..399];
    for name in MODELS {
        let model = windowed(name, NARROW);
        // One state from beginning to end, in which blocks are dropped on the way.
        let alone = generate(&model, &prompt, 80, &mut |_| {}).unwrap().tokens;
        for cached in [0, 64, 192, 320, 384] {
            let engine = start(&model);
            if cached > 0 {
                prefill(&engine, prefill_job(&prompt[..cached], 0)).await.unwrap();
            }
            let (pieces, report) = prefill(&engine, prefill_job(before, 0)).await.unwrap();
            assert_eq!(report.cached as usize, cached, "{name}");
            // Token 399 sees 300 and later, and the first three.
            let attention = pieces.iter().filter(|piece| !piece.id.is_empty());
            let ranges: Vec<_> = attention.map(|piece| piece.id.tokens.clone()).collect();
            assert!(
                ranges.iter().all(|range| range.start == 0 || range.start >= 256),
                "{ranges:?}"
            );
            let layout = Arc::clone(&engine.describe().layout);
            let kv = KvSet::assemble(layout, 399, pieces).unwrap();
            let receiver = NativeInstance::start(Arc::clone(&model), config("d", Role::Decode)).unwrap();
            let got = answer(receiver.decode(decode_job(&prompt, kv, 80))).await;
            assert_eq!(got.tokens, alone, "{name} with {cached} cached");
        }
    }
}

/// One block of this model is 128 KiB; four fit, and the prompt has six.
#[tokio::test]
async fn reuse_needs_the_blocks_within_the_window_only() {
    let model = windowed("tiny-qwen3", NARROW);
    let small = InstanceConfig {
        pool: Bytes(560 << 10),
        ..config("a", Role::Both)
    };
    let engine = NativeInstance::start(Arc::clone(&model), small).unwrap();
    let tokens = prompt(384);
    prefill(&engine, prefill_job(&tokens, 0)).await.unwrap();
    let held = engine.held(&key(), &tokens, &[]);
    assert_eq!(held.tokens, 384);
    let mut starts: Vec<_> = held.pieces.iter().map(|piece| piece.id.tokens.start).collect();
    starts.dedup();
    assert_eq!(starts.first(), Some(&0));
    assert!(
        starts.iter().all(|start| *start == 0 || *start >= 256),
        "{starts:?}"
    );
    let (_, report) = prefill(&engine, prefill_job(&tokens, 0)).await.unwrap();
    assert_eq!((report.cached, report.computed), (384, 0));
    // What a receiver keeps of a set is enough for it to hold the prefix, too.
    let longer = prompt(400);
    let kv = kv_for(&engine, &longer).await;
    let receiver = start(&model);
    answer(receiver.decode(decode_job(&longer, kv, 1))).await;
    assert_eq!(receiver.held(&key(), &longer, &[]).tokens, 384);
}

#[tokio::test]
async fn kv_of_another_window_is_refused() {
    let prompt = prompt(70);
    let kv = kv_for(&start(&load("tiny-qwen3")), &prompt).await;
    let engine = start(&windowed("tiny-qwen3", NARROW));
    let end = answer(engine.decode(decode_job(&prompt, kv, 1))).await.end;
    let Some(portolan_ports::DecodeEvent::Failed(EngineError::BadJob(why))) = end else {
        panic!("{end:?}")
    };
    assert!(why.contains("window"), "{why}");
}
