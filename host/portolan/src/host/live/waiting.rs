//! The change that waits for a second operator, in the data folder: `config/waiting.json`. It waits over a restart.

use super::Pinned;
use super::versions::{Versions, write_whole};
use crate::config::Config;
use portolan_base::{Moment, OperatorName};
use portolan_ports::ConfigRefusal;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// A change that waits for a second operator.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Waiting {
    pub(super) text: String,
    /// The version that was in force when it was proposed.
    pub(super) over: u64,
    /// Who stands behind it; one whom no key names does not count.
    pub(super) behind: Vec<(String, Option<OperatorName>)>,
    pub(super) changes: Vec<String>,
    pub(super) reason: String,
    pub(super) expires: Moment,
}

/// Where it lies.
pub(super) struct WaitingFile(PathBuf);

impl WaitingFile {
    pub(super) fn in_folder(folder: &Path) -> Self {
        Self(folder.join("waiting.json"))
    }

    /// What waits. What cannot be read waits no more, which the log says.
    pub(super) fn read(&self) -> Option<Waiting> {
        let bytes = match std::fs::read(&self.0) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::error!(path = %self.0.display(), %error, "the waiting change of the configuration cannot be read");
                return None;
            }
        };
        serde_json::from_slice(&bytes)
            .inspect_err(|error| {
                tracing::error!(path = %self.0.display(), %error, "the waiting change of the configuration is damaged; propose it again");
            })
            .ok()
    }

    /// Has it say what waits, on disk when this returns.
    pub(super) fn write(&self, waiting: Option<&Waiting>) -> Result<(), ConfigRefusal> {
        let broken = |error: io::Error| ConfigRefusal::Broken(format!("{}: {error}", self.0.display()));
        let Some(waiting) = waiting else {
            return match std::fs::remove_file(&self.0) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(broken(error)),
                _ => Ok(()),
            };
        };
        let bytes = serde_json::to_vec_pretty(waiting).map_err(|error| broken(error.into()))?;
        if let Some(folder) = self.0.parent() {
            std::fs::create_dir_all(folder).map_err(broken)?;
        }
        write_whole(&self.0, &bytes, 0o600).map_err(broken)
    }
}

/// What a host starts with whose file says this: where the file holds what waits for a second operator, the version that it
/// would follow.
pub(in crate::host) fn in_force(config: Config) -> Config {
    let Some(source) = &config.source else {
        return config;
    };
    let folder = config.data_dir.join("config");
    let waits = WaitingFile::in_folder(&folder).read();
    let Some(waiting) = waits.filter(|waiting| waiting.text == source.text) else {
        return config;
    };
    let last = match Versions::new(folder).last() {
        Ok(Some(last)) if last.version == waiting.over => last,
        _ => return config,
    };
    match Config::of_file(&source.path, last.text) {
        Ok(before) => {
            tracing::warn!(
                version = last.version,
                "the file holds a change that waits for a second operator; the host starts with what was in force"
            );
            Pinned::of(&config).over(before)
        }
        Err(error) => {
            tracing::error!(%error, version = last.version, "the version in force cannot be read; the host starts with the file");
            config
        }
    }
}
