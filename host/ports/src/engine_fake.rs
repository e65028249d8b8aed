//! The fake beside [`Engine`], and its faults: it computes nothing, yet notices when it is handed the wrong KV.
//!
//! A piece of its KV is a digest of everything real KV depends on (tenant key, layer, tokens up to the piece's end), so
//! pieces of another prompt, tenant, position or layer, and damaged ones, are told apart from the right ones. Its
//! answer is the prompt itself, then [`FAKE_END`]; sampled, the prompt is begun `seed` tokens later.

use crate::{
    Cancel, DecodeEvent, DecodeJob, Engine, EngineDescription, EngineError, EngineLoad, FAKE_END,
    FinishReason, HeldPrefix, KvEvent, KvPiece, PrefillJob, PrefillReport, TokenLogprobs, kvset::piece_id,
};
use async_trait::async_trait;
use bytes::Bytes;
use portolan_base::kv::{LayerKv, PieceId};
use portolan_base::{BlockHash, CachePart, Dependency, RequestId, TenantKey, Tokens};
use sha2::{Digest, Sha256};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

/// What it thinks of every token.
const FAKE_LOGPROB: f32 = -0.5;

/// How often a hanging decode looks whether it is still wanted.
const HANG_POLL: Duration = Duration::from_millis(1);

/// Events a subscriber may fall behind.
const EVENT_CAPACITY: usize = 256;

/// What a [`FakeEngine`] does wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineFault {
    /// Prefills fail before the first piece.
    FailPrefill(EngineError),
    /// Prefills go on until they are cancelled.
    HangPrefill,
    /// Prefills begin after this time.
    SlowPrefill(Duration),
    /// Prefills send pieces of which one byte is wrong.
    DamageKv,
    /// Decodes fail after this many tokens.
    FailDecode(u32, EngineError),
    /// Decodes say nothing after this many tokens, until they are cancelled.
    HangDecode(u32),
}

/// An [`Engine`] that repeats the prompt.
#[derive(Debug)]
pub struct FakeEngine {
    description: EngineDescription,
    fault: Mutex<Option<EngineFault>>,
    prompts: Mutex<Vec<(TenantKey, Arc<[u32]>)>>,
    events: broadcast::Sender<KvEvent>,
    cancelled: Arc<watch::Sender<Vec<RequestId>>>,
}

impl FakeEngine {
    /// An engine that works. The vocabulary has to hold [`FAKE_END`].
    pub fn new(description: EngineDescription) -> Self {
        Self {
            description,
            fault: Mutex::default(),
            prompts: Mutex::default(),
            events: broadcast::channel(EVENT_CAPACITY).0,
            cancelled: Arc::new(watch::channel(Vec::new()).0),
        }
    }

    /// Makes it do something wrong from now on, or nothing.
    pub fn set_fault(&self, fault: Option<EngineFault>) {
        *lock(&self.fault) = fault;
    }

    /// The jobs that were cancelled while they hung, in order; can be waited on.
    pub fn cancelled(&self) -> watch::Receiver<Vec<RequestId>> {
        self.cancelled.subscribe()
    }

    fn fault(&self) -> Option<EngineFault> {
        lock(&self.fault).clone()
    }

    /// Pieces of the KV of `tokens`, from token `from` on, block by block; recurrent states last.
    fn pieces(&self, key: &TenantKey, tokens: &[u32], from: u32) -> Vec<KvPiece> {
        let end = length(tokens);
        let block = self.description.layout.block_tokens.max(1);
        let mut ids = Vec::new();
        for (layer, kind) in (0u16..).zip(&self.description.layout.layers) {
            match kind {
                LayerKv::FullAttention { .. } => ids.extend(
                    (from..end)
                        .step_by(block as usize)
                        .map(|start| piece_id(layer, start, Tokens(block.min(end - start)))),
                ),
                LayerKv::Recurrent { .. } => ids.push(piece_id(layer, end, Tokens(0))),
            }
        }
        ids.sort_by_key(|id| id.is_empty());
        ids.into_iter().map(|id| self.piece(key, tokens, id)).collect()
    }

    fn piece(&self, key: &TenantKey, tokens: &[u32], id: PieceId) -> KvPiece {
        let mut hasher = Sha256::new();
        hasher.update(key.opaque("kv").to_le_bytes());
        hasher.update(id.layer.to_le_bytes());
        hasher.update(id.tokens.start.to_le_bytes());
        for token in tokens.iter().take(id.tokens.end as usize) {
            hasher.update(token.to_le_bytes());
        }
        let digest: [u8; 32] = hasher.finalize().into();
        let size = self
            .description
            .layout
            .piece_bytes(id.layer, id.len())
            .unwrap_or_default()
            .0;
        let size = usize::try_from(size).unwrap_or_default();
        KvPiece {
            id,
            bytes: digest.into_iter().cycle().take(size).collect(),
        }
    }

    /// Whether a decode was handed exactly the KV of its prompt.
    fn check(&self, job: &DecodeJob) -> Result<(), EngineError> {
        let Some((_, before)) = job.prompt.split_last() else {
            return Err(EngineError::BadJob("the prompt is empty".into()));
        };
        if job.kv.tokens() != length(before) {
            let (got, wanted) = (job.kv.tokens(), before.len());
            return Err(EngineError::BadJob(format!(
                "KV of {got} tokens, {wanted} are needed"
            )));
        }
        let wrong = job
            .kv
            .pieces()
            .find(|piece| **piece != self.piece(&job.key, before, piece.id.clone()));
        wrong.map_or(Ok(()), |piece| {
            Err(EngineError::Broken(format!("wrong KV: {:?}", piece.id)))
        })
    }

    /// What a decode says when nothing goes wrong.
    fn script(&self, job: &DecodeJob) -> Vec<DecodeEvent> {
        let mut events = Vec::new();
        if job.logits {
            events.push(DecodeEvent::Logits(vec![
                0.0;
                self.description.vocabulary as usize
            ]));
        }
        let room = self
            .description
            .context_tokens
            .0
            .saturating_sub(length(&job.prompt));
        let first = if job.sampling.temperature > 0.0 {
            usize::try_from(job.sampling.seed % job.prompt.len() as u64).unwrap_or_default()
        } else {
            0
        };
        let mut tokens = job.prompt.iter().copied().chain([FAKE_END]).cycle().skip(first);
        for _ in 0..job.max_tokens.min(room) {
            match tokens.next() {
                Some(token) if !job.stop_ids.contains(&token) => {
                    if let Some(likeliest) = job.sampling.logprobs {
                        events.push(DecodeEvent::Logprobs(TokenLogprobs {
                            drawn: FAKE_LOGPROB,
                            likeliest: (0..likeliest).map(|other| (other, FAKE_LOGPROB)).collect(),
                        }));
                    }
                    events.push(DecodeEvent::Token(token));
                }
                _ => {
                    events.push(DecodeEvent::Finished(FinishReason::Stop));
                    return events;
                }
            }
        }
        events.push(DecodeEvent::Finished(FinishReason::Length));
        events
    }
}

#[async_trait]
impl Engine for FakeEngine {
    fn describe(&self) -> &EngineDescription {
        &self.description
    }

    fn held(&self, key: &TenantKey, tokens: &[u32], _on: &[Dependency]) -> HeldPrefix {
        if self.description.layout.is_hybrid() {
            return HeldPrefix::default();
        }
        let common = |prompt: &[u32]| prompt.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let prompts = lock(&self.prompts);
        let longest = prompts
            .iter()
            .filter(|(of, _)| of == key)
            .map(|(_, prompt)| common(prompt))
            .max();
        let block = self.description.layout.block_tokens.max(1) as usize;
        let whole = longest.unwrap_or(0) / block * block;
        HeldPrefix {
            tokens: length(&tokens[..whole]),
            pieces: self.pieces(key, &tokens[..whole], 0),
        }
    }

    async fn prefill(
        &self,
        job: PrefillJob,
        pieces: mpsc::UnboundedSender<KvPiece>,
    ) -> Result<PrefillReport, EngineError> {
        let fault = self.fault();
        match fault.clone() {
            Some(EngineFault::FailPrefill(error)) => return Err(error),
            Some(EngineFault::HangPrefill) => {
                // Whoever stops waiting may also drop this future.
                let _note = NoteOnDrop {
                    cancelled: Arc::clone(&self.cancelled),
                    request: job.request,
                };
                job.cancel.cancelled().await;
                return Err(EngineError::Cancelled);
            }
            Some(EngineFault::SlowPrefill(time)) => {
                let (over, slept) = oneshot::channel();
                std::thread::spawn(move || {
                    std::thread::sleep(time);
                    let _ = over.send(());
                });
                drop(slept.await);
            }
            _ => {}
        }
        let cached = self.held(&job.key, &job.tokens, &job.about.dependencies).tokens;
        for (i, mut piece) in self
            .pieces(&job.key, &job.tokens, job.held)
            .into_iter()
            .enumerate()
        {
            if i == 0 && fault == Some(EngineFault::DamageKv) {
                piece.bytes = damaged(&piece.bytes);
            }
            if job.cancel.is_cancelled() || pieces.send(piece).is_err() {
                return Err(EngineError::Cancelled);
            }
        }
        let stored = BlockHash::chain(&job.key, &job.tokens);
        let computed = length(&job.tokens).saturating_sub(cached);
        lock(&self.prompts).push((job.key, job.tokens));
        // Nobody has to listen.
        drop(self.events.send(KvEvent::Stored {
            part: CachePart::DEVICE,
            parent: None,
            blocks: stored,
            about: Some(job.about),
        }));
        Ok(PrefillReport {
            cached,
            computed,
            queue_us: 0,
            compute_us: 0,
            fetches: Vec::new(),
        })
    }

    fn decode(&self, job: DecodeJob) -> mpsc::UnboundedReceiver<DecodeEvent> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut events = match self.check(&job) {
            Ok(()) => self.script(&job),
            Err(error) => vec![DecodeEvent::Failed(error)],
        };
        match self.fault() {
            Some(EngineFault::FailDecode(after, error)) => {
                events.truncate(after as usize);
                events.push(DecodeEvent::Failed(error));
            }
            Some(EngineFault::HangDecode(after)) => {
                events.truncate(after as usize);
                hang(
                    sender.clone(),
                    job.cancel,
                    job.request,
                    Arc::clone(&self.cancelled),
                );
            }
            _ => {}
        }
        // A receiver that is gone has cancelled the job.
        let _gone = events.into_iter().try_for_each(|event| sender.send(event));
        receiver
    }

    fn load(&self) -> EngineLoad {
        EngineLoad {
            prefill_ns_per_token: 1000,
            decode_step_us: 100,
            ..EngineLoad::default()
        }
    }

    fn events(&self) -> broadcast::Receiver<KvEvent> {
        self.events.subscribe()
    }
}

/// Keeps a decode open until nobody wants it. A thread, since a port must not need a runtime.
fn hang(
    sender: mpsc::UnboundedSender<DecodeEvent>,
    cancel: Cancel,
    request: RequestId,
    cancelled: Arc<watch::Sender<Vec<RequestId>>>,
) {
    std::thread::spawn(move || {
        let _note = NoteOnDrop { cancelled, request };
        while !cancel.is_cancelled() && !sender.is_closed() {
            std::thread::sleep(HANG_POLL);
        }
    });
}

/// Notes the end of a job that hung.
struct NoteOnDrop {
    cancelled: Arc<watch::Sender<Vec<RequestId>>>,
    request: RequestId,
}

impl Drop for NoteOnDrop {
    fn drop(&mut self) {
        self.cancelled
            .send_modify(|requests| requests.push(self.request.clone()));
    }
}

fn damaged(bytes: &Bytes) -> Bytes {
    let mut bytes = bytes.to_vec();
    if let Some(first) = bytes.first_mut() {
        *first ^= 1;
    }
    bytes.into()
}

fn length(tokens: &[u32]) -> u32 {
    u32::try_from(tokens.len()).unwrap_or(u32::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
