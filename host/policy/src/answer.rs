//! What a policy may reply.

use crate::question::Dependency;
use serde::{Deserialize, Serialize};

/// What a site may do with the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Neither compute on it nor hold it.
    Denied,
    /// Compute, but drop the KV at the end.
    Transient,
    /// Keep the KV too.
    Resident,
}

impl Placement {
    /// The word used in records and in the contract.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Transient => "transient",
            Self::Resident => "resident",
        }
    }
}

/// The router's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RoutingDecision {
    /// One score a route: the smallest is taken first, the rest in order as fallbacks; [`crate::NEVER`]: never.
    Scores(Vec<u32>),
    /// Hold the request this many milliseconds, then ask again.
    Defer(u32),
    /// Refuse it, with a reason for the client.
    Refuse(String),
}

/// What dies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Directive {
    /// Every block of the model below this version.
    BelowVersion {
        /// Index into the model table.
        model: u32,
        /// The lowest version that stays.
        version: u64,
    },
    /// Every block that recorded this dependency at another version.
    DependsOn(Dependency),
    /// The group of this number.
    DropGroup(u32),
    /// Blocks not used for this many milliseconds.
    IdleLongerThan(u64),
    /// Free this many MiB, least recently used first.
    FreeMib(u32),
}

/// The answer to a [`crate::Question`] of the same kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// One placement a site.
    Residency(Vec<Placement>),
    /// A cost matrix with the stride of [`crate::CostColumn`], row-major.
    Cost(Vec<u32>),
    /// The router's decision.
    Routing(RoutingDecision),
    /// What dies.
    Invalidation(Vec<Directive>),
}
