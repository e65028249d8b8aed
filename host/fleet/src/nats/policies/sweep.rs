//! Removes components that no slot names: every version that was ever bound would stay on the servers.

use super::{NatsPolicies, SharedSlot};
use async_nats::jetstream::kv;
use bytes::Bytes;
use futures_util::StreamExt;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long a component is named by no slot before it goes. A slot names its components seconds after they were put there.
const GRACE: Duration = Duration::from_secs(600);

/// Longest wait for the servers: a few thousand slots are read in seconds.
const WITHIN: Duration = Duration::from_secs(30);

/// Most components removed at a time: their bytes are held meanwhile.
const AT_ONCE: usize = 8;

/// A component's name and which one it is: one that was put there again is another.
type Object = (String, String);

/// Components that no slot names, and since when.
pub(super) type Unnamed = HashMap<Object, Instant>;

impl NatsPolicies {
    /// Removes components that no slot has named for ten minutes; says how many. To be called every few minutes, at any
    /// process.
    ///
    /// # Errors
    /// When the servers do not answer, or hold something of a slot that is not this fleet's: nothing is removed then.
    pub async fn sweep(&self) -> Result<usize, String> {
        let swept = timeout(WITHIN, self.sweep_after(GRACE)).await;
        swept.unwrap_or_else(|_| Err("the servers take too long".to_owned()))
    }

    pub(super) async fn sweep_after(&self, grace: Duration) -> Result<usize, String> {
        let (states, store) = (self.0.states.open().await?, self.components().await?);
        let mut there = Vec::new();
        let mut list = store.list().await.map_err(|error| error.to_string())?;
        while let Some(object) = list.next().await {
            let object = object.map_err(|error| error.to_string())?;
            there.push((object.name, object.nuid));
        }
        let named = self.named(&states).await?;
        let mut removed = Vec::new();
        for sha256 in self.due(there, &named, grace) {
            let bytes = self.get(&sha256).await.map_err(|error| error.to_string())?;
            store.delete(&sha256).await.map_err(|error| error.to_string())?;
            removed.push((sha256, bytes));
        }
        if removed.is_empty() {
            return Ok(0);
        }
        // A process may have bound one meanwhile, which it found still there.
        let named = self.named(&states).await?;
        let (back, gone): (Vec<(String, Bytes)>, Vec<_>) = removed
            .into_iter()
            .partition(|(sha256, _)| named.contains(sha256));
        self.keep(&back).await?;
        Ok(gone.len())
    }

    /// Those of the components `there` that no slot has named for so long; from now on is counted for the others.
    fn due(&self, there: Vec<Object>, named: &HashSet<String>, grace: Duration) -> Vec<String> {
        let now = Instant::now();
        let mut unnamed = self.0.unnamed.lock();
        let mut still: Unnamed = HashMap::new();
        for object in there.into_iter().filter(|(sha256, _)| !named.contains(sha256)) {
            let since = unnamed.get(&object).copied().unwrap_or(now);
            still.insert(object, since);
        }
        *unnamed = still;
        let due = unnamed.iter().filter(|(_, since)| now - **since >= grace);
        due.map(|((sha256, _), _)| sha256.clone()).take(AT_ONCE).collect()
    }

    /// The digests of all components that slots name.
    async fn named(&self, states: &kv::Store) -> Result<HashSet<String>, String> {
        let mut named = HashSet::new();
        let mut keys = states.keys().await.map_err(|error| error.to_string())?;
        while let Some(key) = keys.next().await {
            let key = key.map_err(|error| error.to_string())?;
            let Some(value) = states.get(&key).await.map_err(|error| error.to_string())? else {
                continue;
            };
            let slot = self.read(&key, &value);
            let slot: SharedSlot = slot.ok_or_else(|| format!("what {key} holds is not of this fleet"))?;
            let trial = slot.rollout.trial.map(|trial| trial.sha256);
            let versions = slot.versions.into_iter().map(|version| version.sha256);
            named.extend(
                versions
                    .chain(trial)
                    .chain(slot.binding.map(|binding| binding.sha256)),
            );
        }
        Ok(named)
    }
}
