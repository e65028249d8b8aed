//! The configuration of a running host, as its operators change it.

use crate::{FleetVersion, SiteRuns};
use async_trait::async_trait;
use portolan_base::{Moment, OperatorName, SiteName};
use serde::Serialize;
use serde_json::Value;

/// Who changes the configuration, and why.
#[derive(Clone, Debug)]
pub struct Changer {
    /// Who, for the audit log.
    pub actor: String,
    /// The operator, where the key or the door names one.
    pub holder: Option<OperatorName>,
    /// Why.
    pub reason: String,
}

/// What an operator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigOrder {
    /// The file as it stands counts.
    Reload,
    /// An earlier version counts, the one before the one in force where none is named.
    Rollback(Option<u64>, Edits),
    /// The change that waits counts.
    Approve,
    /// The change that waits is forgotten.
    Reject,
}

/// What becomes of edits of the file that were not reloaded, where a roll-back writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Edits {
    /// They stay, and nothing is rolled back.
    #[default]
    Keep,
    /// They are overwritten; the edited text is kept beside the file.
    Overwrite,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigDone {
    /// In a word.
    pub outcome: ConfigOutcome,
    /// The version in force.
    pub version: u64,
    /// What is different, a line a key, without secrets.
    pub changes: Vec<String>,
}

/// What came of an order, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfigOutcome {
    /// It counts.
    Applied,
    /// There was nothing to change.
    Unchanged,
    /// It waits for another operator.
    Proposed,
    /// It was turned down.
    Rejected,
}

/// A version that is or was in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigVersion {
    /// Its number, from 1.
    pub version: u64,
    /// Since when.
    pub at: Moment,
    /// Who brought it.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// SHA-256 of the file's text, hexadecimal.
    pub sha256: String,
    /// What was different from the version before, without secrets.
    pub changes: Vec<String>,
}

/// A change that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PendingConfig {
    /// Who stands behind it.
    pub actors: Vec<String>,
    /// What is different.
    pub changes: Vec<String>,
    /// Until when it can be approved.
    pub expires: Moment,
}

/// Why a change does not count. Nothing of it does.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigRefusal {
    /// The file cannot be used.
    #[error("{0}")]
    Bad(String),
    /// Keys that differ count only when the host starts again.
    #[error("nothing was changed, for these keys count only after a restart: {}", .0.join(", "))]
    NeedsRestart(Vec<String>),
    /// The file was edited since it was read, and would be overwritten.
    #[error(
        "nothing was changed, for the file was edited and not reloaded, and going back would overwrite that: {}; reload it, \
         or say --force (`force` over HTTP)", .0.join(", ")
    )]
    Edited(Vec<String>),
    /// There is no such version, or no change waits.
    #[error("{0}")]
    Missing(String),
    /// The operator may not decide this.
    #[error("{0}")]
    Forbidden(String),
    /// It could not be written down or put into force.
    #[error("{0}")]
    Broken(String),
    /// Nobody acknowledged it to be kept for the fleet's other sites. It may have been taken all the same.
    #[error(
        "the fleet did not acknowledge the change: {0}; nothing was changed here. Look at `portolan config sites`, and ask again"
    )]
    NotAcknowledged(String),
    /// Another site changed it first.
    #[error(
        "another site of the fleet changed the configuration a moment ago; look what it says, and ask again"
    )]
    ChangedElsewhere,
    /// The fleet's newest is not in force at this site yet, and would be passed over.
    #[error(
        "this site has not taken over what another site changed, and no other change of what all sites share can be made \
         here before it has: {0}"
    )]
    NotTakenOver(String),
}

/// Which configuration a site runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SiteConfiguration {
    /// The site.
    pub site: SiteName,
    /// What it said last; none: nothing yet.
    pub runs: Option<SiteRuns>,
}

/// Which configuration the fleet's sites run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FleetConfiguration {
    /// The newest that this site knows to be common to all; none was told where all sites are in one process.
    pub fleet: FleetVersion,
    /// Each site of the file.
    pub sites: Vec<SiteConfiguration>,
}

/// The configuration of a running host.
#[async_trait]
pub trait Configuration: Send + Sync {
    /// Does what an operator asks for: all of it, or nothing.
    async fn change(&self, order: ConfigOrder, by: Changer) -> Result<ConfigDone, ConfigRefusal>;
    /// The versions that are kept, newest first.
    fn history(&self) -> Result<Vec<ConfigVersion>, ConfigRefusal>;
    /// The change that waits, if one does.
    fn pending(&self) -> Option<PendingConfig>;
    /// What is in force, defaults among it, without secrets.
    fn effective(&self) -> Value;
    /// Which configuration each site of the fleet runs.
    fn sites(&self) -> FleetConfiguration;
}
