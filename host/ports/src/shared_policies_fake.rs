//! The fake beside [`SharedPolicies`]: what was shared, in memory, and what can be wrong with sharing.

use crate::shared_policies::{SharedError, SharedPolicies, SharedSlot};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// A fleet in memory. Whoever holds it takes what was shared to the other processes.
#[derive(Debug, Default)]
pub struct MemoryShared {
    shared: Mutex<Vec<SharedSlot>>,
    components: Mutex<BTreeMap<String, Bytes>>,
    refusing: Mutex<Option<SharedError>>,
}

impl MemoryShared {
    /// What was shared so far, in order.
    pub fn shared(&self) -> Vec<SharedSlot> {
        self.shared.lock().clone()
    }

    /// Refuses from now on, or takes again.
    pub fn refuse(&self, error: Option<SharedError>) {
        *self.refusing.lock() = error;
    }

    /// Puts other bytes under a digest.
    pub fn damage(&self, sha256: &str, bytes: Bytes) {
        self.components.lock().insert(sha256.to_owned(), bytes);
    }
}

impl SharedPolicies for MemoryShared {
    fn share(&self, slot: &SharedSlot, components: &[(String, Bytes)]) -> Result<(), SharedError> {
        if let Some(error) = self.refusing.lock().clone() {
            return Err(error);
        }
        self.components.lock().extend(components.iter().cloned());
        self.shared.lock().push(slot.clone());
        Ok(())
    }

    fn component(&self, sha256: &str) -> Result<Bytes, SharedError> {
        let found = self.components.lock().get(sha256).cloned();
        found.ok_or_else(|| SharedError::Missing(sha256.to_owned()))
    }
}
