//! KV that went through host memory and files is the same KV, and nothing that was forgotten comes back that way.

use crate::support::{
    Answer, MODELS, about, answer, config, decode_job, folder, key, kv_for, load, prefill, prefill_job,
    prompt, start,
};
use portolan_base::kv::KvWindow;
use portolan_base::{BlockId, Bytes, ModelName};
use portolan_disk::{DiskConfig, DiskTier, LandingConfig, Realm};
use portolan_engine::{InstanceConfig, LoadedModel, NativeInstance, Surroundings, load_model};
use portolan_kv::tier::{BlockTier, HostTier, Tiers};
use portolan_kv::{PoolConfig, Selector};
use portolan_ports::{Engine, Role};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn disk(model: &LoadedModel, folder: &Path) -> Arc<DiskTier> {
    let name = ModelName::new("model").unwrap();
    let layout = model.layout(name.clone(), 1);
    let probe = model.probe().unwrap();
    let config = DiskConfig {
        folder: folder.to_owned(),
        model: name,
        realm: Realm::of(&layout, probe.iter().map(|part| &part[..])),
        secret: [7; 32],
        pool: PoolConfig::of(Bytes(64 << 20)),
        queue: Bytes(64 << 20),
        landing: LandingConfig::NONE,
        secure_delete: true,
    };
    Arc::new(DiskTier::open(config).unwrap())
}

/// An instance with room for so many bytes, above these tiers.
fn above(model: &Arc<LoadedModel>, pool: u64, tiers: Vec<Arc<dyn BlockTier>>) -> NativeInstance {
    let config = InstanceConfig {
        pool: Bytes(pool),
        ..config("a", Role::Both)
    };
    let around = Surroundings {
        tiers: Arc::new(Tiers::new(tiers)),
        ..Surroundings::default()
    };
    NativeInstance::start_in(Arc::clone(model), config, around).unwrap()
}

fn used(engine: &NativeInstance) -> u64 {
    engine.cache().unwrap().usage().used.0
}

fn hits(tier: &dyn BlockTier) -> u64 {
    tier.usage().tenants.iter().map(|tenant| tenant.counts.hits).sum()
}

/// Prompts that have nothing in common with `prompt(200)`.
fn others() -> [Vec<u32>; 2] {
    [1, 2].map(|n| prompt(200).iter().map(|token| (token + n) % 2000).collect())
}

async fn answer_from(engine: &dyn Engine, prompt: &[u32]) -> Answer {
    let kv = kv_for(engine, prompt).await;
    answer(engine.decode(decode_job(prompt, kv, 8))).await
}

#[tokio::test]
async fn kv_from_host_memory_and_from_disk_gives_the_same_bits_also_after_a_restart() {
    let prompt = prompt(200);
    for name in MODELS {
        let model = load(name);
        let cold = start(&model);
        let expected = answer_from(&cold, &prompt).await;
        let room = used(&cold);
        let folder = tempfile::tempdir().unwrap();

        let (host, files) = (
            Arc::new(HostTier::new(PoolConfig::of(Bytes(room)))),
            disk(&model, folder.path()),
        );
        let engine = above(&model, room, vec![host.clone(), files.clone()]);
        answer_from(&engine, &prompt).await;
        answer_from(&engine, &others()[0]).await;
        let again = answer_from(&engine, &prompt).await;
        assert_eq!(
            (again.bits(), &again.tokens),
            (expected.bits(), &expected.tokens),
            "{name}: host memory"
        );
        assert_eq!((hits(&*host), hits(&*files)), (3, 0), "{name}");
        for other in others() {
            answer_from(&engine, &other).await;
        }
        files.settle();
        let (_, report) = prefill(&engine, prefill_job(&prompt[..199], 0)).await.unwrap();
        assert_eq!((report.cached, report.computed), (192, 7), "{name}");
        assert!(hits(&*files) > 0, "{name}: some of it was on disk by then");
        let again = answer_from(&engine, &prompt).await;
        assert_eq!(
            (again.bits(), &again.tokens),
            (expected.bits(), &expected.tokens),
            "{name}: disk"
        );
        files.settle();
        drop((engine, host, files));

        let files = disk(&model, folder.path());
        let engine = above(&model, room, vec![files.clone()]);
        answer_from(&engine, &prompt).await;
        answer_from(&engine, &others()[0]).await;
        // The instance lets go of its tiers on a thread of its own.
        files.settle();
        drop((engine, files));
        let files = disk(&model, folder.path());
        let engine = above(&model, room, vec![files.clone()]);
        let (_, report) = prefill(&engine, prefill_job(&prompt[..199], 0)).await.unwrap();
        assert_eq!(
            (report.cached, hits(&*files)),
            (192, 3),
            "{name}: after a restart"
        );
        let again = answer_from(&engine, &prompt).await;
        assert_eq!(
            (again.bits(), &again.tokens),
            (expected.bits(), &expected.tokens),
            "{name}: after a restart"
        );
        assert_eq!(files.usage().damaged, 0);
    }
}

#[tokio::test]
async fn a_damaged_file_is_computed_again() {
    let prompt = prompt(200);
    let model = load("tiny-qwen3_5");
    let cold = start(&model);
    let expected = answer_from(&cold, &prompt).await;
    let folder = tempfile::tempdir().unwrap();
    let files = disk(&model, folder.path());
    let engine = above(&model, used(&cold), vec![files.clone()]);
    answer_from(&engine, &prompt).await;
    answer_from(&engine, &others()[0]).await;
    files.settle();
    let realm = std::fs::read_dir(folder.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    for entry in std::fs::read_dir(realm).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.len() - 100;
        bytes[at] ^= 4;
        std::fs::write(&path, bytes).unwrap();
    }
    let again = answer_from(&engine, &prompt).await;
    assert_eq!((again.bits(), again.tokens), (expected.bits(), expected.tokens));
    assert!(files.usage().damaged > 0);
}

#[tokio::test]
async fn what_was_forgotten_is_in_no_tier_and_is_computed_again() {
    let prompt = prompt(200);
    let model = load("tiny-qwen3");
    let room = {
        let cold = start(&model);
        answer_from(&cold, &prompt).await;
        used(&cold)
    };
    let folder = tempfile::tempdir().unwrap();
    let files = disk(&model, folder.path());
    let engine = above(&model, room, vec![files.clone()]);
    answer_from(&engine, &prompt).await;
    answer_from(&engine, &others()[0]).await;
    let tiers = engine.cache().unwrap().tiers();
    let everything = tiers.invalidate(&Selector::Scope(about().scope.clone()));
    assert!(everything.blocks >= 6, "{everything:?}");
    assert_eq!((used(&engine), files.usage().blocks), (0, 0));
    let (_, report) = prefill(&engine, prefill_job(&prompt[..199], 0)).await.unwrap();
    assert_eq!(report.cached, 0);
    files.settle();
    drop((engine, files));
    assert_eq!(disk(&model, folder.path()).usage().blocks, 0);
}

/// One block of this model is 128 KiB; four fit, and the prompt has six.
#[tokio::test]
async fn under_a_window_nothing_goes_down_and_orders_reach_over_what_the_pool_let_go() {
    let window = KvWindow {
        tokens: 100,
        sinks: 3,
    };
    let model = load_model(&folder("tiny-qwen3")).unwrap().with_window(window);
    let host = Arc::new(HostTier::new(PoolConfig::of(Bytes(64 << 20))));
    let engine = above(&Arc::new(model), 560 << 10, vec![host.clone()]);
    let tokens = prompt(384);
    prefill(&engine, prefill_job(&tokens, 0)).await.unwrap();
    assert_eq!(engine.held(&key(), &tokens, &[]).tokens, 384);
    assert_eq!(host.usage().blocks, 0);
    let second = BlockId::chain(&key(), &tokens, 64)[1];
    let tiers = engine.cache().unwrap().tiers();
    assert!(tiers.invalidate(&Selector::Block(second)).blocks > 0);
    assert_eq!(engine.held(&key(), &tokens, &[]).tokens, 64);
    assert_eq!(tiers.invalidate(&Selector::All).blocks, 1);
    assert_eq!(engine.held(&key(), &tokens, &[]).tokens, 0);
}

#[tokio::test]
async fn what_a_pool_hands_down_before_the_end_is_found_at_the_next_start() {
    let prompt = prompt(200);
    for name in MODELS {
        let model = load(name);
        let folder = tempfile::tempdir().unwrap();
        let files = disk(&model, folder.path());
        let engine = above(&model, 64 << 20, vec![files.clone()]);
        let expected = answer_from(&engine, &prompt).await;
        assert_eq!(files.usage().blocks, 0, "{name}: nothing was pushed out");
        let until = Instant::now() + Duration::from_secs(10);
        engine
            .cache()
            .unwrap()
            .hand_down(&mut |block, used_at| files.take(block, used_at, until));
        files.settle();
        drop((engine, files));

        let files = disk(&model, folder.path());
        let engine = above(&model, 64 << 20, vec![files.clone()]);
        let (_, report) = prefill(&engine, prefill_job(&prompt[..199], 0)).await.unwrap();
        assert_eq!((report.cached, report.computed), (192, 7), "{name}");
        let again = answer_from(&engine, &prompt).await;
        assert_eq!(
            (again.bits(), again.tokens),
            (expected.bits(), expected.tokens),
            "{name}"
        );
    }
}
