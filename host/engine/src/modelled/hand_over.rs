//! KV that waits for a decode instance, and KV that comes from a prefill instance: vLLM's NIXL connector by its fields,
//! with a request over HTTP in place of a remote read.

use super::profile::Profile;
use super::schedule::Scheduler;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long KV is kept for a decode instance that does not come.
pub(super) const LEASE: Duration = Duration::from_secs(30);

/// How names begin that both legs of a request know before either runs.
const NAMED_BEFOREHAND: &str = "xfer-";

/// How often such a transfer is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Where a decode instance asks for KV, on a modelled engine's own port.
pub(super) const TAKE: &str = "/modelled/kv/";

/// What a request says of KV elsewhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Transfer {
    /// Nothing.
    #[default]
    None,
    /// Keep it for another instance.
    Offer {
        /// The name both sides know it by, where the two legs run at once.
        transfer: Option<String>,
    },
    /// Take it from another instance.
    Take(Source),
}

/// Where KV is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Source {
    pub(super) host: String,
    pub(super) port: u16,
    /// The name it waits under.
    pub(super) request: String,
    pub(super) engine: String,
}

/// Why a transfer is not possible. The engine this one models does not survive it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fatal;

#[derive(Deserialize)]
struct Params {
    #[serde(default)]
    do_remote_decode: bool,
    #[serde(default)]
    do_remote_prefill: bool,
    remote_host: Option<String>,
    remote_port: Option<u16>,
    remote_request_id: Option<String>,
    remote_engine_id: Option<String>,
    remote_block_ids: Option<Value>,
    remote_bootstrap_addr: Option<String>,
    transfer_id: Option<String>,
}

impl Transfer {
    /// Reads `kv_transfer_params`.
    pub(super) fn read(params: &Value) -> Result<Self, Fatal> {
        let Ok(params) = serde_json::from_value::<Params>(params.clone()) else {
            return Ok(Self::None);
        };
        if params.do_remote_decode {
            return Ok(Self::Offer {
                transfer: params.transfer_id,
            });
        }
        if !params.do_remote_prefill {
            return Ok(Self::None);
        }
        if let (Some(address), Some(request), Some(engine)) = (
            &params.remote_bootstrap_addr,
            &params.transfer_id,
            &params.remote_engine_id,
        ) {
            let bare = address.trim_start_matches("http://");
            let (host, port) = bare.rsplit_once(':').ok_or(Fatal)?;
            return Ok(Self::Take(Source {
                host: host.to_owned(),
                port: port.parse().map_err(|_| Fatal)?,
                request: request.clone(),
                engine: engine.clone(),
            }));
        }
        match (
            params.remote_host,
            params.remote_port,
            params.remote_request_id,
            params.remote_engine_id,
        ) {
            (Some(host), Some(port), Some(request), Some(engine)) if params.remote_block_ids.is_some() => {
                Ok(Self::Take(Source {
                    host,
                    port,
                    request,
                    engine,
                }))
            }
            _ => Err(Fatal),
        }
    }
}

/// KV that waits to be taken.
pub(super) struct Parked {
    scheduler: Weak<Scheduler>,
    waiting: Arc<Mutex<HashMap<String, Parcel>>>,
    profile: Profile,
    engine: String,
}

struct Parcel {
    blocks: Vec<u64>,
    tokens: u32,
}

impl Parked {
    pub(super) fn new(scheduler: &Arc<Scheduler>, profile: Profile, engine: String) -> Self {
        Self {
            scheduler: Arc::downgrade(scheduler),
            waiting: Arc::default(),
            profile,
            engine,
        }
    }

    /// The engine's name in transfers; another one after each start.
    pub(super) fn engine(&self) -> &str {
        &self.engine
    }

    /// How many wait.
    pub(super) fn count(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Keeps KV until it is taken, or for [`LEASE`].
    pub(super) fn park(&self, name: String, blocks: Vec<u64>, tokens: u32) {
        self.waiting
            .lock()
            .insert(name.clone(), Parcel { blocks, tokens });
        let (waiting, scheduler) = (Arc::clone(&self.waiting), Weak::clone(&self.scheduler));
        tokio::spawn(async move {
            tokio::time::sleep(LEASE).await;
            if let (Some(parcel), Some(scheduler)) = (waiting.lock().remove(&name), scheduler.upgrade()) {
                tracing::warn!(name, "KV was never taken; its blocks are free again");
                scheduler.let_go(&parcel.blocks);
            }
        });
    }

    /// Hands it over: the number of tokens, once the time of the transfer is over. A transfer that both sides named
    /// beforehand is waited for: its prefill may still run.
    pub(super) async fn take(&self, name: &str) -> Option<u32> {
        let until = tokio::time::Instant::now() + LEASE;
        let parcel = loop {
            if let Some(parcel) = self.waiting.lock().remove(name) {
                break parcel;
            }
            if !name.starts_with(NAMED_BEFOREHAND) || tokio::time::Instant::now() > until {
                return None;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        };
        tokio::time::sleep(self.profile.transfer(parcel.tokens)).await;
        if let Some(scheduler) = self.scheduler.upgrade() {
            scheduler.let_go(&parcel.blocks);
        }
        Some(parcel.tokens)
    }

    /// What the answer of a prefill says to the decode instance.
    pub(super) fn params(
        &self,
        host: &str,
        port: u16,
        name: &str,
        blocks: usize,
        tokens: u32,
        cached: u32,
    ) -> Value {
        json!({
            "do_remote_prefill": true,
            "do_remote_decode": false,
            "remote_block_ids": [(1..=blocks).collect::<Vec<_>>()],
            "remote_engine_id": self.engine,
            "remote_request_id": name,
            "remote_host": host,
            "remote_port": port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": tokens,
            "remote_blocks_expiry_time": null,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": cached,
        })
    }
}
