//! What an engine instance is for.

use serde::{Deserialize, Serialize};

/// What an instance is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Computes KV only.
    Prefill,
    /// Generates tokens from KV only.
    Decode,
    /// Does both.
    Both,
}

impl Role {
    /// Whether prefill may run here.
    pub const fn prefills(self) -> bool {
        matches!(self, Self::Prefill | Self::Both)
    }

    /// Whether decode may run here.
    pub const fn decodes(self) -> bool {
        matches!(self, Self::Decode | Self::Both)
    }
}
