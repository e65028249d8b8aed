//! Tells every site of a fleet what all have in common of their configuration, and keeps it for those that are away.

use crate::ConfigRefusal;
use portolan_base::{Moment, SiteName};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Which configuration of the fleet's, in order of their making.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FleetVersion {
    /// When what keeps them was founded: servers that lost everything begin anew with small numbers.
    pub founded: u64,
    /// Its number there; 0: none was ever told.
    pub number: u64,
}

/// What all sites of a fleet have in common of their configuration. Newer replaces older, whole. It holds keys.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedConfig {
    /// Top-level keys of the file, each with its text as it stands there.
    pub sections: BTreeMap<String, String>,
    /// What the sections say, as a digest: who takes them over has to come to the same.
    pub digest: String,
    /// Where it was changed.
    pub from: SiteName,
    /// Who changed it, as audit logs name them.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Moment,
}

impl fmt::Debug for SharedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedConfig")
            .field("sections", &self.sections.keys())
            .field("from", &self.from)
            .field("actor", &self.actor)
            .finish_non_exhaustive()
    }
}

/// What a site runs of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteRuns {
    /// Which of the fleet's configurations it took over last.
    pub fleet: FleetVersion,
    /// The version of its own file.
    pub version: u64,
    /// Its file says something else of what is common: it was started with a file that was edited.
    pub differs: bool,
    /// Which newer one it did not take over, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<(FleetVersion, String)>,
}

/// The configuration that a fleet's sites have in common. Calls block on the network: use them off the request path.
pub trait SharedConfiguration: Send + Sync {
    /// Tells every site, those that are away once they are back, and gives which it is. Returns when it cannot be lost any
    /// more. `over` is the one that it follows, as far as the caller knows.
    ///
    /// # Errors
    /// [`ConfigRefusal::NotAcknowledged`] and [`ConfigRefusal::ChangedElsewhere`]; then nothing is to be changed here either.
    fn share(&self, told: &SharedConfig, over: FleetVersion) -> Result<FleetVersion, ConfigRefusal>;

    /// Says what a site runs.
    ///
    /// # Errors
    /// [`ConfigRefusal::NotAcknowledged`].
    fn report(&self, site: &SiteName, runs: &SiteRuns) -> Result<(), ConfigRefusal>;
}
