//! Patterns of requests: what repeats in them, named so that sites can compare it and not read it.

use serde::{Deserialize, Serialize};

/// What requests of a pattern have in common, the most specific first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PatternKind {
    /// The conversation: `portolan.session`.
    Conversation,
    /// The end user: OpenAI's `user`, `safety_identifier` or `prompt_cache_key`.
    User,
    /// The door and the model.
    Path,
}

impl PatternKind {
    /// All of them, the most specific first.
    pub const ALL: [Self; 3] = [Self::Conversation, Self::User, Self::Path];

    const fn word(self) -> &'static str {
        match self {
            Self::Conversation => "conversation",
            Self::User => "user",
            Self::Path => "path",
        }
    }
}

/// A pattern under one site's key: 64 bits of a keyed hash of tenant, kind and name. Another site's differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PatternId(pub u64);

/// The key that patterns told to one site are named with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PatternKey([u8; 32]);

impl PatternKey {
    /// Derives the key of what `receiver` is told from a secret that only the fleet's sites know.
    pub fn derive(fleet_secret: &[u8; 32], receiver: &str) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(fleet_secret);
        hasher.update(b"portolan request pattern\0");
        hasher.update(receiver.as_bytes());
        Self(*hasher.finalize().as_bytes())
    }

    /// A tenant's pattern of this kind and name.
    pub fn id(&self, tenant: &str, kind: PatternKind, name: &str) -> PatternId {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in [tenant, kind.word(), name] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        PatternId(u64::from_le_bytes(first))
    }
}

impl core::fmt::Debug for PatternKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("PatternKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_tenants_of_one_kind_for_one_receiver() {
        let key = |receiver| PatternKey::derive(&[7; 32], receiver);
        let paris = key("paris").id("acme", PatternKind::User, "u1");
        assert_eq!(paris, key("paris").id("acme", PatternKind::User, "u1"));
        for other in [
            key("virginia").id("acme", PatternKind::User, "u1"),
            key("paris").id("globex", PatternKind::User, "u1"),
            key("paris").id("acme", PatternKind::Conversation, "u1"),
            key("paris").id("acme", PatternKind::User, "u2"),
            key("paris").id("acmeu", PatternKind::User, "1"),
        ] {
            assert_ne!(paris, other);
        }
    }
}
