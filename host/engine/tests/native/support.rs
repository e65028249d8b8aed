//! Models, instances and jobs for the tests.

use portolan_base::{Bytes, InstanceName, ModelName, Provenance, RequestId, TenantKey, TenantName};
use portolan_engine::{CacheConfig, InstanceConfig, LoadedModel, NativeInstance, load_model};
use portolan_ports::{
    Cancel, DecodeEvent, DecodeJob, Engine, EngineError, KvPiece, KvSet, PrefillJob, PrefillReport, Role,
    Sampling,
};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::mpsc;

/// The tiny models: dense of two kinds, hybrid, hybrid with wide heads, hybrid with experts, short convolutions.
pub(crate) const MODELS: [&str; 6] = [
    "tiny-llama",
    "tiny-qwen3",
    "tiny-qwen3_5",
    "tiny-qwen3_5-h128",
    "tiny-qwen3-next",
    "tiny-lfm2",
];

#[derive(Deserialize)]
pub(crate) struct Oracle {
    pub(crate) prompts: Vec<OraclePrompt>,
}

#[derive(Deserialize)]
pub(crate) struct OraclePrompt {
    pub(crate) prompt: String,
    pub(crate) prompt_ids: Vec<u32>,
    pub(crate) greedy_ids: Vec<u32>,
    /// The least that the reference's likeliest token was ahead of the next in any step.
    pub(crate) min_top1_top2_gap: f32,
    pub(crate) logits: String,
    pub(crate) state: String,
}

/// Below this lead of the reference's own token, rounding may put another first.
const TIE: f32 = 1e-3;

impl OraclePrompt {
    /// Fails unless `tokens` are the reference's, or part from them where it is undecided itself.
    #[expect(clippy::print_stdout, reason = "a tie is worth telling whoever runs the test")]
    pub(crate) fn check_greedy(&self, tokens: &[u32], at: &str) {
        let parted = tokens.iter().zip(&self.greedy_ids).position(|(a, b)| a != b);
        assert_eq!(tokens.len(), self.greedy_ids.len(), "{at}");
        if let Some(step) = parted {
            let lead = self.min_top1_top2_gap;
            assert!(
                lead < TIE,
                "{at}: another token at step {step}; the reference's lead is {lead}"
            );
            println!("{at}: another token at step {step}, a tie of the reference's");
        }
    }
}

pub(crate) fn folder(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/conformance/oracle")
        .join(model)
}

pub(crate) fn oracle(model: &str) -> Oracle {
    serde_json::from_str(&std::fs::read_to_string(folder(model).join("oracle.json")).unwrap()).unwrap()
}

pub(crate) fn load(model: &str) -> Arc<LoadedModel> {
    Arc::new(load_model(&folder(model)).unwrap())
}

/// A prompt of `n` tokens that differ enough to be worth a cache.
pub(crate) fn prompt(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 7919 + 11) % 2000).collect()
}

pub(crate) fn key() -> TenantKey {
    TenantKey::derive(&[1; 32], "tenant", "model", 1)
}

pub(crate) fn about() -> Arc<Provenance> {
    let tenant = TenantName::new("tenant").unwrap();
    Arc::new(Provenance::of(tenant, ModelName::new("model").unwrap(), 1))
}

pub(crate) fn config(name: &str, role: Role) -> InstanceConfig {
    InstanceConfig {
        name: InstanceName::new(name).unwrap(),
        model: ModelName::new("model").unwrap(),
        model_version: 1,
        role,
        decode_slots: 4,
        pool: Bytes(64 << 20),
        cache: CacheConfig::default(),
    }
}

pub(crate) fn start(model: &Arc<LoadedModel>) -> NativeInstance {
    NativeInstance::start(Arc::clone(model), config("a", Role::Both)).unwrap()
}

pub(crate) fn prefill_job(tokens: &[u32], held: u32) -> PrefillJob {
    PrefillJob {
        request: RequestId::from_client("r").unwrap(),
        key: key(),
        about: about(),
        tokens: tokens.into(),
        held,
        retention: portolan_ports::Retention::Keep,
        cancel: Cancel::new(),
    }
}

pub(crate) fn decode_job(prompt: &[u32], kv: KvSet, max_tokens: u32) -> DecodeJob {
    DecodeJob {
        request: RequestId::from_client("r").unwrap(),
        key: key(),
        about: about(),
        prompt: prompt.into(),
        kv,
        sampling: Sampling::GREEDY,
        max_tokens,
        stop_ids: Vec::new(),
        retention: portolan_ports::Retention::Keep,
        logits: true,
        cancel: Cancel::new(),
    }
}

/// Runs a prefill and gathers its pieces.
pub(crate) async fn prefill(
    engine: &dyn Engine,
    job: PrefillJob,
) -> Result<(Vec<KvPiece>, PrefillReport), EngineError> {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let report = engine.prefill(job, sender).await?;
    let mut pieces = Vec::new();
    while let Some(piece) = receiver.recv().await {
        pieces.push(piece);
    }
    Ok((pieces, report))
}

/// The KV that decode needs for `prompt`, computed by `engine`.
pub(crate) async fn kv_for(engine: &dyn Engine, prompt: &[u32]) -> KvSet {
    let before = &prompt[..prompt.len() - 1];
    let (pieces, _) = prefill(engine, prefill_job(before, 0)).await.unwrap();
    KvSet::assemble(Arc::clone(&engine.describe().layout), before.len() as u32, pieces).unwrap()
}

/// What a decode said.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) logits: Vec<f32>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) end: Option<DecodeEvent>,
}

impl Answer {
    /// The logits' bits: what "equal" means here.
    pub(crate) fn bits(&self) -> Vec<u32> {
        self.logits.iter().map(|logit| logit.to_bits()).collect()
    }
}

pub(crate) async fn answer(mut events: mpsc::UnboundedReceiver<DecodeEvent>) -> Answer {
    let mut answer = Answer::default();
    while let Some(event) = events.recv().await {
        match event {
            DecodeEvent::Logits(logits) => answer.logits = logits,
            DecodeEvent::Token(token) => answer.tokens.push(token),
            end => answer.end = Some(end),
        }
    }
    answer
}

/// Values of a little-endian `f32` array file of NumPy.
pub(crate) fn npy(path: &Path) -> Vec<f32> {
    let file = std::fs::read(path).unwrap();
    assert_eq!(&file[..8], b"\x93NUMPY\x01\x00", "{}", path.display());
    let header = 10 + usize::from(u16::from_le_bytes([file[8], file[9]]));
    let text = String::from_utf8_lossy(&file[10..header]);
    assert!(
        text.contains("'<f4'") && text.contains("'fortran_order': False"),
        "{text}"
    );
    floats(&file[header..])
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

/// The largest difference of two arrays of one length.
pub(crate) fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}
