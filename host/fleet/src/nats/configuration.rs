//! What the fleet's sites have in common of their configuration, over JetStream: its newest state in a key-value bucket,
//! beside what each site runs.
//!
//! ```text
//! common          nonce [u8; 12] | ChaCha20-Poly1305 of a [`SharedConfig`], under a key made of the fleet's secret
//! sites.SITE      a [`SiteRuns`], with the fleet's mark
//! ```
//!
//! A configuration holds API keys: whoever carries it can neither read nor change it. A change names the state that it
//! follows, so that of two at once one is told to look again.

use super::bucket;
use super::envelope::{Marked, Seal};
use super::{NatsBus, Subjects};
use async_nats::Client;
use async_nats::connection::State;
use async_nats::jetstream::kv::{self, Operation, UpdateErrorKind, Watch};
use async_nats::jetstream::{self, Context};
use futures_util::StreamExt;
use portolan_base::{Random, SiteName};
use portolan_ports::{ConfigRefusal, FleetVersion, SharedConfig, SharedConfiguration, SiteRuns};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// Longest wait for the servers: a cluster that has lost its leader elects another within four seconds.
const WITHIN: Duration = Duration::from_secs(5);

/// Between two tries to follow the bucket.
const AGAIN: Duration = Duration::from_millis(500);

/// The longest configuration that is told: a server takes messages of 1 MiB by default.
const LONGEST: usize = 900 << 10;

const COMMON: &str = "common";
const SITES: &str = "sites.";

/// The fleet's configuration. Cheap to clone.
#[derive(Clone)]
pub struct NatsConfiguration(Arc<Inner>);

struct Inner {
    jetstream: Context,
    client: Client,
    seal: Arc<Seal>,
    lock: Lock,
    subjects: Arc<Subjects>,
    replicas: usize,
    runtime: Handle,
}

/// What other sites said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigNews {
    /// What all have in common.
    Common(FleetVersion, SharedConfig),
    /// What a site runs.
    Runs(SiteName, SiteRuns),
}

/// What other sites say, as it comes.
pub struct ConfigFeed {
    configuration: NatsConfiguration,
    watch: Option<Watch>,
    /// When the bucket that is followed was founded.
    founded: u64,
}

impl NatsConfiguration {
    /// The configuration of the fleet that a bus is of, over the bus's connection. In a runtime. `secret` is the bus's.
    pub fn on(bus: &NatsBus, replicas: usize, secret: &[u8; 32], random: Arc<dyn Random>) -> Self {
        let client = bus.client.clone();
        let mut jetstream = jetstream::new(client.clone());
        jetstream.set_timeout(WITHIN);
        Self(Arc::new(Inner {
            jetstream,
            client,
            seal: Arc::clone(&bus.seal),
            lock: Lock::new(secret, random),
            subjects: Arc::clone(&bus.subjects),
            replicas,
            runtime: Handle::current(),
        }))
    }

    /// Follows what the sites have in common and run: first the newest of each, then each change.
    pub fn follow(&self) -> ConfigFeed {
        ConfigFeed {
            configuration: self.clone(),
            watch: None,
            founded: 0,
        }
    }

    async fn states(&self) -> Result<kv::Store, String> {
        let inner = &self.0;
        match inner.client.connection_state() {
            State::Connected => {
                let bucket = inner.subjects.configuration();
                bucket::open(&inner.jetstream, &bucket, inner.replicas).await
            }
            State::Pending | State::Disconnected => Err("there is no connection to a server".to_owned()),
        }
    }

    async fn put(&self, told: &SharedConfig, over: FleetVersion) -> Result<FleetVersion, ConfigRefusal> {
        let refused = ConfigRefusal::NotAcknowledged;
        let body = serde_json::to_vec(told).map_err(|error| refused(error.to_string()))?;
        let closed = self.0.lock.close(body).map_err(refused)?;
        if closed.len() > LONGEST {
            let text = format!(
                "what the sites have in common takes {} bytes, at most {LONGEST} can be told",
                closed.len()
            );
            return Err(ConfigRefusal::Bad(text));
        }
        let states = self.states().await.map_err(refused)?;
        let founded = founded(&states);
        // Of a bucket that was founded since nothing is known.
        let known = if over.founded == founded { over.number } else { 0 };
        match states.update(COMMON, closed.into(), known).await {
            Ok(number) => Ok(FleetVersion { founded, number }),
            Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => {
                Err(ConfigRefusal::ChangedElsewhere)
            }
            Err(error) => Err(refused(error.to_string())),
        }
    }

    async fn say(&self, site: &SiteName, runs: &SiteRuns) -> Result<(), ConfigRefusal> {
        let refused = ConfigRefusal::NotAcknowledged;
        let key = key_of(site);
        let body = serde_json::to_vec(runs).map_err(|error| refused(error.to_string()))?;
        let value = self.0.seal.marked(&key, Marked::Configuration, &body);
        let states = self.states().await.map_err(refused)?;
        let put = states.put(&key, value).await;
        put.map(drop).map_err(|error| refused(error.to_string()))
    }

    /// Waits for the servers, on a thread that may wait.
    fn within<T>(&self, asked: impl Future<Output = Result<T, ConfigRefusal>>) -> Result<T, ConfigRefusal> {
        let answered = self.0.runtime.block_on(timeout(2 * WITHIN, asked));
        answered.unwrap_or_else(|_| Err(ConfigRefusal::NotAcknowledged("no server answers".to_owned())))
    }
}

impl SharedConfiguration for NatsConfiguration {
    fn share(&self, told: &SharedConfig, over: FleetVersion) -> Result<FleetVersion, ConfigRefusal> {
        self.within(self.put(told, over))
    }

    fn report(&self, site: &SiteName, runs: &SiteRuns) -> Result<(), ConfigRefusal> {
        self.within(self.say(site, runs))
    }
}

impl ConfigFeed {
    /// The next change, or state at the beginning; waits for it, through cuts. May be dropped while it waits.
    pub async fn next(&mut self) -> ConfigNews {
        loop {
            let Some(watch) = &mut self.watch else {
                if let Some((watch, founded)) = begin(&self.configuration).await {
                    (self.watch, self.founded) = (Some(watch), founded);
                }
                continue;
            };
            match watch.next().await {
                Some(Ok(entry)) if entry.operation == Operation::Put => {
                    let version = FleetVersion {
                        founded: self.founded,
                        number: entry.revision,
                    };
                    match self.configuration.read(&entry.key, version, &entry.value) {
                        Some(news) => return news,
                        None => tracing::error!(
                            key = entry.key,
                            "what the fleet's servers hold of the configuration is not of this fleet, and is not taken"
                        ),
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::debug!(%error, "the configuration is followed anew");
                    self.watch = None;
                }
                None => self.watch = None,
            }
        }
    }
}

impl NatsConfiguration {
    fn read(&self, at: &str, version: FleetVersion, value: &[u8]) -> Option<ConfigNews> {
        if at == COMMON {
            let told = self.0.lock.open(value)?;
            return Some(ConfigNews::Common(version, serde_json::from_slice(&told).ok()?));
        }
        let body = self.0.seal.unmark(at, Marked::Configuration, value).ok()?;
        let site = super::envelope::site(at.strip_prefix(SITES)?)?;
        Some(ConfigNews::Runs(site, serde_json::from_slice(body).ok()?))
    }
}

/// Begins to follow the bucket; waits a moment where that fails.
async fn begin(configuration: &NatsConfiguration) -> Option<(Watch, u64)> {
    let begun = async {
        let states = configuration.states().await?;
        let watch = states.watch_with_history(">").await;
        let watch = watch.map_err(|error| error.to_string())?;
        Ok((watch, founded(&states)))
    };
    match begun.await {
        Ok(begun) => Some(begun),
        Err::<_, String>(error) => {
            tracing::debug!(error, "the configuration cannot be followed at this moment");
            tokio::time::sleep(AGAIN).await;
            None
        }
    }
}

/// When a bucket was founded, in nanoseconds since the Unix epoch by the servers' clocks.
fn founded(states: &kv::Store) -> u64 {
    u64::try_from(states.stream.cached_info().created.unix_timestamp_nanos()).unwrap_or(0)
}

fn key_of(site: &SiteName) -> String {
    format!("{SITES}{}", super::subjects::token(site.as_str()))
}

/// Closes what nobody without the fleet's secret may read or change.
struct Lock {
    key: LessSafeKey,
    random: Arc<dyn Random>,
}

impl Lock {
    fn new(secret: &[u8; 32], random: Arc<dyn Random>) -> Self {
        let key = blake3::derive_key("portolan 2026 shared configuration", secret);
        // A key of this cipher has 32 bytes, always.
        let key = UnboundKey::new(&CHACHA20_POLY1305, &key).expect("32 bytes");
        Self {
            key: LessSafeKey::new(key),
            random,
        }
    }

    /// Each time with another nonce: 96 random bits, for changes that people make.
    fn close(&self, mut body: Vec<u8>) -> Result<Vec<u8>, String> {
        let drawn = [self.random.next_u64(), self.random.next_u64()];
        let mut nonce = [0; NONCE_LEN];
        let bytes = drawn.iter().flat_map(|word| word.to_le_bytes());
        nonce.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        let sealed = self.key.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(COMMON.as_bytes()),
            &mut body,
        );
        sealed.map_err(|_| "the configuration cannot be enciphered".to_owned())?;
        Ok([nonce.as_slice(), &body].concat())
    }

    fn open(&self, closed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, body) = closed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut body = body.to_vec();
        let opened = self
            .key
            .open_in_place(nonce, Aad::from(COMMON.as_bytes()), &mut body);
        opened.ok().map(|opened| opened.to_vec())
    }
}

#[cfg(test)]
mod tests;
