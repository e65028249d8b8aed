//! How fast the native engine is: prompt tokens a second, and answer tokens a second alone and for eight answers at
//! once. Each line on standard input starts a round, each round prints one line of JSON, so that a script can let rounds
//! of another engine run in between.
//!
//! ```text
//! yes go | head -5 | cargo run --release -p portolan-engine --example engine-speed -- .models/SmolLM2-135M-Instruct.Q4_1.gguf
//! ```

use portolan_base::{Bytes, InstanceName, ModelName, Provenance, RequestId, TenantKey};
use portolan_engine::{CacheConfig, InstanceConfig, NativeInstance, load_model};
use portolan_ports::{Cancel, DecodeEvent, DecodeJob, Engine, KvSet, PrefillJob, Retention, Role, Sampling};
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

const PROMPT: usize = 512;
const SHORT_PROMPT: usize = 32;
const ANSWER: u32 = 64;
const BATCH: usize = 8;

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let path = std::env::args().nth(1).ok_or("usage: engine-speed MODEL")?;
    let model = ModelName::new("speed")?;
    let config = InstanceConfig {
        name: InstanceName::new("speed")?,
        model: model.clone(),
        model_version: 1,
        role: Role::Both,
        decode_slots: BATCH as u32,
        pool: Bytes(1 << 30),
        cache: CacheConfig::default(),
    };
    let engine = NativeInstance::start(Arc::new(load_model(Path::new(&path))?), config)?;
    let speed = Speed {
        engine,
        about: Arc::new(Provenance::public(model, 1)),
    };
    for (round, line) in std::io::stdin().lines().enumerate() {
        line?;
        let prefill = PROMPT as f64 / speed.prefill(&speed.prompt(round, PROMPT)).await?.0.as_secs_f64();
        let alone = speed.decode(&speed.prompt(round, SHORT_PROMPT), 1).await?;
        let batch = speed.decode(&speed.prompt(round, SHORT_PROMPT), BATCH).await?;
        let figures = serde_json::json!({"prefill": prefill, "decode": alone, "decode_batch": batch});
        writeln!(std::io::stdout(), "{figures}")?;
    }
    Ok(())
}

struct Speed {
    engine: NativeInstance,
    about: Arc<Provenance>,
}

impl Speed {
    /// Tokens of no meaning; others in each round, so that none is cached.
    fn prompt(&self, round: usize, tokens: usize) -> Vec<u32> {
        let vocabulary = self.engine.describe().vocabulary as usize;
        (0..tokens)
            .map(|i| ((i * 7919 + round * 104_729 + tokens) % vocabulary) as u32)
            .collect()
    }

    fn key() -> TenantKey {
        TenantKey::derive(&[1; 32], "speed", "speed", 1)
    }

    async fn prefill(&self, tokens: &[u32]) -> Outcome<(Duration, KvSet)> {
        let job = PrefillJob {
            request: RequestId::from_client("speed").ok_or("no id")?,
            key: Self::key(),
            about: Arc::clone(&self.about),
            tokens: tokens.into(),
            held: 0,
            retention: Retention::Keep,
            cancel: Cancel::new(),
        };
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let started = Instant::now();
        self.engine.prefill(job, sender).await?;
        let took = started.elapsed();
        let mut pieces = Vec::new();
        while let Some(piece) = receiver.recv().await {
            pieces.push(piece);
        }
        let layout = Arc::clone(&self.engine.describe().layout);
        Ok((took, KvSet::assemble(layout, tokens.len() as u32, pieces)?))
    }

    /// Answer tokens a second of so many answers at once, from the first token to the last.
    async fn decode(&self, prompt: &[u32], answers: usize) -> Outcome<f64> {
        let (_, kv) = self.prefill(&prompt[..prompt.len() - 1]).await?;
        let job = |kv: KvSet| -> Outcome<DecodeJob> {
            Ok(DecodeJob {
                request: RequestId::from_client("speed").ok_or("no id")?,
                key: Self::key(),
                about: Arc::clone(&self.about),
                prompt: prompt.into(),
                kv,
                sampling: Sampling::GREEDY,
                max_tokens: ANSWER,
                stop_ids: Vec::new(),
                retention: Retention::Drop,
                logits: false,
                cancel: Cancel::new(),
            })
        };
        let mut streams = Vec::new();
        for _ in 0..answers {
            streams.push(self.engine.decode(job(kv.clone())?));
        }
        let (mut tokens, mut started) = (0, None);
        for mut stream in streams {
            while let Some(event) = stream.recv().await {
                match event {
                    DecodeEvent::Token(_) if started.is_none() => started = Some(Instant::now()),
                    DecodeEvent::Token(_) => tokens += 1,
                    DecodeEvent::Failed(error) => return Err(error.into()),
                    _ => {}
                }
            }
        }
        let took = started.ok_or("no token came")?.elapsed();
        Ok(f64::from(tokens) / took.as_secs_f64())
    }
}
