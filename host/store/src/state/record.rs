//! Policy state on disk: the names of trees, and one value's sixteen bytes.

use crate::files;
use crate::slot::{PLATFORM, scope_word};
use portolan_base::{Moment, TenantName};
use portolan_ports::{Scope, StateSpace, StateValue, StoreError};
use std::path::Path;

/// `<scope>/<policy>`. Tenant names hold no `/`, so no two policies share a tree.
pub(super) fn tree_name(space: &StateSpace) -> String {
    format!("{}/{}", scope_word(&space.scope), space.policy)
}

/// Whose tree it is; `None` for sled's own.
pub(super) fn space_of(tree: &[u8]) -> Option<StateSpace> {
    let (scope, policy) = std::str::from_utf8(tree).ok()?.split_once('/')?;
    let scope = match scope {
        PLATFORM => Scope::Platform,
        tenant => Scope::Tenant(TenantName::new(tenant).ok()?),
    };
    Some(StateSpace {
        scope,
        policy: policy.to_owned(),
    })
}

/// Number and end in microseconds, little endian; no end is `u64::MAX`.
pub(super) fn encode(value: StateValue) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&value.number.to_le_bytes());
    let end = value.expires.map_or(u64::MAX, |at| at.0);
    bytes[8..].copy_from_slice(&end.to_le_bytes());
    bytes
}

pub(super) fn decode(folder: &Path, key: &[u8], value: &[u8]) -> Result<(String, StateValue), StoreError> {
    let parts = (std::str::from_utf8(key), value.as_chunks::<8>());
    let (Ok(key), ([number, end], [])) = parts else {
        return Err(StoreError::Damaged {
            place: format!("{}, key {}", folder.display(), key.escape_ascii()),
            detail: "it is no value of a policy; remove the folder to begin with empty state".into(),
        });
    };
    let end = u64::from_le_bytes(*end);
    let value = StateValue {
        number: u64::from_le_bytes(*number),
        expires: (end != u64::MAX).then_some(Moment(end)),
    };
    Ok((key.to_owned(), value))
}

pub(super) fn failed(folder: &Path, error: &sled::Error) -> StoreError {
    match error {
        sled::Error::Io(e) => files::io(folder, e),
        e => StoreError::Damaged {
            place: folder.display().to_string(),
            detail: e.to_string(),
        },
    }
}
