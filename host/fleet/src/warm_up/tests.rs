//! The first work of an instance, in every role, and of one that fails at first.

use super::*;
use portolan_base::kv::{KvDtype, KvLayout, LayerKv};
use portolan_base::{InstanceName, ModelName, Role, Tokens};
use portolan_ports::engine_fake::{EngineFault, FakeEngine};

fn engine(role: Role) -> FakeEngine {
    let model = ModelName::new("fake").unwrap();
    FakeEngine::new(EngineDescription {
        instance: InstanceName::new("e1").unwrap(),
        model: model.clone(),
        role,
        layout: Arc::new(KvLayout {
            model,
            model_version: 1,
            dtype: KvDtype::F32,
            block_tokens: 64,
            window: None,
            layers: vec![LayerKv::FullAttention {
                kv_heads: 1,
                head_dim: 2,
            }],
        }),
        context_tokens: Tokens(1024),
        vocabulary: 257,
        decode_slots: 4,
    })
}

#[tokio::test]
async fn works_in_every_role() {
    for role in [Role::Both, Role::Prefill, Role::Decode] {
        warm_up(&engine(role)).await.unwrap();
    }
}

#[tokio::test]
async fn one_that_fails_is_said_to_fail_wherever_it_does() {
    let broken = || EngineError::Broken("no weights".to_owned());
    for fault in [
        EngineFault::FailPrefill(broken()),
        EngineFault::FailDecode(1, broken()),
    ] {
        let engine = engine(Role::Both);
        engine.set_fault(Some(fault.clone()));
        assert!(warm_up(&engine).await.is_err(), "{fault:?}");
    }
}

#[tokio::test]
async fn is_tried_again_until_it_works() {
    let engine = Arc::new(engine(Role::Both));
    engine.set_fault(Some(EngineFault::FailPrefill(EngineError::Full(
        "busy".to_owned(),
    ))));
    let pause = Duration::from_millis(5);
    let warming = tokio::spawn(try_until_warm(Arc::clone(&engine) as Arc<dyn Engine>, pause));
    tokio::time::sleep(pause * 4).await;
    assert!(!warming.is_finished());
    engine.set_fault(None);
    tokio::time::timeout(Duration::from_secs(5), warming)
        .await
        .unwrap()
        .unwrap();
}
