//! Within which bounds KV on disk may be used.

use portolan_base::kv::KvLayout;
use std::fmt;

/// Names everything that has to be equal for KV to be usable.
///
/// A file outlives the process that wrote it, and with it a forgotten version number, a changed kernel or another
/// processor. So a realm is named by more than what the configuration says: by the KV that the model computes for a fixed
/// prompt, in the same kind of piece in which prefill runs. Where that differs in one bit, nothing is shared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Realm([u8; 32]);

impl Realm {
    /// The realm of KV of this shape, of a model that computes `probe` for the fixed prompt.
    pub fn of<'p>(layout: &KvLayout, probe: impl IntoIterator<Item = &'p [u8]>) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("portolan disk realm 1");
        let shape = format!("{layout:?}");
        hasher
            .update(&(shape.len() as u64).to_le_bytes())
            .update(shape.as_bytes());
        for part in probe {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        Self(*hasher.finalize().as_bytes())
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Realm {
    /// Sixteen hexadecimal digits, the name of the realm's folder.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0[..8]))
    }
}

impl fmt::Debug for Realm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Realm({self})")
    }
}
