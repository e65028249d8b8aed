//! The fleet's policies over JetStream: what each question holds in a key-value bucket, components in an object store.
//!
//! A bucket keeps the newest state of each key, so that a process that was away catches up by reading it. A change
//! names the state that it replaces: of two processes that change one slot at once, one is told to look again. States
//! carry the fleet's mark, and components the digest that a marked state names: whoever can write to the servers and does
//! not have the secret binds nothing.

mod sweep;

use super::NatsBus;
use super::bucket::{Bucket, Puts};
use super::envelope::{Marked, Seal};
use async_nats::jetstream::kv::UpdateErrorKind;
use async_nats::jetstream::object_store::{self, GetErrorKind, ObjectStore};
use async_nats::jetstream::stream::StorageType;
use bytes::Bytes;
use parking_lot::Mutex;
use portolan_policy::{QuestionKind, Scope};
use portolan_ports::{SharedError, SharedPolicies, SharedSlot};
use std::collections::HashMap;
use std::sync::Arc;
use sweep::Unnamed;
use tokio::io::AsyncReadExt;

/// The fleet's policies. Cheap to clone.
#[derive(Clone)]
pub struct NatsPolicies(Arc<Inner>);

struct Inner {
    states: Bucket,
    /// The object store that components lie in.
    components: String,
    seal: Arc<Seal>,
    /// The newest state of each key that this process knows of.
    revisions: Mutex<HashMap<String, u64>>,
    /// Components that no slot names, and since when as far as this process knows.
    unnamed: Mutex<Unnamed>,
}

/// What other processes changed, as it comes.
pub struct SharedSlots {
    policies: NatsPolicies,
    puts: Puts,
}

impl NatsPolicies {
    /// The policies of the fleet that a bus is of, over the bus's connection. In a runtime.
    pub fn on(bus: &NatsBus, replicas: usize) -> Self {
        Self(Arc::new(Inner {
            states: Bucket::on(bus, bus.subjects.policies(), replicas),
            components: bus.subjects.components(),
            seal: Arc::clone(&bus.seal),
            revisions: Mutex::default(),
            unnamed: Mutex::default(),
        }))
    }

    /// Follows what every slot holds: first the newest state of each, then each change.
    pub fn follow(&self) -> SharedSlots {
        SharedSlots {
            policies: self.clone(),
            puts: Puts::default(),
        }
    }

    async fn components(&self) -> Result<ObjectStore, String> {
        let (states, bucket) = (&self.0.states, &self.0.components);
        if let Ok(known) = states.jetstream.get_object_store(bucket).await {
            return Ok(known);
        }
        let made = states.jetstream.create_object_store(object_store::Config {
            bucket: bucket.clone(),
            storage: StorageType::File,
            num_replicas: states.replicas,
            ..object_store::Config::default()
        });
        made.await.map_err(|error| error.to_string())
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
        self.0.states.connected().map_err(refused)?;
        self.keep(components).await.map_err(refused)?;
        let key = key(&slot.scope, slot.question);
        let body = serde_json::to_vec(slot).map_err(|error| refused(error.to_string()))?;
        let value = self.0.seal.marked(&key, Marked::Policy, &body);
        let states = self.0.states.open().await.map_err(refused)?;
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
        self.0.states.connected().map_err(out_of_reach)?;
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
        let put = self.put(slot, components);
        self.0.states.within(put, SharedError::NotAcknowledged)
    }

    fn component(&self, sha256: &str) -> Result<Bytes, SharedError> {
        self.0.states.within(self.get(sha256), SharedError::OutOfReach)
    }
}

impl SharedSlots {
    /// The next change, or state at the beginning; waits for it, through cuts. May be dropped while it waits.
    pub async fn next(&mut self) -> SharedSlot {
        let policies = &self.policies;
        loop {
            let (entry, _) = self.puts.next(&policies.0.states).await;
            let newest = {
                let mut revisions = policies.0.revisions.lock();
                let seen = revisions.entry(entry.key.clone()).or_default();
                *seen = entry.revision.max(*seen);
                *seen
            };
            if entry.revision < newest {
                continue;
            }
            match policies.read(&entry.key, &entry.value) {
                Some(slot) => return slot,
                None => tracing::error!(
                    key = entry.key,
                    "what the fleet's servers hold of a policy is not of this fleet, and is not taken"
                ),
            }
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
