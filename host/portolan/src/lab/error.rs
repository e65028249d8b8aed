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
    #[error("no {what} is called {name:?}; there are {}", known.join(", "))]
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
}

/// Why path records cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The document is no JSON.
    #[error(transparent)]
    Document(serde_json::Error),
    /// A line is no path record.
    #[error("line {line}: {source}")]
    Line {
        /// Which line, from 1.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// An entry is no path record.
    #[error("record {number} ({id}): {source}")]
    Entry {
        /// Which entry, from 1.
        number: usize,
        /// Its request.
        id: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// `data` is no list.
    #[error("data: a list of path records is expected")]
    NoList,
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
