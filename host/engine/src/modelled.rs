//! A modelled engine: a server that takes the time a profile says and computes nothing. From outside it is vLLM: its
//! API, its metrics, its cache events, its hand-over between prefill and decode. Load tests, demos of scale and tests
//! of the adapter use it where the hardware it stands for is not at hand.
//!
//! | part | what it does |
//! |---|---|
//! | [`Profile`] | how fast, how large, how faulty |
//! | `blocks` | the prefix cache: what is held, pinned, evicted |
//! | `schedule` | continuous batching, step by step, in real time |
//! | `speech` | the tokens of answers: the same prompt gets the same answer from every instance |
//! | `publish` | cache events over ZeroMQ: the running stream and replays |
//! | `hand_over` | KV parked for a decode instance, and taken from a prefill instance |
//! | `api` | HTTP: requests in, JSON and server-sent events out |

mod api;
mod blocks;
mod faults;
mod hand_over;
mod metrics;
mod profile;
mod publish;
mod schedule;
mod speech;
#[cfg(test)]
mod tests;

pub use faults::Faults;
pub use profile::{DecodeTime, KvRoom, Profile, ProfileError};

use crate::modelled::publish::{Publisher, PublisherConfig};
use api::Server;
use portolan_base::{Clock, Random};
use portolan_ports::{FakeText, TextModel};
use schedule::Scheduler;
use std::net::SocketAddr;
use std::sync::Arc;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Where cache events are published, as vLLM's `--kv-events-config` says it.
#[derive(Clone, Debug)]
pub struct EventPorts {
    /// Where subscribers connect, such as `tcp://127.0.0.1:5557`.
    pub publish: String,
    /// Where replays are asked for.
    pub replay: Option<String>,
    /// The topic frame.
    pub topic: String,
}

/// What a modelled engine is started with.
pub struct ModelledConfig {
    /// How it behaves.
    pub profile: Profile,
    /// The model's name in requests.
    pub model: String,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Its tokenizer and chat template; none: a token is a byte.
    pub text: Option<ModelledText>,
    /// Its cache events.
    pub events: Option<EventPorts>,
    /// Reads the time.
    pub clock: Arc<dyn Clock>,
    /// Draws ids.
    pub random: Arc<dyn Random>,
}

/// A tokenizer with the size of its vocabulary.
#[derive(Clone)]
pub struct ModelledText {
    /// Turns text into tokens and back.
    pub text: Arc<dyn TextModel>,
    /// Token ids are below this.
    pub vocabulary: u32,
}

/// Why a modelled engine did not start, or ended.
#[derive(Debug, Error)]
pub enum ModelledError {
    /// The profile cannot be used.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A port cannot be used.
    #[error("the modelled engine cannot listen on {address}: {reason}")]
    Listen {
        /// Which.
        address: String,
        /// Why.
        reason: String,
    },
    /// It died the way the engine it models does.
    #[error("the modelled engine died: {0}")]
    Died(String),
}

/// A running modelled engine. Dropping it ends it at once, as a kill would.
pub struct ModelledEngine {
    address: SocketAddr,
    events: Option<String>,
    replay: Option<String>,
    tasks: JoinSet<Result<(), ModelledError>>,
}

impl ModelledEngine {
    /// Binds its ports and begins to serve.
    ///
    /// # Errors
    /// When the profile cannot be used or a port is taken.
    pub async fn start(config: ModelledConfig) -> Result<Self, ModelledError> {
        config.profile.check()?;
        let listen = |e: std::io::Error| ModelledError::Listen {
            address: config.listen.to_string(),
            reason: e.to_string(),
        };
        let listener = TcpListener::bind(config.listen).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let publisher = match &config.events {
            None => None,
            Some(ports) => Some(
                Publisher::bind(PublisherConfig {
                    ports: ports.clone(),
                    clock: Arc::clone(&config.clock),
                })
                .await?,
            ),
        };
        let (events, replay) = match &publisher {
            None => (None, None),
            Some(publisher) => (
                Some(publisher.address().to_owned()),
                publisher.replay().map(str::to_owned),
            ),
        };
        let text = config.text.unwrap_or_else(|| ModelledText {
            text: Arc::new(FakeText::new()),
            vocabulary: portolan_ports::FAKE_VOCABULARY,
        });
        let (scheduler, steps) = Scheduler::new(config.profile.clone(), &text, publisher);
        let server = Server::new(api::ServerParts {
            profile: config.profile,
            model: config.model,
            address,
            text,
            scheduler,
            clock: config.clock,
            random: config.random,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(steps.run());
        tasks.spawn(server.run(listener));
        Ok(Self {
            address,
            events,
            replay,
            tasks,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where its cache events are, if anywhere.
    pub fn events(&self) -> Option<&str> {
        self.events.as_deref()
    }

    /// Where replays of them are, if anywhere.
    pub fn replay(&self) -> Option<&str> {
        self.replay.as_deref()
    }

    /// Runs until it dies.
    ///
    /// # Errors
    /// Always: it ends no other way.
    pub async fn wait(mut self) -> Result<(), ModelledError> {
        match self.tasks.join_next().await {
            Some(Ok(end)) => end,
            Some(Err(broken)) => Err(ModelledError::Died(broken.to_string())),
            None => Ok(()),
        }
    }
}
