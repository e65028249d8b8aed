//! What an operator does to a running host, beside policies: for the audit log.

use portolan_base::Moment;
use serde::{Deserialize, Serialize};

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// An instance is given no more work.
    Drain,
    /// An instance is given work again.
    Resume,
    /// Kept KV was forgotten at one site.
    Evict,
    /// The configuration changed.
    Configure,
    /// Kept KV was invalidated at every site.
    Invalidate,
}

impl OperationKind {
    /// The action's name in the audit log.
    pub fn action(self) -> &'static str {
        match self {
            Self::Drain => "instance.drain",
            Self::Resume => "instance.resume",
            Self::Evict => "kv.evict",
            Self::Configure => "config.change",
            Self::Invalidate => "kv.invalidate",
        }
    }
}

/// Something an operator did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// When.
    pub at: Moment,
    /// Who.
    pub actor: String,
    /// What.
    pub kind: OperationKind,
    /// To what.
    pub subject: String,
    /// Why.
    pub reason: String,
}
