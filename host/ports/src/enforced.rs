//! What the host took out of force by itself, kept for those whose policy it was.

use crate::BindingRecord;
use portolan_base::Moment;
use portolan_decide::{Percent, Spent};
use serde::{Deserialize, Serialize};

/// How many of a slot's are kept: a version that is put on trial again and again shows as a row, and a slot's record
/// grows by 6 kB at most.
pub const ENFORCED_KEPT: usize = 10;

/// What was done about a spent budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enforced {
    /// The version was on trial and is not any more.
    Withdrawn,
    /// The version was bound, and the one before it came back.
    RolledBack,
}

impl Enforced {
    /// The word of the metrics, and of a record.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Withdrawn => "withdrawn",
            Self::RolledBack => "rolled-back",
        }
    }
}

/// A version that the host took out of force because its budget was spent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnforcedRecord {
    /// What was done.
    pub done: Enforced,
    /// The policy's name.
    pub name: String,
    /// SHA-256 of the component, hexadecimal.
    pub sha256: String,
    /// Which configuration it had, see [`crate::config_digest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_digest: Option<String>,
    /// The share of the sessions that it answered, where it was a canary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<Percent>,
    /// The generation that it was bound as, where it was bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// What spent its budget, in numbers.
    pub spent: Spent,
    /// The latest fault that was counted, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_fault: Option<String>,
    /// Who answered from then on; `None`: the platform's policy, or the built-in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead: Option<Successor>,
    /// When.
    pub at: Moment,
}

/// The version that answers in place of one that was taken out of force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Successor {
    /// The policy's name.
    pub name: String,
    /// SHA-256 of the component, hexadecimal.
    pub sha256: String,
}

impl From<&BindingRecord> for Successor {
    fn from(binding: &BindingRecord) -> Self {
        Self {
            name: binding.name.clone(),
            sha256: binding.sha256.clone(),
        }
    }
}
