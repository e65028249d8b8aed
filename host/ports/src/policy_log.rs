//! Log lines of policies, for those whose policies they are.

use portolan_base::Moment;
use portolan_policy::QuestionKind;
use serde::{Deserialize, Serialize};

/// How loud a policy calls its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// For whoever looks for a fault.
    Debug,
    /// Worth knowing.
    Info,
    /// Something is odd.
    Warn,
    /// Something went wrong.
    Error,
}

impl LogLevel {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// What a policy was doing when it wrote a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogOccasion {
    /// It was loaded to be asked: it was configured, or answered.
    Serving,
    /// It was checked: configured once more, and asked made-up questions.
    Check,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyLogLine {
    /// When.
    pub at: Moment,
    /// How loud.
    pub level: LogLevel,
    /// The question that the policy answers.
    pub question: QuestionKind,
    /// The policy's name.
    pub policy: String,
    /// SHA-256 of the component, hexadecimal.
    pub version: String,
    /// The request that it was asked about, `probe` in a check; empty while it was configured.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    /// What it was doing.
    pub during: LogOccasion,
    /// Lines of the version that were dropped before this one, since the last that was written.
    #[serde(default)]
    pub dropped: u64,
    /// The line, of at most 256 bytes and without control characters.
    pub text: String,
}
