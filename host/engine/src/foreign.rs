//! Engines that are not ours: vLLM, SGLang, llama.cpp's server, and the modelled engine, which speaks as vLLM does. They answer
//! whole requests over HTTP, in a process that the host starts and watches or finds at an address.
//!
//! | part | what it does |
//! |---|---|
//! | [`ForeignInstance`] | one such engine, as the gateway sees it |
//! | `requests` | requests out, answers back, byte for byte |
//! | `hand_over` | prefill on one instance, decode on another |
//! | `slots` | the same through the saved slots of llama.cpp's server, and its KV with the host |
//! | `kv_store` | KV that an engine hands to the host, and takes from it |
//! | `watch` | health, load, restarts, and what is tried before it serves |
//! | `scrape` | a metrics page as load |
//! | `listen` | cache events of each rank into the index |
//! | `salts` | whose blocks an engine's salts name |
//! | `meter` | requests in flight here, and how fast they are |
//! | `supervise` | the process, where the host starts it |
//! | `agree` | whether the engine cuts text into the tokens that the host does |

mod agree;
mod hand_over;
mod kv_store;
mod listen;
mod meter;
mod requests;
mod salts;
mod scrape;
mod slots;
mod supervise;
#[cfg(test)]
mod tests;
mod watch;

pub use hand_over::Connector;
pub use kv_store::{KvPlace, KvStoreConfig};
pub use supervise::CommandConfig;

use crate::wire::Upstream;
use async_trait::async_trait;
use hand_over::Handing;
use kv_store::KvStore;
use meter::Meter;
use parking_lot::Mutex;
use portolan_base::{Clock, Dependency, Random, TenantKey, Tokens};
use portolan_ports::{
    DecodeEvent, DecodeJob, Engine, EngineDescription, EngineError, EngineLoad, HeldPrefix, KeepJob, KvEvent,
    KvPiece, PrefillJob, PrefillReport, Sample, TextModel, WholeRequests,
};
use salts::SaltBook;
use slots::KeptSlots;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinSet;
use watch::Seen;

/// Cache events that wait for the site's agent. A burst of evictions is some thousands; beyond, the agent forgets what
/// the instance holds, and learns it again.
const EVENTS_WAITING: usize = 16_384;

/// Which engine it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Make {
    /// vLLM, or what speaks as it does.
    Vllm,
    /// llama.cpp's server.
    LlamaCpp,
    /// SGLang.
    Sglang,
}

impl Make {
    /// Its name in configurations.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::LlamaCpp => "llama-cpp",
            Self::Sglang => "sglang",
        }
    }

    /// Whether its blocks can be salted, so that tenants can share it.
    const fn salts(self) -> bool {
        matches!(self, Self::Vllm | Self::Sglang)
    }
}

/// Where an engine's server is: `http://host:port`, perhaps with a path before its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineUrl(String);

/// An address that no engine can be reached at.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no engine's address; say http://HOST:PORT")]
pub struct BadUrl(String);

/// An address without the name and password that may be in it.
fn without_login(text: &str) -> String {
    match text.rsplit_once('@') {
        None => text.to_owned(),
        Some((before, host)) => {
            let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
            format!("{scheme}://***@{host}")
        }
    }
}

impl EngineUrl {
    /// Reads an address.
    ///
    /// # Errors
    /// When it is not `http://HOST:PORT` with nothing but a path behind.
    pub fn parse(text: &str) -> Result<Self, BadUrl> {
        let bad = || BadUrl(without_login(text));
        let bare = text.trim_end_matches('/');
        let uri: hyper::Uri = bare.parse().map_err(|_| bad())?;
        let whole = uri.scheme_str() == Some("http") && uri.port_u16().is_some() && uri.query().is_none();
        match whole {
            true => Ok(Self(bare.to_owned())),
            false => Err(bad()),
        }
    }

    /// The address of one of its paths.
    pub(crate) fn join(&self, path: &str) -> String {
        format!("{}{path}", self.0)
    }

    /// Its port.
    pub(crate) fn port(&self) -> Option<u16> {
        self.0.parse::<hyper::Uri>().ok()?.port_u16()
    }

    /// Its host, without the port.
    pub(crate) fn host(&self) -> String {
        let uri = self.0.parse::<hyper::Uri>();
        uri.ok()
            .and_then(|uri| uri.host().map(str::to_owned))
            .unwrap_or_default()
    }
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where an engine publishes its cache events. Each data-parallel rank has its own ports, counted up from rank 0's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventsConfig {
    /// Rank 0's publisher, such as `tcp://127.0.0.1:5557`.
    pub endpoint: String,
    /// Rank 0's replays.
    pub replay: Option<String>,
    /// How many ranks.
    pub ranks: u16,
}

/// What a foreign instance is started with.
pub struct ForeignConfig {
    /// What it is.
    pub description: EngineDescription,
    /// Which engine.
    pub make: Make,
    /// Where its server is.
    pub url: EngineUrl,
    /// The name it knows the model by, where that is not the public one.
    pub served_name: Option<String>,
    /// How to start it; none: it is found.
    pub command: Option<CommandConfig>,
    /// The key it asks for.
    pub key: Option<String>,
    /// Its cache events.
    pub events: Option<EventsConfig>,
    /// How it hands KV to another instance.
    pub connector: Option<Connector>,
    /// Where it hands KV to the host, and takes it from there.
    pub kv_store: Option<KvStoreConfig>,
    /// The host's own tokenizer for the model.
    pub text: Arc<dyn TextModel>,
    /// Draws names of transfers.
    pub random: Arc<dyn Random>,
    /// The time that chat templates print.
    pub clock: Arc<dyn Clock>,
}

/// Why a foreign instance was not started.
#[derive(Debug, Error)]
pub enum ForeignError {
    /// Its log cannot be written.
    #[error("the log {} cannot be written: {reason}", .path.display())]
    Log {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Cache events that nobody can listen to.
    #[error("kv_events endpoint {0:?} is not tcp://HOST:PORT")]
    Endpoint(String),
    /// The socket for its KV cannot be made.
    #[error("the socket {} cannot be made: {reason}", .path.display())]
    Socket {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// KV that cannot be kept in blocks.
    #[error(
        "kv_store keeps blocks of attention of a multiple of 16 tokens; the KV of model {0} is not of that kind"
    )]
    NotBlocks(portolan_base::ModelName),
}

/// An engine that is not ours. Dropping it ends what watches it, and the process where the host started one.
pub struct ForeignInstance {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

/// What its tasks and its requests use.
pub(crate) struct Shared {
    pub(crate) description: EngineDescription,
    pub(crate) make: Make,
    pub(crate) upstream: Upstream,
    pub(crate) served_name: Option<String>,
    pub(crate) handing: Option<Handing>,
    pub(crate) text: Arc<dyn TextModel>,
    pub(crate) random: Arc<dyn Random>,
    clock: Arc<dyn Clock>,
    pub(crate) salts: Arc<SaltBook>,
    store: Option<Arc<KvStore>>,
    /// Where the store's blocks are those of saved slots.
    kept_slots: Option<KeptSlots>,
    pub(crate) meter: Meter,
    pub(crate) up: AtomicBool,
    pub(crate) seen: Mutex<Seen>,
    pub(crate) events: broadcast::Sender<KvEvent>,
    pub(crate) listening: bool,
    /// Whether the host starts its process, and counts the starts itself.
    pub(crate) supervised: bool,
    pub(crate) counts: Counts,
}

/// What operators count.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Batches of cache events that were taken.
    pub(crate) batches: AtomicU64,
    /// Replays that were asked for.
    pub(crate) replays: AtomicU64,
    /// Messages that could not be used.
    pub(crate) bad_messages: AtomicU64,
    /// Events and blocks in messages that could be used, and could not themselves.
    pub(crate) refused_events: AtomicU64,
    /// Starts of the process that were seen, or made.
    pub(crate) starts: AtomicU64,
    /// Prefill legs that came back without what the decode instance needs.
    pub(crate) unusable_offers: AtomicU64,
    /// Offers that were taken only so that their KV is freed.
    pub(crate) released_offers: AtomicU64,
    /// Texts that the engine cuts into other tokens than the host does.
    pub(crate) token_mismatches: AtomicU64,
    /// Whether requests run and no event comes: 0 or 1.
    pub(crate) silent: AtomicU64,
}

impl ForeignInstance {
    /// Begins to watch an engine, and starts its process where the configuration says how.
    ///
    /// # Errors
    /// When its log or its events cannot be used; an engine that is not there yet is waited for.
    pub fn start(config: ForeignConfig) -> Result<Self, ForeignError> {
        let (events, _) = broadcast::channel(EVENTS_WAITING);
        let ranks = match &config.events {
            None => Vec::new(),
            Some(events) => listen::ranks(events)?,
        };
        let log = config.command.as_ref().map(supervise::open_log).transpose()?;
        let salts = Arc::new(SaltBook::default());
        let kept = config.kv_store.map(|kv_store| {
            let about = &config.description;
            let mut secret = [0; 32];
            secret
                .chunks_exact_mut(8)
                .for_each(|eight| eight.copy_from_slice(&config.random.next_u64().to_le_bytes()));
            let shared = (Arc::clone(&salts), events.clone());
            let store = KvStore::new(Arc::clone(&about.layout), kv_store.most, secret, shared);
            let store = store.ok_or_else(|| ForeignError::NotBlocks(about.model.clone()))?;
            Ok::<_, ForeignError>((Arc::new(store), kv_store.place))
        });
        let (mut listener, mut kept_slots) = (None, None);
        let store = match kept.transpose()? {
            None => None,
            Some((store, KvPlace::Socket(socket))) => {
                listener = Some(kv_store::bind(&socket)?);
                Some(store)
            }
            Some((store, KvPlace::Slots(folder))) => {
                kept_slots = Some(KeptSlots::new(folder, Arc::clone(&store)));
                Some(store)
            }
        };
        let upstream = Upstream::new(config.url.clone(), config.key.as_deref());
        let handing = config
            .connector
            .map(|connector| Handing::new(connector, &config.url));
        let shared = Arc::new(Shared {
            description: config.description,
            make: config.make,
            upstream,
            served_name: config.served_name,
            handing,
            text: config.text,
            random: config.random,
            clock: config.clock,
            salts,
            store: store.clone(),
            kept_slots,
            meter: Meter::default(),
            up: AtomicBool::new(false),
            seen: Mutex::default(),
            events,
            listening: !ranks.is_empty(),
            supervised: log.is_some(),
            counts: Counts::default(),
        });
        let mut tasks = JoinSet::new();
        if let (Some(store), Some(listener)) = (store, listener) {
            tasks.spawn(kv_store::run(store, listener));
        }
        if let (Some(command), Some(log)) = (config.command, log) {
            tasks.spawn(supervise::run(Arc::clone(&shared), command, log));
        }
        let (restarts, _) = tokio::sync::watch::channel(0);
        for rank in ranks {
            tasks.spawn(listen::run(Arc::clone(&shared), rank, restarts.subscribe()));
        }
        tasks.spawn(watch::run(Arc::clone(&shared), restarts));
        Ok(Self {
            shared,
            _tasks: tasks,
        })
    }

    /// Waits until it can be given work, at most so long; whether it can.
    pub async fn until_up(&self, most: Duration) -> bool {
        let until = tokio::time::Instant::now() + most;
        while !self.is_up() {
            if tokio::time::Instant::now() > until {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        true
    }
}

/// What a trait for engines of pieces asks and these cannot do.
const NO_PIECES: &str = "this engine answers whole requests and keeps its KV to itself";

#[async_trait]
impl Engine for ForeignInstance {
    fn describe(&self) -> &EngineDescription {
        &self.shared.description
    }

    fn held(&self, _key: &TenantKey, _tokens: &[u32], _on: &[Dependency]) -> HeldPrefix {
        HeldPrefix::default()
    }

    /// Found under a key that is another for each set of dependencies.
    fn kept(&self, key: &TenantKey, tokens: &[u32], _on: &[Dependency]) -> HeldPrefix {
        let store = self.shared.store.as_ref();
        store.map(|store| store.kept(key, tokens)).unwrap_or_default()
    }

    fn keep(&self, job: &KeepJob) -> Tokens {
        let store = self.shared.store.as_ref();
        store.map_or(Tokens(0), |store| store.keep(job))
    }

    async fn prefill(
        &self,
        _job: PrefillJob,
        _pieces: mpsc::UnboundedSender<KvPiece>,
    ) -> Result<PrefillReport, EngineError> {
        Err(EngineError::BadJob(NO_PIECES.to_owned()))
    }

    fn decode(&self, _job: DecodeJob) -> mpsc::UnboundedReceiver<DecodeEvent> {
        let (events, receiver) = mpsc::unbounded_channel();
        drop(events.send(DecodeEvent::Failed(EngineError::BadJob(NO_PIECES.to_owned()))));
        receiver
    }

    fn load(&self) -> EngineLoad {
        let scraped = self.shared.seen.lock().load;
        self.shared.meter.load(&scraped)
    }

    fn whole(&self) -> Option<&dyn WholeRequests> {
        Some(self)
    }

    fn is_up(&self) -> bool {
        self.shared.up.load(std::sync::atomic::Ordering::Acquire)
    }

    fn events(&self) -> broadcast::Receiver<KvEvent> {
        self.shared.events.subscribe()
    }

    fn samples(&self) -> Vec<Sample> {
        self.shared.samples()
    }
}
