//! Why recovery cannot be prepared, or does not work.

use std::path::PathBuf;

/// What was wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum DrError {
    /// Something that the service needs is not there.
    #[error("{what} is missing: {detail}")]
    Lacks {
        /// Which part of which model or file.
        what: String,
        /// Where it was looked for, and what would do.
        detail: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is no room for the backup.
    #[error(
        "{place}: the disk is full ({bytes} bytes of {key} found no room); make room and run the backup again: it goes on where it was"
    )]
    Full {
        /// Which place.
        place: String,
        /// What was being written.
        key: String,
        /// Its size.
        bytes: usize,
    },
    /// The place of backups cannot be used.
    #[error("{place}: {detail}")]
    Target {
        /// Which.
        place: String,
        /// Why, and what to do.
        detail: String,
    },
    /// What lies there is not what was put there.
    #[error("{what} is damaged: {detail}")]
    Damaged {
        /// Which part of the backup.
        what: String,
        /// How.
        detail: String,
    },
    /// The store cannot be copied or made.
    #[error(transparent)]
    Store(#[from] portolan_ports::StoreError),
    /// A model does not load or run.
    #[error("model {model}: {detail}")]
    Model {
        /// Which.
        model: String,
        /// Why.
        detail: String,
    },
    /// The configuration in the backup cannot be used.
    #[error("the configuration in the backup: {0}")]
    Config(#[from] crate::config::ConfigError),
}

impl DrError {
    pub(super) fn lacks(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Lacks {
            what: what.into(),
            detail: detail.into(),
        }
    }

    pub(super) fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}
