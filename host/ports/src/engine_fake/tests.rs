//! The fake must be as particular about its KV as a real engine is in effect.

use super::*;
use crate::{KvSet, KvSetError, Role, Sampling};
use portolan_base::kv::{KvDtype, KvLayout};
use portolan_base::{InstanceName, ModelName, Provenance};

fn engine(layers: Vec<LayerKv>) -> FakeEngine {
    let model = ModelName::new("fake").unwrap();
    FakeEngine::new(EngineDescription {
        instance: InstanceName::new("e1").unwrap(),
        model: model.clone(),
        role: Role::Both,
        layout: Arc::new(KvLayout {
            model,
            model_version: 1,
            dtype: KvDtype::F32,
            block_tokens: 4,
            window: None,
            layers,
        }),
        context_tokens: Tokens(64),
        vocabulary: 257,
        decode_slots: 4,
    })
}

fn attention() -> LayerKv {
    LayerKv::FullAttention {
        kv_heads: 1,
        head_dim: 2,
    }
}

fn recurrent() -> LayerKv {
    LayerKv::Recurrent {
        conv_channels: 1,
        conv_width: 1,
        heads: 1,
        key_dim: 2,
        value_dim: 2,
    }
}

fn key(tenant: &str) -> TenantKey {
    TenantKey::derive(&[7; 32], tenant, "fake", 1)
}

async fn prefill(
    engine: &FakeEngine,
    tenant: &str,
    tokens: &[u32],
    held: u32,
) -> (PrefillReport, Vec<KvPiece>) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let request = RequestId::from_client("r").unwrap();
    let job = PrefillJob {
        request,
        key: key(tenant),
        about: about(),
        tokens: tokens.into(),
        held,
        retention: crate::Retention::Keep,
        cancel: Cancel::new(),
    };
    let report = engine.prefill(job, sender).await.unwrap();
    let mut pieces = Vec::new();
    while let Some(piece) = receiver.recv().await {
        pieces.push(piece);
    }
    (report, pieces)
}

fn assemble(engine: &FakeEngine, tokens: u32, pieces: Vec<KvPiece>) -> Result<KvSet, KvSetError> {
    KvSet::assemble(Arc::clone(&engine.describe().layout), tokens, pieces)
}

fn about() -> Arc<Provenance> {
    Arc::new(Provenance::public(ModelName::new("m").unwrap(), 1))
}

async fn decode(engine: &FakeEngine, tenant: &str, prompt: &[u32], kv: KvSet) -> Vec<DecodeEvent> {
    let mut events = engine.decode(DecodeJob {
        request: RequestId::from_client("r").unwrap(),
        key: key(tenant),
        about: about(),
        prompt: prompt.into(),
        kv,
        sampling: Sampling::GREEDY,
        max_tokens: 9,
        stop_ids: vec![FAKE_END],
        retention: crate::Retention::Keep,
        logits: false,
        cancel: Cancel::new(),
    });
    let mut seen = Vec::new();
    while let Some(event) = events.recv().await {
        seen.push(event);
    }
    seen
}

#[tokio::test]
async fn an_answer_repeats_the_prompt_when_its_kv_came_from_anywhere() {
    let prompt = [5, 6, 7, 8, 9, 10];
    for layers in [vec![attention()], vec![recurrent(), attention()]] {
        let (here, there) = (engine(layers.clone()), engine(layers));
        let (_, pieces) = prefill(&there, "a", &prompt[..5], 0).await;
        let kv = assemble(&here, 5, pieces).unwrap();
        let events = decode(&here, "a", &prompt, kv).await;
        let tokens = prompt.map(DecodeEvent::Token);
        assert_eq!(events[..6], tokens);
        assert_eq!(events[6..], [DecodeEvent::Finished(FinishReason::Stop)]);
    }
}

#[tokio::test]
async fn what_was_computed_before_is_held_and_only_the_rest_is_sent() {
    let engine = engine(vec![attention()]);
    let tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    prefill(&engine, "a", &tokens, 0).await;
    let held = engine.held(&key("a"), &tokens, &[]);
    assert_eq!(held.tokens, 8, "whole blocks only");
    assert_eq!(engine.held(&key("b"), &tokens, &[]).tokens, 0, "another tenant's");
    let (report, rest) = prefill(&engine, "a", &tokens, held.tokens).await;
    assert_eq!((report.cached, report.computed), (8, 1));
    let kv = assemble(&engine, 9, held.pieces.into_iter().chain(rest).collect()).unwrap();
    let prompt = [&tokens[..], &[3]].concat();
    assert_eq!(decode(&engine, "a", &prompt, kv).await[0], DecodeEvent::Token(1));
}

#[tokio::test]
async fn wrong_kv_is_noticed() {
    let engine = engine(vec![attention()]);
    let prompt = [1, 2, 3, 4, 5, 6];
    let broken =
        |events: Vec<DecodeEvent>| matches!(events[..], [DecodeEvent::Failed(EngineError::Broken(_))]);

    let (_, pieces) = prefill(&engine, "a", &[1, 2, 9, 4, 5], 0).await;
    let kv = assemble(&engine, 5, pieces).unwrap();
    assert!(
        broken(decode(&engine, "a", &prompt, kv).await),
        "another prompt's KV"
    );

    let (_, pieces) = prefill(&engine, "b", &prompt[..5], 0).await;
    let kv = assemble(&engine, 5, pieces).unwrap();
    assert!(
        broken(decode(&engine, "a", &prompt, kv).await),
        "another tenant's KV"
    );

    engine.set_fault(Some(EngineFault::DamageKv));
    let (_, pieces) = prefill(&engine, "a", &prompt[..5], 0).await;
    let kv = assemble(&engine, 5, pieces).unwrap();
    assert!(broken(decode(&engine, "a", &prompt, kv).await), "damaged KV");
}
