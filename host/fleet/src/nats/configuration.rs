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

use super::NatsBus;
use super::bucket::{Bucket, Puts, founded};
use super::envelope::{Marked, Seal};
use async_nats::jetstream::kv::UpdateErrorKind;
use portolan_base::{Random, SiteName};
use portolan_ports::{ConfigRefusal, FleetVersion, SharedConfig, SharedConfiguration, SiteRuns};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use std::sync::Arc;

/// The longest configuration that is told: a server takes messages of 1 MiB by default.
const LONGEST: usize = 900 << 10;

const COMMON: &str = "common";
const SITES: &str = "sites.";

/// The fleet's configuration. Cheap to clone.
#[derive(Clone)]
pub struct NatsConfiguration(Arc<Inner>);

struct Inner {
    states: Bucket,
    seal: Arc<Seal>,
    lock: Lock,
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
    puts: Puts,
}

impl NatsConfiguration {
    /// The configuration of the fleet that a bus is of, over the bus's connection. In a runtime. `secret` is the bus's.
    pub fn on(bus: &NatsBus, replicas: usize, secret: &[u8; 32], random: Arc<dyn Random>) -> Self {
        Self(Arc::new(Inner {
            states: Bucket::on(bus, bus.subjects.configuration(), replicas),
            seal: Arc::clone(&bus.seal),
            lock: Lock::new(secret, random),
        }))
    }

    /// Follows what the sites have in common and run: first the newest of each, then each change.
    pub fn follow(&self) -> ConfigFeed {
        ConfigFeed {
            configuration: self.clone(),
            puts: Puts::default(),
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
        let states = self.0.states.open().await.map_err(refused)?;
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
        let states = self.0.states.open().await.map_err(refused)?;
        let put = states.put(&key, value).await;
        put.map(drop).map_err(|error| refused(error.to_string()))
    }
}

impl SharedConfiguration for NatsConfiguration {
    fn share(&self, told: &SharedConfig, over: FleetVersion) -> Result<FleetVersion, ConfigRefusal> {
        let put = self.put(told, over);
        self.0.states.within(put, ConfigRefusal::NotAcknowledged)
    }

    fn report(&self, site: &SiteName, runs: &SiteRuns) -> Result<(), ConfigRefusal> {
        let said = self.say(site, runs);
        self.0.states.within(said, ConfigRefusal::NotAcknowledged)
    }
}

impl ConfigFeed {
    /// The next change, or state at the beginning; waits for it, through cuts. May be dropped while it waits.
    pub async fn next(&mut self) -> ConfigNews {
        let configuration = &self.configuration;
        loop {
            let (entry, founded) = self.puts.next(&configuration.0.states).await;
            let version = FleetVersion {
                founded,
                number: entry.revision,
            };
            match configuration.read(&entry.key, version, &entry.value) {
                Some(news) => return news,
                None => tracing::error!(
                    key = entry.key,
                    "what the fleet's servers hold of the configuration is not of this fleet, and is not taken"
                ),
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
