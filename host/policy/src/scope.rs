//! Whose policy it is.

use portolan_base::TenantName;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Whose policy it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// The operator's: applies to every tenant.
    Platform,
    /// One tenant's own.
    Tenant(TenantName),
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Platform => f.write_str("the platform"),
            Self::Tenant(name) => write!(f, "tenant {name}"),
        }
    }
}
