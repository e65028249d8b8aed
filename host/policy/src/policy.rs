//! A policy as the host holds it: built in, or a WebAssembly component behind the same trait.

use crate::answer::Answer;
use crate::question::{Question, QuestionKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where a policy's code lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicySource {
    /// Compiled into the host.
    BuiltIn,
    /// A component bound by the platform's operator.
    Platform,
    /// A component bound by the tenant.
    Tenant,
}

/// As what a component was bound. Nothing of it for what is built in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundAs {
    /// The generation of its binding; `None` for a version on trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Which configuration it has, in digits that stand for its text; `None` for the empty text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_digest: Option<String>,
}

/// Who answered: enough to find the exact code again, and what it was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyDescriptor {
    /// The question it answers.
    pub question: QuestionKind,
    /// Its name.
    pub name: String,
    /// SHA-256 of the component in hexadecimal, or `built-in`.
    pub version: String,
    /// Who bound it.
    pub source: PolicySource,
    /// As what.
    #[serde(default)]
    pub bound: BoundAs,
}

/// One call: the question and what a component may look up while it answers.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What is asked.
    pub question: Question<'a>,
    /// The request's labels.
    pub labels: &'a BTreeMap<String, String>,
    /// The request's id, for the policy's log lines.
    pub request_id: &'a str,
}

/// Why a policy gave no usable answer. Each has a fallback; none reaches the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyFault {
    /// The component trapped.
    #[error("the policy trapped: {0}")]
    Trap(String),
    /// It used up its fuel.
    #[error("the policy used up its budget of {0} fuel")]
    OutOfFuel(u64),
    /// The wall clock ran out before the fuel did.
    #[error("the policy was still running after {0} ms")]
    TimedOut(u64),
    /// It asked for more memory than it may have.
    #[error("the policy wanted more than its {0} bytes of memory")]
    OutOfMemory(u64),
    /// It answered, but not what was asked.
    #[error("the policy's answer cannot be used: {0}")]
    BadAnswer(String),
    /// No instance was free and none may be made.
    #[error("the policy is saturated")]
    Saturated,
    /// It could not be started.
    #[error("the policy could not be started: {0}")]
    Unavailable(String),
}

impl PolicyFault {
    /// A word for metric labels and path records.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Trap(_) => "trap",
            Self::OutOfFuel(_) => "out-of-fuel",
            Self::TimedOut(_) => "timed-out",
            Self::OutOfMemory(_) => "out-of-memory",
            Self::BadAnswer(_) => "bad-answer",
            Self::Saturated => "saturated",
            Self::Unavailable(_) => "unavailable",
        }
    }
}

/// What came of a call.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The answer, or why there is none.
    pub result: Result<Answer, PolicyFault>,
    /// Fuel used, where the policy is metered.
    pub fuel: Option<u64>,
}

/// A policy that can be asked. Implementations are pure: same call, same answer.
pub trait Policy: Send + Sync {
    /// Who answers.
    fn descriptor(&self) -> &PolicyDescriptor;
    /// Asks. Blocks for as long as the policy runs, which the implementation bounds.
    fn ask(&self, call: &Call<'_>) -> Answered;
}
