//! How far a site has followed the control stream, and the versions of its models, over restarts.
//!
//! The file may lag behind: what is followed again is applied again, which does no harm. A file that is missing or cannot
//! be read makes the site forget everything it cached, never trust it.

use super::epochs::Epochs;
use portolan_base::{ModelName, Sequence};
use portolan_ports::StreamId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// What is written down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The stream that was followed.
    pub(super) stream: Option<StreamId>,
    /// Everything up to here is applied.
    pub(super) sequence: Sequence,
    /// Of each model the position of the latest order about it.
    versions: BTreeMap<ModelName, Sequence>,
    /// Orders about less than a model.
    #[serde(default)]
    pub(super) epochs: Epochs,
}

impl Record {
    pub(super) fn read(file: &Path) -> Option<Self> {
        let text = match std::fs::read(file) {
            Ok(text) => text,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(file = %file.display(), %error, "what was cached is forgotten");
                }
                return None;
            }
        };
        match serde_json::from_slice(&text) {
            Ok(record) => Some(record),
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "the file is damaged; what was cached is forgotten");
                None
            }
        }
    }

    /// Whole or not at all.
    pub(super) fn write(&self, file: &Path) -> io::Result<()> {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let beside = file.with_extension("writing");
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        std::fs::write(&beside, text)?;
        std::fs::File::open(&beside)?.sync_all()?;
        std::fs::rename(beside, file)
    }

    /// A model's version: what is configured, and what orders raised it by.
    pub(super) fn version(&self, model: &ModelName, configured: u64) -> u64 {
        let raised = self.versions.get(model).map_or(0, |sequence| sequence.0);
        configured.saturating_add(raised)
    }

    /// An order about a model.
    pub(super) fn raise(&mut self, model: &ModelName, to: Sequence) {
        let version = self.versions.entry(model.clone()).or_default();
        *version = (*version).max(to);
    }

    /// Of a site that begins anew.
    pub(super) fn begin_anew(&mut self) {
        *self = Self::default();
    }
}
