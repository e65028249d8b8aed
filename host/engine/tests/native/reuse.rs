//! Cached, received and recomputed KV are the same bytes, and give the same logits bit for bit.

use crate::support::{
    Answer, MODELS, about, answer, config, decode_job, key, kv_for, load, prefill, prefill_job, prompt, start,
};
use portolan_base::{BlockHash, Bytes, CachePart, Tokens};
use portolan_engine::{LoadedModel, NativeInstance};
use portolan_ports::{Engine, KeepJob, KvEvent, KvPiece, KvSet, Role};
use std::sync::Arc;

async fn answer_from(engine: &dyn Engine, prompt: &[u32]) -> Answer {
    let kv = kv_for(engine, prompt).await;
    answer(engine.decode(decode_job(prompt, kv, 8))).await
}

fn stored(parent: Option<BlockHash>, blocks: &[BlockHash]) -> KvEvent {
    KvEvent::Stored {
        part: CachePart::DEVICE,
        parent,
        blocks: blocks.to_vec(),
        about: Some(about()),
    }
}

fn sorted(mut pieces: Vec<KvPiece>) -> Vec<KvPiece> {
    pieces.sort_by_key(|piece| (piece.id.layer, piece.id.tokens.start));
    pieces
}

#[tokio::test]
async fn nothing_one_block_or_all_blocks_cached_give_the_same_bits() {
    let prompt = prompt(200);
    let before = &prompt[..199];
    for name in MODELS {
        let model = load(name);
        let cold = start(&model);
        let (pieces, report) = prefill(&cold, prefill_job(before, 0)).await.unwrap();
        assert_eq!((report.cached, report.computed), (0, 199), "{name}");
        let expected = sorted(pieces);
        let cold_answer = answer_from(&cold, &prompt).await;
        for cached in [64, 128, 192] {
            let warm = start(&model);
            prefill(&warm, prefill_job(&prompt[..cached], 0)).await.unwrap();
            let (pieces, report) = prefill(&warm, prefill_job(before, 0)).await.unwrap();
            assert_eq!(report.cached as usize, cached, "{name}");
            assert_eq!(sorted(pieces), expected, "{name} with {cached} cached");
            assert_eq!(
                answer_from(&warm, &prompt).await.bits(),
                cold_answer.bits(),
                "{name}"
            );
        }
    }
}

#[tokio::test]
async fn a_prompt_that_is_cached_whole_needs_no_computing() {
    for name in MODELS {
        let engine = start(&load(name));
        let tokens = prompt(128);
        let (first, _) = prefill(&engine, prefill_job(&tokens, 0)).await.unwrap();
        let (again, report) = prefill(&engine, prefill_job(&tokens, 0)).await.unwrap();
        assert_eq!((report.cached, report.computed), (128, 0), "{name}");
        assert_eq!(sorted(again), sorted(first), "{name}");
    }
}

#[tokio::test]
async fn the_receiver_gets_only_what_it_does_not_hold() {
    let model = load("tiny-qwen3");
    let prompt = prompt(150);
    let before = &prompt[..149];
    let (holder, computing) = (start(&model), start(&model));
    prefill(&holder, prefill_job(&prompt[..64], 0)).await.unwrap();
    let held = holder.held(&key(), before, &[]);
    assert_eq!(held.tokens, 64);
    let expected = answer_from(&start(&model), &prompt).await;
    // Twice: the second time the sender has two blocks cached, and the receiver still holds one.
    for cached in [0, 128] {
        let (pieces, report) = prefill(&computing, prefill_job(before, held.tokens))
            .await
            .unwrap();
        assert_eq!(report.cached, cached);
        assert!(pieces.iter().all(|piece| piece.id.tokens.start >= 64));
        let layout = Arc::clone(&holder.describe().layout);
        let kv = KvSet::assemble(layout, 149, held.pieces.iter().cloned().chain(pieces)).unwrap();
        let answer = answer(holder.decode(decode_job(&prompt, kv, 8))).await;
        assert_eq!(answer, expected);
    }
}

#[tokio::test]
async fn received_kv_is_kept_by_dense_models_and_not_by_hybrids() {
    let prompt = prompt(140);
    for (name, kept) in [("tiny-qwen3", 128), ("tiny-qwen3_5", 0)] {
        let model = load(name);
        let kv = kv_for(&start(&model), &prompt).await;
        let receiver = NativeInstance::start(Arc::clone(&model), config("d", Role::Both)).unwrap();
        let mut events = receiver.events();
        answer(receiver.decode(decode_job(&prompt, kv, 1))).await;
        assert_eq!(receiver.held(&key(), &prompt, &[]).tokens, kept, "{name}");
        let (_, report) = prefill(&receiver, prefill_job(&prompt[..139], 0)).await.unwrap();
        assert_eq!(report.cached, kept, "{name}");
        let hashes = BlockHash::chain(&key(), &prompt);
        assert_eq!(events.recv().await.unwrap(), stored(None, &hashes[..4]), "{name}");
        assert_eq!(
            events.recv().await.unwrap(),
            stored(Some(hashes[3]), &hashes[4..8]),
            "{name}"
        );
    }
}

#[tokio::test]
async fn what_one_instance_keeps_another_goes_on_from() {
    let prompt = prompt(200);
    let before = &prompt[..199];
    for name in MODELS {
        let model = load(name);
        let holder = start(&model);
        let (expected, _) = prefill(&holder, prefill_job(before, 0)).await.unwrap();
        for own in [0, 64] {
            let taker = start(&model);
            let mut events = taker.events();
            if own > 0 {
                prefill(&taker, prefill_job(&prompt[..own], 0)).await.unwrap();
                events.recv().await.unwrap();
            }
            let has = taker.kept(&key(), before, &[]);
            assert_eq!(has.tokens as usize, own, "{name}");
            let kept = holder.kept(&key(), before, &[]);
            assert_eq!(kept.tokens, 192, "{name}");
            // The taker's own attention KV, and of the holder's what lies beyond.
            let own_pieces = has.pieces.into_iter().filter(|piece| !piece.id.is_empty());
            let others = kept.pieces.into_iter();
            let lacking = others.filter(|piece| piece.id.is_empty() || piece.id.tokens.start as usize >= own);
            let layout = Arc::clone(&taker.describe().layout);
            let job = KeepJob {
                key: key(),
                tokens: prompt[..192].into(),
                kv: KvSet::assemble(layout, 192, own_pieces.chain(lacking)).unwrap(),
                about: about(),
            };
            assert_eq!(taker.keep(&job), Tokens(192), "{name}");
            let first = BlockHash::chain(&key(), &prompt)[own / 16];
            let told = events.recv().await.unwrap();
            assert!(
                matches!(told, KvEvent::Stored { blocks, .. } if blocks[0] == first),
                "{name}"
            );
            let (pieces, report) = prefill(&taker, prefill_job(before, 0)).await.unwrap();
            assert_eq!((report.cached, report.computed), (192, 7), "{name}");
            assert_eq!(
                sorted(pieces),
                sorted(expected.clone()),
                "{name}, {own} of its own"
            );
            assert_eq!(taker.keep(&job), Tokens(192), "{name}: again");
        }
    }
}

#[tokio::test]
async fn kv_of_another_length_or_model_is_not_kept() {
    let model = load("tiny-qwen3");
    let (holder, taker) = (start(&model), start(&model));
    let tokens = prompt(128);
    prefill(&holder, prefill_job(&tokens, 0)).await.unwrap();
    let set = |layout, tokens| {
        KvSet::assemble(layout, tokens, holder.kept(&key(), &prompt(128), &[]).pieces).unwrap()
    };
    let layout = Arc::clone(&taker.describe().layout);
    let mut other = layout.as_ref().clone();
    other.model_version += 1;
    for (tokens, kv) in [
        (64, set(Arc::clone(&layout), 128)),
        (128, set(Arc::new(other), 128)),
    ] {
        let job = KeepJob {
            key: key(),
            tokens: prompt(tokens).into(),
            kv,
            about: about(),
        };
        assert_eq!(taker.keep(&job), Tokens(0));
    }
    assert_eq!(taker.load().kv_used.0, 0);
}

#[tokio::test]
async fn another_tenant_reaches_nothing() {
    let engine = start(&load("tiny-qwen3"));
    let tokens = prompt(128);
    prefill(&engine, prefill_job(&tokens, 0)).await.unwrap();
    let other = portolan_base::TenantKey::derive(&[1; 32], "other", "model", 1);
    assert_eq!(engine.held(&other, &tokens, &[]).tokens, 0);
    assert_eq!(engine.kept(&other, &tokens, &[]).tokens, 0);
    assert_eq!(engine.held(&key(), &tokens, &[]).tokens, 128);
}

#[tokio::test]
async fn a_full_pool_tells_what_it_lost() {
    let model = load("tiny-qwen3");
    // One block of this model is 2 × 2 heads × 64 tokens × 32 values × 4 bytes in each of 4 layers: 128 KiB.
    let small = portolan_engine::InstanceConfig {
        pool: Bytes(200 << 10),
        ..config("a", Role::Both)
    };
    let engine = NativeInstance::start(model, small).unwrap();
    let mut events = engine.events();
    let (first, second) = (prompt(65), prompt(130)[65..].to_vec());
    for tokens in [&first, &second] {
        prefill(&engine, prefill_job(tokens, 0)).await.unwrap();
    }
    let (a, b) = (
        BlockHash::chain(&key(), &first),
        BlockHash::chain(&key(), &second),
    );
    assert_eq!(events.recv().await.unwrap(), stored(None, &a));
    let removed = KvEvent::Removed {
        part: CachePart::DEVICE,
        blocks: a,
    };
    assert_eq!(events.recv().await.unwrap(), removed);
    assert_eq!(events.recv().await.unwrap(), stored(None, &b));
    assert!(engine.load().kv_used.0 > 500);
}

/// Several prompts at once on one instance, against each alone on a fresh one.
#[tokio::test]
async fn requests_side_by_side_do_not_change_each_other() {
    for name in MODELS {
        let model = load(name);
        let prompts: Vec<Vec<u32>> = [70, 100, 131].map(|n| prompt(200)[200 - n..].to_vec()).into();
        let shared: Arc<NativeInstance> = Arc::new(start(&model));
        let tasks: Vec<_> = prompts
            .iter()
            .map(|prompt| tokio::spawn(run(Arc::clone(&shared), prompt.clone())))
            .collect();
        for (task, prompt) in tasks.into_iter().zip(&prompts) {
            let together = task.await.unwrap();
            assert_eq!(
                together,
                alone(&model, prompt).await,
                "{name}, {} tokens",
                prompt.len()
            );
        }
    }
}

async fn run(engine: Arc<NativeInstance>, prompt: Vec<u32>) -> Answer {
    answer_from(&*engine, &prompt).await
}

async fn alone(model: &Arc<LoadedModel>, prompt: &[u32]) -> Answer {
    answer_from(&start(model), prompt).await
}
