//! API keys: who is let in, without the keys.

use crate::secret::PlatformSecret;
use parking_lot::RwLock;
use portolan_ports::KeyRecord;
use std::collections::HashMap;
use std::fmt;

const CONTEXT: &str = "portolan 2026 api key digests";

/// A key's keyed hash: all that is kept of it.
pub(crate) type KeyDigest = [u8; 32];

/// Who is let in, by keyed hash of the key. A caller who does not know the secret cannot choose digests, so the time
/// a look-up takes tells nothing about the keys.
pub(crate) struct KeyRing {
    secret: KeyDigest,
    records: RwLock<HashMap<KeyDigest, KeyRecord>>,
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyRing({} keys)", self.records.read().len())
    }
}

impl KeyRing {
    pub(crate) fn new(
        secret: &PlatformSecret,
        records: impl IntoIterator<Item = (KeyDigest, KeyRecord)>,
    ) -> Self {
        Self {
            secret: secret.derive(CONTEXT),
            records: RwLock::new(records.into_iter().collect()),
        }
    }

    pub(crate) fn digest(&self, key: &str) -> KeyDigest {
        *blake3::keyed_hash(&self.secret, key.as_bytes()).as_bytes()
    }

    pub(crate) fn insert(&self, digest: KeyDigest, record: KeyRecord) {
        self.records.write().insert(digest, record);
    }

    /// Lets in exactly these.
    pub(crate) fn replace(&self, records: impl IntoIterator<Item = (KeyDigest, KeyRecord)>) {
        *self.records.write() = records.into_iter().collect();
    }

    pub(crate) fn record(&self, key: &str) -> Option<KeyRecord> {
        let digest = self.digest(key);
        self.records.read().get(&digest).cloned()
    }
}
