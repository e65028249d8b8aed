//! One engine instance: a worker thread that computes, and a handle that the host's other parts talk to.

mod adopt;
mod cache;
mod check;
mod decode;
mod fair;
mod meter;
mod prefill;
mod worker;

pub(crate) use check::check_prompt;

use crate::BLOCK_TOKENS;
use crate::generate::never_stop;
use crate::load::LoadedModel;
use async_trait::async_trait;
use cache::{Cache, Names};
pub use cache::{CacheConfig, Surroundings};
use decode::DecodeRun;
use meter::Meter;
use portolan_base::{Bytes, Dependency, InstanceName, ModelName, TenantKey, Tokens};
use portolan_ports::{
    DecodeEvent, DecodeJob, Engine, EngineDescription, EngineError, EngineLoad, HeldPrefix, KeepJob, KvCache,
    KvEvent, KvPiece, PrefillJob, PrefillReport, Role,
};
use prefill::{PrefillRun, Prepared};
use std::sync::Arc;
use std::sync::mpsc as queue;
use std::time::Instant;
use tokio::sync::{broadcast, mpsc, oneshot};
use worker::{Job, Worker, contained};

/// Prompt tokens of the first measurement: enough to take the path that prefill takes, a quarter of its piece, so
/// that starting several instances of a small model takes a second together.
const WARM_UP_TOKENS: usize = 16;

/// What an instance is to be.
#[derive(Clone, Debug)]
pub struct InstanceConfig {
    /// Unique within the site.
    pub name: InstanceName,
    /// The model's public name.
    pub model: ModelName,
    /// Raised whenever the model's files change; KV of one version never meets another.
    pub model_version: u64,
    /// What it is for. Jobs of the other kind are refused.
    pub role: Role,
    /// Sequences decoded at once, at least 1; further ones wait.
    pub decode_slots: u32,
    /// Memory for KV kept for reuse, and as much again for the KV of the sequences that run. When those need more, the
    /// latest give theirs up and compute it again; one always runs.
    pub pool: Bytes,
    /// How it is kept.
    pub cache: CacheConfig,
}

/// A running instance. Dropping it fails its jobs and ends its thread.
#[derive(Debug)]
pub struct NativeInstance {
    shared: Arc<Shared>,
    queue_depth: Option<u32>,
    jobs: queue::Sender<Job>,
}

/// What the handle and the worker both see.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) model: Arc<LoadedModel>,
    pub(crate) description: EngineDescription,
    pub(crate) cache: Arc<Cache>,
    pub(crate) meter: Arc<Meter>,
    /// Memory for the KV of running sequences.
    pub(crate) running_kv: Bytes,
}

impl NativeInstance {
    /// Starts the worker thread, after a short measurement so that [`Engine::load`] tells speeds from the beginning.
    ///
    /// # Errors
    /// [`EngineError::BadJob`] when the configuration has no decode slot; [`EngineError::Broken`] when the model does
    /// not run or the thread cannot be started.
    pub fn start(model: Arc<LoadedModel>, config: InstanceConfig) -> Result<Self, EngineError> {
        Self::start_in(model, config, Surroundings::default())
    }

    /// The same, with what it shares with other instances of its site.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_in(
        model: Arc<LoadedModel>,
        config: InstanceConfig,
        around: Surroundings,
    ) -> Result<Self, EngineError> {
        if config.decode_slots == 0 {
            return Err(EngineError::BadJob(
                "decode_slots is 0; at least 1 is needed".to_owned(),
            ));
        }
        let layout = Arc::new(model.layout(config.model.clone(), config.model_version));
        let description = EngineDescription {
            instance: config.name,
            model: config.model,
            role: config.role,
            layout: Arc::clone(&layout),
            context_tokens: model.context_tokens(),
            vocabulary: model.vocabulary(),
            decode_slots: config.decode_slots,
        };
        let meter = Arc::new(Meter::new());
        contained(|| warm_up(&model, &meter))?;
        let cache = Cache::new(config.pool, config.cache, around, layout);
        let shared = Arc::new(Shared {
            model,
            description,
            cache,
            meter,
            running_kv: config.pool,
        });
        let (jobs, inbox) = queue::channel();
        let worker = Worker::new(Arc::clone(&shared), inbox);
        std::thread::Builder::new()
            .name(format!("engine-{}", shared.description.instance))
            .spawn(move || worker.run())
            .map_err(|e| EngineError::Broken(format!("the worker thread could not be started: {e}")))?;
        Ok(Self {
            shared,
            jobs,
            queue_depth: None,
        })
    }

    /// How often a sequence gave its KV up, since those running needed more memory than there is, and computed it again.
    pub fn times_set_aside(&self) -> u64 {
        self.shared.meter.times_set_aside()
    }

    /// The same instance, which refuses a prefill while so many are queued or under way.
    #[must_use]
    pub fn with_queue_depth(mut self, most: Option<u32>) -> Self {
        self.queue_depth = most;
        self
    }
}

impl NativeInstance {
    /// Names a job's blocks, and brings up from lower tiers what is cheaper to read than to compute.
    async fn prepare(&self, job: &PrefillJob) -> Result<Prepared, EngineError> {
        let cache = &self.shared.cache;
        let names = Names::of(&job.key, &job.tokens, &job.about, cache.epoch());
        let below = cache.below(&names, self.shared.meter.prefill_time(BLOCK_TOKENS as usize));
        if !below.is_slow() {
            let lease = cache.promote(&names, &below);
            return Ok(Prepared { names, lease });
        }
        let cache = Arc::clone(cache);
        let promoted = tokio::task::spawn_blocking(move || {
            let lease = cache.promote(&names, &below);
            Prepared { names, lease }
        });
        promoted
            .await
            .map_err(|e| EngineError::Broken(format!("KV could not be read from a lower tier: {e}")))
    }
}

/// Measures one piece of prefill and one decode step.
fn warm_up(model: &LoadedModel, meter: &Meter) -> Result<(), EngineError> {
    let mut state = model.network.fresh_state();
    let tokens = vec![
        0;
        WARM_UP_TOKENS
            .min(model.network.config.context.saturating_sub(1))
            .max(1)
    ];
    let started = Instant::now();
    model.network.run(&tokens, &mut state, &mut never_stop)?;
    meter.prefilled(tokens.len(), started.elapsed());
    let started = Instant::now();
    let network = &model.network;
    network.step(network.embed(&[0]), vec![&mut state], &mut never_stop)?;
    meter.decoded(started.elapsed());
    Ok(())
}

/// What to say when the worker is gone.
fn stopped() -> EngineError {
    EngineError::Broken("the instance has stopped".to_owned())
}

#[async_trait]
impl Engine for NativeInstance {
    fn describe(&self) -> &EngineDescription {
        &self.shared.description
    }

    fn held(&self, key: &TenantKey, tokens: &[u32], on: &[Dependency]) -> HeldPrefix {
        if self.shared.description.layout.is_hybrid() {
            return HeldPrefix::default();
        }
        self.shared.cache.held(key, tokens, on)
    }

    fn kept(&self, key: &TenantKey, tokens: &[u32], on: &[Dependency]) -> HeldPrefix {
        adopt::kept(&self.shared, key, tokens, on)
    }

    fn keep(&self, job: &KeepJob) -> Tokens {
        adopt::keep(&self.shared, job)
    }

    async fn prefill(
        &self,
        job: PrefillJob,
        pieces: mpsc::UnboundedSender<KvPiece>,
    ) -> Result<PrefillReport, EngineError> {
        check::check_prefill(&self.shared, &job)?;
        check::check_queue(&self.shared, self.queue_depth)?;
        let cancel = job.cancel.clone();
        let prepared = tokio::select! {
            prepared = self.prepare(&job) => prepared?,
            () = cancel.cancelled() => return Err(EngineError::Cancelled),
        };
        let (reply, report) = oneshot::channel();
        let run = PrefillRun::new(job, prepared, pieces, reply, &self.shared.meter);
        self.jobs.send(Job::Prefill(run)).map_err(|_| stopped())?;
        tokio::select! {
            outcome = report => outcome.unwrap_or_else(|_| Err(stopped())),
            // Before the job's turn comes the worker does not look at it; the caller need not wait for that.
            () = cancel.cancelled() => Err(EngineError::Cancelled),
        }
    }

    fn decode(&self, job: DecodeJob) -> mpsc::UnboundedReceiver<DecodeEvent> {
        let (events, receiver) = mpsc::unbounded_channel();
        if let Err(error) = check::check_decode(&self.shared, &job) {
            // The receiver is in this function's hands, so the send cannot fail.
            let _ = events.send(DecodeEvent::Failed(error));
            return receiver;
        }
        let run = DecodeRun::new(job, events, &self.shared.meter);
        if let Err(queue::SendError(Job::Decode(run))) = self.jobs.send(Job::Decode(run)) {
            run.fail(stopped());
        }
        receiver
    }

    fn load(&self) -> EngineLoad {
        EngineLoad {
            kv_used: self.shared.cache.used(),
            ..self.shared.meter.load()
        }
    }

    fn cache(&self) -> Option<&dyn KvCache> {
        Some(self.shared.cache.as_ref())
    }

    fn events(&self) -> broadcast::Receiver<KvEvent> {
        self.shared.cache.events()
    }
}

#[cfg(test)]
mod tests {
    use super::meter::QueuedPrefill;
    use super::*;
    use portolan_base::{Provenance, RequestId};
    use portolan_ports::{Cancel, KvSet, Sampling};
    use std::path::Path;

    /// An instance of a model that believes its vocabulary larger than its embedding, so that a token beyond the
    /// table passes the checks and breaks the forward pass.
    fn broken_instance() -> NativeInstance {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/oracle/tiny-qwen3");
        let mut model = crate::load_model(&folder).unwrap();
        model.network.config.vocabulary += 1000;
        let config = InstanceConfig {
            name: InstanceName::new("a").unwrap(),
            model: ModelName::new("m").unwrap(),
            model_version: 1,
            role: Role::Both,
            decode_slots: 2,
            pool: Bytes(1 << 20),
            cache: CacheConfig::default(),
        };
        NativeInstance::start(Arc::new(model), config).unwrap()
    }

    fn about() -> Arc<Provenance> {
        Arc::new(Provenance::public(ModelName::new("m").unwrap(), 1))
    }

    async fn prefill(engine: &NativeInstance, tokens: &[u32]) -> Result<PrefillReport, EngineError> {
        let job = PrefillJob {
            request: RequestId::from_client("r").unwrap(),
            key: TenantKey::derive(&[1; 32], "t", "m", 1),
            about: about(),
            tokens: tokens.into(),
            held: 0,
            retention: portolan_ports::Retention::Keep,
            cancel: Cancel::new(),
        };
        let (pieces, _receiver) = mpsc::unbounded_channel();
        engine.prefill(job, pieces).await
    }

    fn decode(engine: &NativeInstance, token: u32) -> mpsc::UnboundedReceiver<DecodeEvent> {
        engine.decode(DecodeJob {
            request: RequestId::from_client("r").unwrap(),
            key: TenantKey::derive(&[1; 32], "t", "m", 1),
            about: about(),
            prompt: [token].into(),
            kv: KvSet::empty(Arc::clone(&engine.describe().layout)),
            sampling: Sampling::GREEDY,
            max_tokens: 3,
            stop_ids: Vec::new(),
            retention: portolan_ports::Retention::Keep,
            logits: false,
            cancel: Cancel::new(),
        })
    }

    #[tokio::test]
    async fn a_prompt_beyond_the_queue_is_refused_and_the_next_one_is_not() {
        let engine = broken_instance().with_queue_depth(Some(1));
        let held = QueuedPrefill::new(&engine.shared.meter, 1);
        let refused = prefill(&engine, &[1, 2]).await;
        assert!(
            matches!(&refused, Err(EngineError::Full(why)) if why.contains("1 may")),
            "{refused:?}"
        );
        drop(held);
        assert!(prefill(&engine, &[1, 2]).await.is_ok());
    }

    #[tokio::test]
    async fn a_panic_in_the_forward_pass_fails_its_job_and_no_other() {
        let engine = broken_instance();
        let healthy = decode(&engine, 5);
        let broken = prefill(&engine, &[1, 2500]).await;
        assert!(
            matches!(&broken, Err(EngineError::Broken(reason)) if reason.contains("panicked")),
            "{broken:?}"
        );
        let end = decode(&engine, 2500).recv().await;
        assert!(
            matches!(&end, Some(DecodeEvent::Failed(EngineError::Broken(_)))),
            "{end:?}"
        );
        let mut healthy = healthy;
        let mut tokens = 0;
        while let Some(event) = healthy.recv().await {
            tokens += usize::from(matches!(event, DecodeEvent::Token(_)));
        }
        assert_eq!(tokens, 3);
        assert_eq!(engine.load().decode_running, 0);
    }
}
