//! An instance's first work, before it serves: a short prompt and a few tokens. Weights are read, threads run, and speeds
//! are measured before a request depends on them.

use portolan_base::{Provenance, RequestId, TenantKey};
use portolan_ports::{
    Cancel, DecodeEvent, DecodeJob, Engine, EngineDescription, EngineError, KvSet, PrefillJob, Retention,
    Sampling,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Tokens of the prompt: one piece of the native engine, so that its time is that of a piece.
const PROMPT_TOKENS: u32 = 64;

/// Tokens of the answer.
const ANSWER_TOKENS: u32 = 3;

/// How often it is looked whether an engine that is not ours is there.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long one that could not be warmed up is left alone before the next try.
const AGAIN: Duration = Duration::from_secs(5);

/// Warms `engine` up, for as long as it takes.
pub async fn until_warm(engine: Arc<dyn Engine>) {
    try_until_warm(engine, AGAIN).await;
}

async fn try_until_warm(engine: Arc<dyn Engine>, pause: Duration) {
    if engine.whole().is_some() {
        return until_up(engine.as_ref()).await;
    }
    loop {
        let name = &engine.describe().instance;
        match warm_up(engine.as_ref()).await {
            Ok(()) => {
                let load = engine.load();
                let (prefill, decode) = (load.prefill_ns_per_token, load.decode_step_us);
                tracing::debug!(instance = %name, prefill_ns_per_token = prefill, decode_step_us = decode, "warm");
                return;
            }
            Err(error) => {
                tracing::error!(instance = %name, %error, "could not be warmed up and serves nothing; trying again");
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// An engine that is not ours tries itself out when it is there.
async fn until_up(engine: &dyn Engine) {
    while !engine.is_up() {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn warm_up(engine: &dyn Engine) -> Result<(), EngineError> {
    let about = engine.describe();
    let work = Work::for_engine(about)?;
    let tokens = match about.role.decodes() {
        // Decode runs the last token itself.
        true => &work.prompt[..work.prompt.len() - 1],
        false => &work.prompt,
    };
    let kv = match about.role.prefills() && !tokens.is_empty() {
        true => work.prefill(engine, tokens).await?,
        false => KvSet::empty(Arc::clone(&about.layout)),
    };
    match about.role.decodes() {
        true => work.decode(engine, kv).await,
        false => Ok(()),
    }
}

struct Work {
    request: RequestId,
    key: TenantKey,
    about: Arc<Provenance>,
    prompt: Arc<[u32]>,
    cancel: Cancel,
}

impl Work {
    fn for_engine(about: &EngineDescription) -> Result<Self, EngineError> {
        let request = RequestId::from_client("warm-up");
        let request = request.ok_or_else(|| EngineError::Broken("the request has no id".to_owned()))?;
        let (model, version) = (about.model.as_str(), about.layout.model_version);
        let longest = about.context_tokens.0.saturating_sub(ANSWER_TOKENS).max(1);
        // An instance that only decodes gets a prompt that needs no KV.
        let tokens = match about.role.prefills() {
            true => (PROMPT_TOKENS + 1).min(longest),
            false => 1,
        };
        Ok(Self {
            request,
            key: TenantKey::derive(&[0; 32], "warm-up", model, version),
            about: Arc::new(Provenance::public(about.model.clone(), version)),
            prompt: (0..tokens).map(|i| i % about.vocabulary.max(1)).collect(),
            cancel: Cancel::new(),
        })
    }

    async fn prefill(&self, engine: &dyn Engine, tokens: &[u32]) -> Result<KvSet, EngineError> {
        let job = PrefillJob {
            request: self.request.clone(),
            key: self.key,
            about: Arc::clone(&self.about),
            tokens: tokens.into(),
            held: 0,
            retention: Retention::Drop,
            cancel: self.cancel.clone(),
        };
        let (pieces_in, mut pieces_out) = mpsc::unbounded_channel();
        engine.prefill(job, pieces_in).await?;
        let mut pieces = Vec::new();
        while let Ok(piece) = pieces_out.try_recv() {
            pieces.push(piece);
        }
        let layout = Arc::clone(&engine.describe().layout);
        let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        KvSet::assemble(layout, count, pieces).map_err(|error| EngineError::Broken(error.to_string()))
    }

    async fn decode(&self, engine: &dyn Engine, kv: KvSet) -> Result<(), EngineError> {
        let mut events = engine.decode(DecodeJob {
            request: self.request.clone(),
            key: self.key,
            about: Arc::clone(&self.about),
            prompt: Arc::clone(&self.prompt),
            kv,
            sampling: Sampling::GREEDY,
            max_tokens: ANSWER_TOKENS,
            stop_ids: Vec::new(),
            retention: Retention::Drop,
            logits: false,
            cancel: self.cancel.clone(),
        });
        while let Some(event) = events.recv().await {
            match event {
                DecodeEvent::Finished(_) => return Ok(()),
                DecodeEvent::Failed(error) => return Err(error),
                DecodeEvent::Token(_) | DecodeEvent::Logits(_) | DecodeEvent::Logprobs(_) => {}
            }
        }
        Err(EngineError::Broken("the instance went away".to_owned()))
    }
}

#[cfg(test)]
mod tests;
