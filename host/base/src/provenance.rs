//! Whose cached KV is, where it may lie, and what it hangs on.

use crate::{ModelName, TenantName};
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use serde::{Deserialize, Serialize};

/// Whose blocks: one tenant's, or everyone's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Nobody else finds them.
    Tenant(TenantName),
    /// Of a prefix that the platform marked as public: every tenant finds them.
    Public,
}

impl Scope {
    /// How the public scope is written where tenants' names stand; no tenant can be named so.
    pub const PUBLIC: &'static str = "_public";
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tenant(name) => f.write_str(name.as_str()),
            Self::Public => f.write_str(Self::PUBLIC),
        }
    }
}

/// Something that cached KV depends on, at a version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Dependency {
    /// Kind, such as `document` or `configuration`.
    pub kind: String,
    /// Name within the kind.
    pub name: String,
    /// Version, compared for equality only.
    pub version: String,
}

impl Dependency {
    /// Longest kind, name or version, in bytes.
    pub const TEXT_MAX_BYTES: usize = 512;

    /// Whether kind, name and version have between 1 and [`TEXT_MAX_BYTES`](Self::TEXT_MAX_BYTES) bytes each, none of them a
    /// control character: an order about it grows little when it is written, and stands on one line of a log.
    pub fn is_well_formed(&self) -> bool {
        [&self.kind, &self.name, &self.version]
            .iter()
            .all(|text| (1..=Self::TEXT_MAX_BYTES).contains(&text.len()) && !text.contains(char::is_control))
    }

    /// Whether this is the same thing at another version.
    pub fn contradicts(&self, other: &Self) -> bool {
        self.kind == other.kind && self.name == other.name && self.version != other.version
    }

    /// Whether something that depends on `some` must not be mixed with what depends on `others`: both name one thing, at
    /// different versions. What only one of them names is no matter.
    pub fn contradict(some: &[Self], others: &[Self]) -> bool {
        some.iter()
            .any(|one| others.iter().any(|other| one.contradicts(other)))
    }
}

/// What a cache has to know of KV beside its tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Whose it is.
    pub scope: Scope,
    /// The model that computed it.
    pub model: ModelName,
    /// That model's version.
    pub model_version: u64,
    /// Where the data may be processed; empty when no restriction was stated.
    pub jurisdiction: String,
    /// What the prompt was made of.
    pub dependencies: Arc<[Dependency]>,
}

impl Provenance {
    /// Of the blocks of a public prefix: no tenant's data, so nothing a tenant names binds them.
    pub fn public(model: ModelName, model_version: u64) -> Self {
        Self {
            scope: Scope::Public,
            model,
            model_version,
            jurisdiction: String::new(),
            dependencies: Arc::default(),
        }
    }

    /// Of a tenant's blocks that depend on nothing and may lie anywhere.
    pub fn of(tenant: TenantName, model: ModelName, model_version: u64) -> Self {
        Self {
            scope: Scope::Tenant(tenant),
            ..Self::public(model, model_version)
        }
    }
}
