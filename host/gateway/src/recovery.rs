//! What a site's doors reach of the host's disaster recovery.

use crate::site::Site;
use portolan_ports::Sample;
use std::path::PathBuf;

/// Copies the store, or says why not.
type CopyStore = Box<dyn Fn() -> Result<PathBuf, String> + Send + Sync>;

/// Says how old backups and drills are.
type Ages = Box<dyn Fn() -> Vec<Sample> + Send + Sync>;

/// The host's disaster recovery.
pub struct Recovery {
    /// Copies the store while it is in use; gives the folder.
    pub copy_store: CopyStore,
    /// For the metrics page.
    pub ages: Ages,
}

impl Site {
    /// Lets the site's doors reach the host's disaster recovery. Only the first call counts.
    pub fn set_recovery(&self, recovery: Recovery) {
        drop(self.recovery.set(recovery));
    }

    /// For the metrics page.
    pub(crate) fn recovery_samples(&self) -> Vec<Sample> {
        self.recovery
            .get()
            .map(|recovery| (recovery.ages)())
            .unwrap_or_default()
    }
}
