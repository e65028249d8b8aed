//! `portolan engine generate`: the native engine without a server.

use super::GenerateArgs;
use super::output::{Failure, json, line};
use crate::system::{OsRandom, SystemClock};
use async_trait::async_trait;
use portolan_base::{
    Bytes, InstanceName, ModelName, Provenance, Random, RequestId, SiteName, TenantKey, TenantName,
};
use portolan_engine::{CacheConfig, InstanceConfig, LoadedModel, NativeInstance, load_model};
use portolan_gateway::peer::stream_prefill;
use portolan_gateway::receive::receive;
use portolan_ports::{
    Cancel, DecodeEvent, DecodeJob, Engine, KvOrder, KvSet, KvSource, PieceSink, PrefillJob, PrefillReport,
    Role, Sampling,
};
use portolan_transport::{ClusterSecret, SiteTransport, TransportConfig};
use serde::Serialize;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Memory for KV: a single prompt needs no reuse.
const POOL: Bytes = Bytes(64 << 20);

#[derive(Serialize)]
struct Generated {
    prompt_tokens: usize,
    token_ids: Vec<u32>,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    logits: Option<Vec<f32>>,
}

pub(super) fn run(args: GenerateArgs, as_json: bool) -> Result<(), Failure> {
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::new)?;
    let generated = runtime.block_on(generate(args)).map_err(|e| e.as_json(as_json))?;
    if as_json {
        return json(&generated);
    }
    line(&generated.text);
    if let Some(logits) = &generated.logits {
        line(format!("logits: {logits:?}"));
    }
    Ok(())
}

async fn generate(args: GenerateArgs) -> Result<Generated, Failure> {
    let path = args.model.clone();
    let loaded = tokio::task::spawn_blocking(move || load_model(&path))
        .await
        .map_err(Failure::new)?;
    let model = Arc::new(loaded.map_err(Failure::new)?);
    let prompt: Arc<[u32]> = match (&args.prompt, args.token_ids) {
        (_, Some(ids)) => ids.into(),
        (Some(text), None) => model.text().encode(text, true).map_err(Failure::new)?.into(),
        (None, None) => {
            return Err(Failure::new(
                "give a prompt with --prompt TEXT or --token-ids 1,2,3",
            ));
        }
    };
    let decoder = start(&model, "decode")?;
    let key = TenantKey::derive(&[0; 32], "local", "local", 1);
    let kv = match args.split {
        false => prefill_here(decoder.as_ref(), key, &prompt).await?,
        true => prefill_elsewhere(start(&model, "prefill")?, decoder.as_ref(), key, &prompt).await?,
    };
    let job = DecodeJob {
        request: request_id(),
        key,
        about: about(decoder.as_ref()),
        prompt: Arc::clone(&prompt),
        kv,
        sampling: Sampling::GREEDY,
        max_tokens: args.max_tokens,
        stop_ids: model.text().stop_ids().to_vec(),
        retention: portolan_ports::Retention::Keep,
        logits: args.logits,
        cancel: Cancel::new(),
    };
    let mut events = decoder.decode(job);
    let mut out = Generated {
        prompt_tokens: prompt.len(),
        token_ids: Vec::new(),
        text: String::new(),
        logits: None,
    };
    let mut text = model.text().stream();
    while let Some(event) = events.recv().await {
        match event {
            DecodeEvent::Logits(logits) => out.logits = Some(logits),
            DecodeEvent::Logprobs(_) => {}
            DecodeEvent::Token(token) => {
                out.token_ids.push(token);
                out.text.push_str(&text.push(token).map_err(Failure::new)?);
            }
            DecodeEvent::Finished(_) => break,
            DecodeEvent::Failed(error) => return Err(Failure::new(error)),
        }
    }
    out.text.push_str(&text.finish().map_err(Failure::new)?);
    Ok(out)
}

fn start(model: &Arc<LoadedModel>, name: &str) -> Result<Arc<dyn Engine>, Failure> {
    let config = InstanceConfig {
        name: InstanceName::new(name).map_err(Failure::new)?,
        model: ModelName::new("local").map_err(Failure::new)?,
        model_version: 1,
        role: Role::Both,
        decode_slots: 1,
        pool: POOL,
        cache: CacheConfig::default(),
    };
    let instance = NativeInstance::start(Arc::clone(model), config).map_err(Failure::new)?;
    Ok(Arc::new(instance))
}

fn about(engine: &dyn Engine) -> Arc<Provenance> {
    let layout = &engine.describe().layout;
    Arc::new(Provenance::public(layout.model.clone(), layout.model_version))
}

async fn prefill_here(engine: &dyn Engine, key: TenantKey, prompt: &[u32]) -> Result<KvSet, Failure> {
    let layout = Arc::clone(&engine.describe().layout);
    let Some((_, before)) = prompt.split_last().filter(|(_, before)| !before.is_empty()) else {
        return Ok(KvSet::empty(layout));
    };
    let job = PrefillJob {
        request: request_id(),
        key,
        about: about(engine),
        tokens: before.into(),
        held: 0,
        retention: portolan_ports::Retention::Keep,
        cancel: Cancel::new(),
    };
    let (pieces_in, mut pieces_out) = mpsc::unbounded_channel();
    engine.prefill(job, pieces_in).await.map_err(Failure::new)?;
    let pieces: Vec<_> = std::iter::from_fn(|| pieces_out.try_recv().ok()).collect();
    KvSet::assemble(layout, before.len() as u32, pieces).map_err(Failure::new)
}

/// Prefills in another instance; the KV crosses a real connection while prefill runs.
async fn prefill_elsewhere(
    prefiller: Arc<dyn Engine>,
    decoder: &dyn Engine,
    key: TenantKey,
    prompt: &[u32],
) -> Result<KvSet, Failure> {
    let layout = Arc::clone(&decoder.describe().layout);
    let Some((_, before)) = prompt.split_last().filter(|(_, before)| !before.is_empty()) else {
        return Ok(KvSet::empty(layout));
    };
    let clock = SystemClock::start();
    let there = bind(
        "there",
        Arc::new(PrefillSource {
            engine: prefiller,
            key,
        }),
    )
    .await?;
    let here = bind("here", Arc::new(Nothing)).await?;
    let peer = SiteName::new("there").map_err(Failure::new)?;
    here.add_peer(peer.clone(), vec![there.address()]);
    let order = KvOrder {
        as_of: portolan_ports::AsOf::default(),
        request: request_id(),
        tenant: TenantName::new("local").map_err(Failure::new)?,
        jurisdiction: String::new(),
        user_class: String::new(),
        model: layout.model.clone(),
        model_version: layout.model_version,
        instance: InstanceName::new("prefill").map_err(Failure::new)?,
        tokens: before.into(),
        held: 0,
        retention: portolan_ports::Retention::Keep,
        draw: portolan_decide::Draw::default(),
        fidelity: Default::default(),
        dependencies: Arc::default(),
        fetch_from: Default::default(),
        purpose: Default::default(),
    };
    let arrival = receive(&here, &peer, order, &layout, &clock)
        .await
        .map_err(Failure::new)?;
    KvSet::assemble(layout, before.len() as u32, arrival.pieces).map_err(Failure::new)
}

async fn bind(name: &str, source: Arc<dyn KvSource>) -> Result<SiteTransport, Failure> {
    let site = SiteName::new(name).map_err(Failure::new)?;
    let config = TransportConfig::new(
        site,
        SocketAddr::from(([127, 0, 0, 1], 0)),
        ClusterSecret::from_bytes([0; 32]),
    );
    let random: Arc<dyn Random> = Arc::new(OsRandom);
    SiteTransport::bind(config, source, random)
        .await
        .map_err(Failure::new)
}

fn request_id() -> RequestId {
    RequestId::draw(&OsRandom)
}

struct PrefillSource {
    engine: Arc<dyn Engine>,
    key: TenantKey,
}

#[async_trait]
impl KvSource for PrefillSource {
    async fn serve(
        &self,
        _: SiteName,
        order: KvOrder,
        sink: Box<dyn PieceSink>,
    ) -> Result<PrefillReport, String> {
        stream_prefill(self.engine.as_ref(), self.key, order, sink)
            .await
            .map_err(|e| e.to_string())
    }
}

/// The decoding side serves nobody.
struct Nothing;

#[async_trait]
impl KvSource for Nothing {
    async fn serve(&self, _: SiteName, _: KvOrder, _: Box<dyn PieceSink>) -> Result<PrefillReport, String> {
        Err("this side serves no orders".to_owned())
    }
}
