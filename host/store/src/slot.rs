//! Keys of records. Tenant names hold neither `/` nor a leading `_`, so no two things share a key.

use portolan_base::TenantName;
use portolan_policy::QuestionKind;
use portolan_ports::{BindingRecord, RolloutRecord, Scope, VersionRecord};
use serde::{Deserialize, Serialize};

/// The word for the platform where a tenant's name would stand.
pub(crate) const PLATFORM: &str = "_platform";

pub(crate) fn scope_word(scope: &Scope) -> &str {
    match scope {
        Scope::Platform => PLATFORM,
        Scope::Tenant(name) => name.as_str(),
    }
}

/// `<scope>/<question>`: what one binding answers.
pub(crate) fn slot_key(scope: &Scope, question: QuestionKind) -> String {
    format!("{}/{question}", scope_word(scope))
}

/// Prefix of all versions and all earlier bindings of one slot.
pub(crate) fn slot_prefix(scope: &Scope, question: QuestionKind) -> String {
    format!("{}/{question}/", scope_word(scope))
}

/// Key of a version.
pub(crate) fn version_key(scope: &Scope, question: QuestionKind, sha256: &str) -> String {
    slot_prefix(scope, question) + sha256
}

/// Key of a binding that was made. Twenty digits hold any generation, so the order of keys is the order of time.
pub(crate) fn history_key(binding: &BindingRecord) -> String {
    format!(
        "{}{:020}",
        slot_prefix(&binding.scope, binding.question),
        binding.generation
    )
}

/// Key of a tenant.
pub(crate) fn tenant_key(name: &TenantName) -> &str {
    name.as_str()
}

/// A version, and the position of its audit line: the order in which versions came.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StoredVersion {
    pub(crate) sequence: u64,
    pub(crate) record: VersionRecord,
}

/// The state of one slot. It stays when the binding is removed, so that generations never return.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct StoredSlot {
    pub(crate) generation: u64,
    pub(crate) binding: Option<BindingRecord>,
    /// What holds beside the binding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rollout: Option<RolloutRecord>,
}

/// Whether `text` is a SHA-256 as this store writes it. Anything else names no file.
pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_different_scopes_never_share_a_key() {
        let tenant = |name: &str| Scope::Tenant(TenantName::new(name).unwrap());
        let scopes = [
            Scope::Platform,
            tenant("platform"),
            tenant("a"),
            tenant("a.b"),
            tenant("a-routing"),
        ];
        let mut prefixes: Vec<String> = scopes
            .iter()
            .flat_map(|s| QuestionKind::ALL.map(|q| slot_prefix(s, q)))
            .collect();
        prefixes.sort();
        for pair in prefixes.windows(2) {
            assert!(
                !pair[1].starts_with(&pair[0]),
                "{} would hold records of {}",
                pair[0],
                pair[1]
            );
        }
    }

    #[test]
    fn only_a_sha256_names_a_file() {
        assert!(is_sha256(&"0a".repeat(32)));
        for bad in [
            String::new(),
            "../secret".into(),
            "0A".repeat(32),
            "0a".repeat(33),
            format!("{}/", "a".repeat(63)),
        ] {
            assert!(!is_sha256(&bad), "{bad}");
        }
    }
}
