//! What can go wrong before a policy answers.

use portolan_ports::PolicyReport;
use std::path::PathBuf;

/// Why something could not be tried.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is no table of cases.
    #[error(
        "{}: there is no such file; write the cases there, or name another file with --cases (a case is \
         `- name: ...` with `request`, `routes` and `expect`)",
        path.display()
    )]
    NoCases {
        /// Where it is looked for.
        path: PathBuf,
    },
    /// A file is not what is expected; the text names line, column and key.
    #[error("{}: {detail}", path.display())]
    Parse {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// A key holds something that cannot be used.
    #[error("{key}: {problem}")]
    Value {
        /// The key, with its place: `routes[2].prefill_site`.
        key: String,
        /// What is wrong, and what would be accepted.
        problem: String,
    },
    /// The component cannot be used.
    #[error("{} cannot be used", path.display())]
    Refused {
        /// Which file.
        path: PathBuf,
        /// What the check found.
        report: Box<PolicyReport>,
    },
    /// A trace cannot be played.
    #[error("{}: {source}{}", path.display(), cause(source))]
    Trace {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: portolan_sim::TraceError,
    },
    /// The fleet cannot be simulated.
    #[error("the fleet cannot be simulated: {0}")]
    Fleet(#[from] portolan_sim::ScenarioError),
    /// The runtime of components does not start.
    #[error(transparent)]
    Engine(#[from] portolan_plugin::EngineError),
    /// A policy that is being measured gave no answer.
    #[error("{name} gave no answer, so there is nothing to measure: {fault}")]
    NoAnswer {
        /// The policy.
        name: String,
        /// What happened.
        fault: String,
    },
}

/// A name that stands for no index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The table does not have it.
    #[error("no {what} is called {name:?}; {}", listed(what, known))]
    Unknown {
        /// What is named: a site, a model.
        what: &'static str,
        /// The name.
        name: String,
        /// Every name that the table has.
        known: Vec<String>,
    },
    /// The column holds a number, which has no name.
    #[error("{0:?} is no number; a whole number, or `never`, is expected")]
    NoNumber(String),
    /// A number in quotation marks.
    #[error("{0:?} is a text; write {0} without quotation marks")]
    Quoted(String),
    /// The column holds a number that only the host knows.
    #[error(
        "{0:?} is no number: policies see the host's own number of a tenant; the tenant that a policy is bound to goes \
         into `names: {{tenant: {0}}}`"
    )]
    Tenant(String),
}

/// What to look at when JSON is fine and a record is not.
pub(crate) const RELEASE: &str = "is it a path record, of this release?";

fn listed(what: &str, known: &[String]) -> String {
    if known.is_empty() {
        return format!("no {what} is named at all");
    }
    format!("there are {}", known.join(", "))
}

/// Why path records cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file cannot be read on.
    #[error(transparent)]
    Read(std::io::Error),
    /// The document is no JSON.
    #[error(transparent)]
    Document(serde_json::Error),
    /// A line is no path record.
    #[error("line {line}: {source}{}", hint(source))]
    Line {
        /// Which line, from 1.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A line is longer than any record.
    #[error("line {line}: longer than 8388608 bytes; write one record a line")]
    TooLong {
        /// Which line, from 1.
        line: usize,
    },
    /// An entry is no path record.
    #[error("record {number} ({id}): {source}{}", hint(source))]
    Entry {
        /// Which entry, from 1.
        number: usize,
        /// Its request.
        id: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The file is packed.
    #[error("the file is compressed; unpack it first, or pipe it in and name it `-`")]
    Compressed,
}

fn cause(error: &portolan_sim::TraceError) -> String {
    std::error::Error::source(error).map_or_else(String::new, |source| format!(": {source}"))
}

/// JSON that is no path record may be one of another release.
fn hint(source: &serde_json::Error) -> String {
    if source.is_data() {
        format!("; {RELEASE} A request trace is given with --trace")
    } else {
        String::new()
    }
}

impl LabError {
    pub(crate) fn value(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Value {
            key: key.into(),
            problem: problem.into(),
        }
    }

    /// The same trouble, with the place it was found at before its key.
    #[must_use]
    pub(crate) fn within(self, place: &str) -> Self {
        match self {
            Self::Value { key, problem } => Self::Value {
                key: format!("{place}.{key}"),
                problem,
            },
            other => other,
        }
    }
}
