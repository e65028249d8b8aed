//! The fleet's policies over JetStream: what each question holds in a key-value bucket, components in an object store.
//!
//! A bucket keeps the newest state of each key, so that a process that was away catches up by reading it. A change
//! names the state that it replaces: of two processes that change one slot at once, one is told to look again. States
//! carry the fleet's mark, and components the digest that a marked state names: whoever can write to the servers and does
//! not have the secret binds nothing.

mod sweep;

use super::bucket;
use super::envelope::{Marked, Seal};
use super::{NatsBus, Subjects};
use async_nats::Client;
use async_nats::connection::State;
use async_nats::jetstream::kv::{self, Operation, UpdateErrorKind, Watch};
use async_nats::jetstream::object_store::{self, GetErrorKind, ObjectStore};
use async_nats::jetstream::stream::StorageType;
use async_nats::jetstream::{self, Context};
use bytes::Bytes;
use futures_util::StreamExt;
use parking_lot::Mutex;
use portolan_policy::{QuestionKind, Scope};
use portolan_ports::{SharedError, SharedPolicies, SharedSlot};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use sweep::Unnamed;
use tokio::io::AsyncReadExt;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// Longest wait for the servers: a cluster that has lost its leader elects another within four seconds.
const WITHIN: Duration = Duration::from_secs(5);

/// Between two tries to follow the bucket.
const AGAIN: Duration = Duration::from_millis(500);

/// The fleet's policies. Cheap to clone.
#[derive(Clone)]
pub struct NatsPolicies(Arc<Inner>);

struct Inner {
    jetstream: Context,
    client: Client,
    seal: Arc<Seal>,
    subjects: Arc<Subjects>,
    replicas: usize,
    /// The newest state of each key that this process knows of.
    revisions: Mutex<HashMap<String, u64>>,
    /// Components that no slot names, and since when as far as this process knows.
    unnamed: Mutex<Unnamed>,
    runtime: Handle,
}

/// What other processes changed, as it comes.
pub struct SharedSlots {
    policies: NatsPolicies,
    watch: Option<Watch>,
}

impl NatsPolicies {
    /// The policies of the fleet that a bus is of, over the bus's connection. In a runtime.
    pub fn on(bus: &NatsBus, replicas: usize) -> Self {
        let client = bus.client.clone();
        let mut jetstream = jetstream::new(client.clone());
        jetstream.set_timeout(WITHIN);
        Self(Arc::new(Inner {
            jetstream,
            client,
            seal: Arc::clone(&bus.seal),
            subjects: Arc::clone(&bus.subjects),
            replicas,
            revisions: Mutex::default(),
            unnamed: Mutex::default(),
            runtime: Handle::current(),
        }))
    }

    /// Follows what every slot holds: first the newest state of each, then each change.
    pub fn follow(&self) -> SharedSlots {
        SharedSlots {
            policies: self.clone(),
            watch: None,
        }
    }

    async fn states(&self) -> Result<kv::Store, String> {
        let inner = &self.0;
        let bucket = inner.subjects.policies();
        bucket::open(&inner.jetstream, &bucket, inner.replicas).await
    }

    async fn components(&self) -> Result<ObjectStore, String> {
        let inner = &self.0;
        let bucket = inner.subjects.components();
        if let Ok(known) = inner.jetstream.get_object_store(&bucket).await {
            return Ok(known);
        }
        let made = inner.jetstream.create_object_store(object_store::Config {
            bucket,
            storage: StorageType::File,
            num_replicas: inner.replicas,
            ..object_store::Config::default()
        });
        made.await.map_err(|error| error.to_string())
    }

    fn connected(&self) -> Result<(), String> {
        match self.0.client.connection_state() {
            State::Connected => Ok(()),
            State::Pending | State::Disconnected => Err("there is no connection to a server".to_owned()),
        }
    }

    async fn keep(&self, components: &[(String, Bytes)]) -> Result<(), String> {
        let store = self.components().await?;
        for (sha256, bytes) in components {
            // Named by their digest: what is there is the same.
            if store
                .info(sha256)
                .await
                .is_ok_and(|known| !known.deleted && known.size == bytes.len())
            {
                continue;
            }
            let put = store.put(sha256.as_str(), &mut bytes.as_ref()).await;
            put.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    async fn put(&self, slot: &SharedSlot, components: &[(String, Bytes)]) -> Result<(), SharedError> {
        let refused = SharedError::NotAcknowledged;
        self.connected().map_err(refused)?;
        self.keep(components).await.map_err(refused)?;
        let key = key(&slot.scope, slot.question);
        let body = serde_json::to_vec(slot).map_err(|error| refused(error.to_string()))?;
        let value = self.0.seal.marked(&key, Marked::Policy, &body);
        let states = self.states().await.map_err(refused)?;
        let known = self.0.revisions.lock().get(&key).copied().unwrap_or(0);
        match states.update(&key, value, known).await {
            Ok(revision) => {
                self.0.revisions.lock().insert(key, revision);
                // One that was there may have been removed as named by nobody before this slot named it.
                if let Err(error) = self.keep(components).await {
                    tracing::warn!(error, "whether a policy's component is still kept is not known");
                }
                Ok(())
            }
            Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => {
                Err(SharedError::ChangedElsewhere)
            }
            Err(error) => Err(refused(error.to_string())),
        }
    }

    async fn get(&self, sha256: &str) -> Result<Bytes, SharedError> {
        let out_of_reach = SharedError::OutOfReach;
        self.connected().map_err(out_of_reach)?;
        let store = self.components().await.map_err(out_of_reach)?;
        let mut object = store.get(sha256).await.map_err(|error| match error.kind() {
            GetErrorKind::NotFound => SharedError::Missing(sha256.to_owned()),
            _ => out_of_reach(error.to_string()),
        })?;
        let mut bytes = Vec::new();
        object
            .read_to_end(&mut bytes)
            .await
            .map_err(|error| out_of_reach(error.to_string()))?;
        Ok(bytes.into())
    }
}

impl NatsPolicies {
    fn read(&self, at: &str, value: &[u8]) -> Option<SharedSlot> {
        let body = self.0.seal.unmark(at, Marked::Policy, value).ok()?;
        let slot: SharedSlot = serde_json::from_slice(body).ok()?;
        (key(&slot.scope, slot.question) == at).then_some(slot)
    }
}

impl SharedPolicies for NatsPolicies {
    fn share(&self, slot: &SharedSlot, components: &[(String, Bytes)]) -> Result<(), SharedError> {
        let put = timeout(2 * WITHIN, self.put(slot, components));
        self.0
            .runtime
            .block_on(put)
            .unwrap_or_else(|_| Err(SharedError::NotAcknowledged("no server answers".to_owned())))
    }

    fn component(&self, sha256: &str) -> Result<Bytes, SharedError> {
        let got = self.0.runtime.block_on(timeout(2 * WITHIN, self.get(sha256)));
        got.unwrap_or_else(|_| Err(SharedError::OutOfReach("no server answers".to_owned())))
    }
}

impl SharedSlots {
    /// The next change, or state at the beginning; waits for it, through cuts. May be dropped while it waits.
    pub async fn next(&mut self) -> SharedSlot {
        loop {
            let Some(watch) = &mut self.watch else {
                self.watch = begin(&self.policies).await;
                continue;
            };
            match watch.next().await {
                Some(Ok(entry)) if entry.operation == Operation::Put => {
                    let policies = &self.policies.0;
                    let seen = policies.revisions.lock().get(&entry.key).copied().unwrap_or(0);
                    if entry.revision < seen {
                        continue;
                    }
                    policies
                        .revisions
                        .lock()
                        .insert(entry.key.clone(), entry.revision);
                    match self.policies.read(&entry.key, &entry.value) {
                        Some(slot) => return slot,
                        None => tracing::error!(
                            key = entry.key,
                            "what the fleet's servers hold of a policy is not of this fleet, and is not taken"
                        ),
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::debug!(%error, "policies are followed anew");
                    self.watch = None;
                }
                None => self.watch = None,
            }
        }
    }
}

/// Begins to follow the bucket; waits a moment where that fails.
async fn begin(policies: &NatsPolicies) -> Option<Watch> {
    let begun = async {
        policies.connected()?;
        let states = policies.states().await?;
        states
            .watch_with_history(">")
            .await
            .map_err(|error| error.to_string())
    };
    match begun.await {
        Ok(watch) => Some(watch),
        Err(error) => {
            tracing::debug!(error, "policies cannot be followed at this moment");
            tokio::time::sleep(AGAIN).await;
            None
        }
    }
}

/// `SCOPE.QUESTION`.
fn key(scope: &Scope, question: QuestionKind) -> String {
    let scope = match scope {
        Scope::Platform => "_platform".to_owned(),
        Scope::Tenant(tenant) => super::subjects::token(tenant.as_str()),
    };
    format!("{scope}.{question}")
}

#[cfg(test)]
mod tests;
