//! Tells every process of a fleet which policies answer, and keeps it for those that are away.

use crate::{BindingRecord, RolloutRecord, Scope, VersionRecord};
use bytes::Bytes;
use portolan_policy::QuestionKind;
use serde::{Deserialize, Serialize};

/// What one question of one scope holds, at every process. Newer states replace older ones, whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedSlot {
    /// Whose.
    pub scope: Scope,
    /// Which question.
    pub question: QuestionKind,
    /// What answers; none: the fallback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<BindingRecord>,
    /// What holds beside it.
    pub rollout: RolloutRecord,
    /// The versions that the two name. Their components are told apart from this, by digest.
    pub versions: Vec<VersionRecord>,
    /// Who changed it last, as audit logs name them.
    pub actor: String,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// Why nothing was shared, or could be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SharedError {
    /// Nobody acknowledged it. It may have been taken all the same.
    #[error("the fleet did not acknowledge the change: {0}; look what is bound, and order it again")]
    NotAcknowledged(String),
    /// Another process changed it first.
    #[error("another process of the fleet changed it a moment ago; look what is bound, and order it again")]
    ChangedElsewhere,
    /// A component cannot be had at this moment.
    #[error("a component of another process is out of reach: {0}")]
    OutOfReach(String),
    /// Whoever keeps components answers, and has none with this digest.
    #[error("the fleet keeps no component {0}; upload it again at the process that bound it")]
    Missing(String),
}

/// The fleet's policies. Calls block on the network: use them off the request path.
pub trait SharedPolicies: Send + Sync {
    /// Tells every process, those that are away once they are back. Returns when it cannot be lost any more.
    ///
    /// # Errors
    /// [`SharedError::NotAcknowledged`] and [`SharedError::ChangedElsewhere`]; then nothing is to be changed here either.
    fn share(&self, slot: &SharedSlot, components: &[(String, Bytes)]) -> Result<(), SharedError>;

    /// The component with a digest, SHA-256 in hexadecimal. Whoever asks checks it.
    ///
    /// # Errors
    /// [`SharedError::OutOfReach`] and [`SharedError::Missing`].
    fn component(&self, sha256: &str) -> Result<Bytes, SharedError>;
}
