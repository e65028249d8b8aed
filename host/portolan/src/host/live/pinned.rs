//! What the command line said instead of the file.

use crate::config::{Config, FleetSecret};
use portolan_base::SiteName;
use std::path::PathBuf;

/// What the command line said instead of the file: a change of the file does not change it.
pub(super) struct Pinned {
    data_dir: Option<PathBuf>,
    run: Option<Vec<SiteName>>,
    secret: Option<FleetSecret>,
}

impl Pinned {
    pub(super) fn of(config: &Config) -> Self {
        let source = config.source.as_ref();
        let written = source.and_then(|source| Config::of_file(&source.path, source.text.clone()).ok());
        let data_dir = written
            .as_ref()
            .filter(|written| written.data_dir != config.data_dir);
        let run = written.as_ref().filter(|written| written.run != config.run);
        Self {
            data_dir: data_dir.map(|_| config.data_dir.clone()),
            run: run.map(|_| config.run.clone()),
            secret: config.fleet.secret,
        }
    }

    /// The file as this process takes it.
    pub(super) fn over(&self, mut config: Config) -> Config {
        if let Some(folder) = &self.data_dir {
            config.data_dir.clone_from(folder);
        }
        if let Some(run) = &self.run {
            config.run.clone_from(run);
        }
        config.fleet.secret = self.secret;
        config
    }
}
