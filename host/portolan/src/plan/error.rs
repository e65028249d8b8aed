//! Why nothing can be planned.

use crate::chart::ChartError;
use std::path::PathBuf;

/// Why nothing can be planned.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
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
        /// The key, with its place: `remote.prefill.fixed_ms`.
        key: String,
        /// What is wrong, and what would be accepted.
        problem: String,
    },
    /// A trace cannot be read.
    #[error(transparent)]
    Trace(#[from] crate::lab::LabError),
    /// A chart cannot be drawn.
    #[error(transparent)]
    Chart(#[from] ChartError),
    /// The fleet is too small to be divided.
    #[error("local.instances: at least 2 are needed, one to prefill and one to decode")]
    TooSmall,
}

impl PlanError {
    pub(crate) fn value(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Value {
            key: key.into(),
            problem: problem.into(),
        }
    }

    /// The same trouble, with the file it was found in before it.
    #[must_use]
    pub(crate) fn of_file(self, path: &std::path::Path) -> Self {
        match self {
            Self::Value { .. } | Self::TooSmall => Self::Parse {
                path: path.to_owned(),
                detail: self.to_string(),
            },
            other => other,
        }
    }
}
