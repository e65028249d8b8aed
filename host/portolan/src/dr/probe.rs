//! Has a model answer a prompt greedily: what is recorded with a backup, and asked again in a drill.

use super::error::DrError;
use super::manifest::Probe;
use crate::config::Config;
use portolan_base::{Bytes, InstanceName, ModelName, Provenance, RequestId, TenantKey, TenantName};
use portolan_engine::{CacheConfig, InstanceConfig, LoadedModel, NativeInstance, load_model};
use portolan_ports::{Cancel, DecodeEvent, DecodeJob, Engine, KvSet, PrefillJob, Retention, Role, Sampling};
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Memory for KV: a single prompt needs no reuse.
const POOL: Bytes = Bytes(64 << 20);

/// What every model of a configuration answers. `known` are probes of an earlier backup that still hold, and are not
/// asked again.
///
/// # Errors
/// When a model does not load or run.
pub(super) async fn ask_all(config: &Config, known: &[Probe]) -> Result<Vec<Probe>, DrError> {
    let mut probes = Vec::new();
    for model in &config.models {
        let name = model.name.as_str();
        if let Some(probe) = known.iter().find(|probe| probe.model == name) {
            probes.push(probe.clone());
            continue;
        }
        let loaded = load(&model.name, &model.path, model.window).await?;
        let text = &config.recovery.probe.prompt;
        let prompt = loaded.text().encode(text, true).map_err(|e| failed(name, &e))?;
        let answer = answer(&loaded, &model.name, &prompt, config.recovery.probe.tokens).await?;
        probes.push(Probe {
            model: name.to_owned(),
            prompt,
            answer,
        });
    }
    Ok(probes)
}

/// Loads a model as a host does.
pub(super) async fn load(
    name: &ModelName,
    path: &Path,
    window: Option<portolan_base::kv::KvWindow>,
) -> Result<Arc<LoadedModel>, DrError> {
    let path = path.to_owned();
    let loaded = tokio::task::spawn_blocking(move || load_model(&path)).await;
    let loaded = loaded.map_err(|e| failed(name.as_str(), &e))?;
    let loaded = loaded.map_err(|e| failed(name.as_str(), &e))?;
    Ok(Arc::new(match window {
        Some(window) => loaded.with_window(window),
        None => loaded,
    }))
}

/// Starts an instance of a model and has it answer `prompt` with at most `tokens` tokens.
pub(super) async fn answer(
    model: &Arc<LoadedModel>,
    name: &ModelName,
    prompt: &[u32],
    tokens: u32,
) -> Result<Vec<u32>, DrError> {
    let fail = |error: &dyn Display| failed(name.as_str(), error);
    let config = InstanceConfig {
        name: InstanceName::new("probe").map_err(|e| fail(&e))?,
        model: name.clone(),
        model_version: 1,
        role: Role::Both,
        decode_slots: 1,
        pool: POOL,
        cache: CacheConfig::default(),
    };
    let engine = NativeInstance::start(Arc::clone(model), config).map_err(|e| fail(&e))?;
    let key = TenantKey::derive(&[0; 32], "probe", name.as_str(), 1);
    let tenant = TenantName::new("probe").map_err(|e| fail(&e))?;
    let about = Arc::new(Provenance::of(tenant, name.clone(), 1));
    let request = RequestId::from_client("probe").ok_or_else(|| fail(&"no id"))?;
    let layout = Arc::clone(&engine.describe().layout);
    let before: Arc<[u32]> = prompt[..prompt.len().saturating_sub(1)].into();
    let kv = if before.is_empty() {
        KvSet::empty(layout)
    } else {
        let count = u32::try_from(before.len()).unwrap_or(u32::MAX);
        let job = PrefillJob {
            request: request.clone(),
            key,
            about: Arc::clone(&about),
            tokens: before,
            held: 0,
            retention: Retention::Drop,
            cancel: Cancel::new(),
        };
        let (pieces_in, mut pieces_out) = mpsc::unbounded_channel();
        engine.prefill(job, pieces_in).await.map_err(|e| fail(&e))?;
        let mut pieces = Vec::new();
        while let Some(piece) = pieces_out.recv().await {
            pieces.push(piece);
        }
        KvSet::assemble(layout, count, pieces).map_err(|e| fail(&e))?
    };
    let mut events = engine.decode(DecodeJob {
        request,
        key,
        about,
        prompt: prompt.into(),
        kv,
        sampling: Sampling::GREEDY,
        max_tokens: tokens,
        stop_ids: model.text().stop_ids().to_vec(),
        retention: Retention::Drop,
        logits: false,
        cancel: Cancel::new(),
    });
    let mut answer = Vec::new();
    while let Some(event) = events.recv().await {
        match event {
            DecodeEvent::Token(token) => answer.push(token),
            DecodeEvent::Failed(error) => return Err(fail(&error)),
            DecodeEvent::Finished(_) => break,
            DecodeEvent::Logits(_) | DecodeEvent::Logprobs(_) => {}
        }
    }
    Ok(answer)
}

fn failed(model: &str, error: &dyn Display) -> DrError {
    DrError::Model {
        model: model.to_owned(),
        detail: error.to_string(),
    }
}
