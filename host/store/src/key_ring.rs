//! API keys: who is let in, without the keys.

use crate::secret::PlatformSecret;
use parking_lot::RwLock;
use portolan_ports::{KeyRecord, Principal};
use std::collections::HashMap;
use std::fmt;

const CONTEXT: &str = "portolan 2026 api key digests";

/// A key's keyed hash: all that is kept of it.
pub(crate) type KeyDigest = [u8; 32];

/// Who is let in, by keyed hash of the key. A caller who does not know the secret cannot choose digests, so the time
/// a look-up takes tells nothing about the keys.
pub(crate) struct KeyRing {
    secret: KeyDigest,
    principals: RwLock<HashMap<KeyDigest, Principal>>,
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyRing({} keys)", self.principals.read().len())
    }
}

impl KeyRing {
    pub(crate) fn new(
        secret: &PlatformSecret,
        records: impl IntoIterator<Item = (KeyDigest, KeyRecord)>,
    ) -> Self {
        let principals = records
            .into_iter()
            .map(|(digest, record)| (digest, record.principal))
            .collect();
        Self {
            secret: secret.derive(CONTEXT),
            principals: RwLock::new(principals),
        }
    }

    pub(crate) fn digest(&self, key: &str) -> KeyDigest {
        *blake3::keyed_hash(&self.secret, key.as_bytes()).as_bytes()
    }

    pub(crate) fn insert(&self, digest: KeyDigest, principal: Principal) {
        self.principals.write().insert(digest, principal);
    }

    pub(crate) fn remove(&self, digest: &KeyDigest) {
        self.principals.write().remove(digest);
    }

    pub(crate) fn principal(&self, key: &str) -> Option<Principal> {
        let digest = self.digest(key);
        self.principals.read().get(&digest).cloned()
    }
}
