//! What a policy is asked.

use crate::column::Matrix;
pub use portolan_base::Dependency;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The four questions, in the order a request meets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QuestionKind {
    /// Which sites may see this data.
    Residency,
    /// What each route costs.
    Cost,
    /// Which route to take.
    Routing,
    /// Which cached KV dies when the world changes.
    Invalidation,
}

impl QuestionKind {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Residency, Self::Cost, Self::Routing, Self::Invalidation];

    /// The word used in URLs, folders, files, metrics and the WIT world.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Residency => "residency",
            Self::Cost => "cost",
            Self::Routing => "routing",
            Self::Invalidation => "invalidation",
        }
    }
}

impl fmt::Display for QuestionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text names none of the four questions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no policy question; use residency, cost, routing or invalidation")]
pub struct UnknownQuestion(pub String);

impl FromStr for QuestionKind {
    type Err = UnknownQuestion;
    fn from_str(text: &str) -> Result<Self, UnknownQuestion> {
        Self::ALL
            .into_iter()
            .find(|q| q.as_str() == text)
            .ok_or_else(|| UnknownQuestion(text.to_owned()))
    }
}

/// Why residency is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// To serve a request.
    Serve,
    /// To fetch KV from another holder.
    Fetch,
    /// To place a replica.
    Replicate,
    /// To compute KV ahead of demand.
    Prewarm,
    /// To move KV to a lower tier.
    Spill,
}

/// Whose data, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// Why residency is asked.
    pub purpose: Purpose,
    /// Index into the jurisdictions: where the data may be processed; 0: no restriction stated.
    pub data_jurisdiction: u32,
    /// Index into the user classes whose data it is.
    pub data_class: u32,
    /// Site that holds the data, when it is stored KV.
    pub from_site: Option<u32>,
}

/// A model's version was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelChange {
    /// Index into the model table.
    pub model: u32,
    /// The version before.
    pub old_version: u64,
    /// The version from now on.
    pub new_version: u64,
}

/// A site runs out of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// Index into the site table.
    pub site: u32,
    /// MiB in use.
    pub used_mib: u32,
    /// MiB allowed.
    pub limit_mib: u32,
}

/// What happened, for the invalidation question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A model's version was raised.
    ModelUpdated(ModelChange),
    /// Dependencies have new versions.
    DependenciesChanged(Vec<Dependency>),
    /// A site runs out of room.
    CapacityPressure(Pressure),
    /// A prefix (keyed hash) was revoked by its owner.
    PrefixRevoked(u64),
    /// The tenant is gone.
    TenantRemoved,
    /// The time in milliseconds, once a minute.
    Tick(u64),
}

impl Event {
    /// What the event adds to the rows of its question: each named dependency is three strings to take in and perhaps
    /// to give back, the work of some four rows.
    fn rows(&self) -> usize {
        match self {
            Self::DependenciesChanged(dependencies) => dependencies.len() * 4,
            _ => 0,
        }
    }
}

/// One question with its inputs.
#[derive(Clone, Copy, Debug)]
pub enum Question<'a> {
    /// One placement a site is expected, in the order of the site table, of which there are `sites`.
    Residency {
        /// Whose data, and why.
        subject: Subject,
        /// The request row; empty when stored KV is being asked about.
        request: &'a [u32],
        /// Rows of the site table.
        sites: usize,
    },
    /// One cost row a route is expected.
    Cost {
        /// The request row.
        request: &'a [u32],
        /// Candidate routes.
        routes: Matrix<'a>,
    },
    /// One score a route is expected, or a deferral, or a refusal.
    Routing {
        /// The request row.
        request: &'a [u32],
        /// Candidate routes.
        routes: Matrix<'a>,
        /// What they cost.
        costs: Matrix<'a>,
    },
    /// Any number of directives is expected.
    Invalidation {
        /// What happened.
        event: &'a Event,
        /// Groups of cached blocks of the asking tenant.
        groups: Matrix<'a>,
    },
}

impl Question<'_> {
    /// Which of the four it is.
    pub const fn kind(&self) -> QuestionKind {
        match self {
            Self::Residency { .. } => QuestionKind::Residency,
            Self::Cost { .. } => QuestionKind::Cost,
            Self::Routing { .. } => QuestionKind::Routing,
            Self::Invalidation { .. } => QuestionKind::Invalidation,
        }
    }

    /// Rows the policy has to look at: what a fuel budget scales with.
    pub fn rows(&self) -> usize {
        match self {
            Self::Residency { sites, .. } => *sites,
            Self::Cost { routes, .. } | Self::Routing { routes, .. } => routes.len(),
            Self::Invalidation { event, groups } => groups.len() + event.rows(),
        }
    }
}
