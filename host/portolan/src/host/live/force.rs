//! Puts a version into force. What needs room on the disk is written before anything counts; then the version counts, whom it
//! lets in, the operator's file, and what runs. What comes before a step that fails is taken back.

use super::versions::{Staged, StagedVersion, stage_file};
use super::{Change, Config, LiveConfig, lines, live_of, lock};
use crate::host::parts;
use portolan_ports::{Changer, ConfigDone, ConfigOutcome, ConfigRefusal, Operation, OperationKind};
use std::sync::Arc;

/// A change that is on the disk and does not count yet. Dropped, nothing is left of it.
pub(super) struct Ready {
    pub(super) next: Config,
    changes: Vec<String>,
    version: StagedVersion,
    file: Option<Staged>,
}

impl LiveConfig {
    /// Finds room for a change. A full disk is noticed here, where nothing counts yet.
    pub(super) fn prepare(
        &self,
        (next, text): (Config, &str),
        changes: &[Change],
        by: &Changer,
    ) -> Result<Ready, ConfigRefusal> {
        let changes = lines(changes);
        let version = self.versions.stage(text, &changes, by, self.clock.now())?;
        let file = stage_file(self.file.as_deref(), text).map_err(|error| broken(&error))?;
        Ok(Ready {
            next,
            changes,
            version,
            file,
        })
    }

    /// Has a change count.
    pub(super) fn put_into_force(&self, ready: Ready, by: &Changer) -> Result<ConfigDone, ConfigRefusal> {
        let Ready {
            next,
            changes,
            version,
            file,
        } = ready;
        let before = self.config();
        let version = self.versions.put(version)?;
        let note = Operation {
            at: self.clock.now(),
            actor: by.actor.clone(),
            kind: OperationKind::Configure,
            subject: format!("{} keys", changes.len()),
            reason: by.reason.clone(),
        };
        let let_in = parts::admit(&next, &self.store, self.clock.now(), Some(note));
        if let Err(error) = let_in {
            self.take_version_back(version);
            return Err(broken(&error));
        }
        if let Some(Err(error)) = file.map(Staged::put) {
            self.take_version_back(version);
            if let Err(error) = parts::record_tenants(&before, &self.store, self.clock.as_ref()) {
                tracing::error!(%error, "keys of a change of the configuration that failed could not be taken back; they count until the next reload");
            }
            return Err(broken(&error));
        }
        for change in &changes {
            tracing::info!(version, actor = %by.actor, change, "the configuration changed");
        }
        if let Err(error) = self.versions.prune(next.changing.keep_versions) {
            tracing::warn!(%error, "old versions of the configuration could not be forgotten");
        }
        self.tell(&before, &next);
        lock(&self.state).config = Arc::new(next);
        Ok(ConfigDone {
            outcome: ConfigOutcome::Applied,
            version,
            changes,
        })
    }

    fn take_version_back(&self, version: u64) {
        if let Err(error) = self.versions.take_back(version) {
            tracing::error!(version, %error, "a version of the configuration that never counted could not be removed");
        }
    }

    /// Has what runs behave as `next` says.
    fn tell(&self, before: &Config, next: &Config) {
        let sites = lock(&self.sites);
        for gateway in sites.iter().filter_map(|site| site.gateway.upgrade()) {
            gateway.apply(live_of(next));
        }
        for link in next.links_in_use() {
            let from = sites.iter().find(|site| site.name == link.from);
            // They may stand in another order.
            let mut before = before.links_in_use().iter();
            let was = before.find(|was| (&was.from, &was.to) == (&link.from, &link.to));
            if was.is_some_and(|was| link.budget_mbps != was.budget_mbps)
                && let Some(transport) = from.and_then(|site| site.transport.upgrade())
            {
                transport.admit(link.to.clone(), link.egress());
            }
        }
        let level = &next.observability.log_level;
        if let Some(set) = self
            .log
            .get()
            .filter(|_| *level != before.observability.log_level)
        {
            set(level);
        }
    }
}

fn broken(error: &dyn std::fmt::Display) -> ConfigRefusal {
    ConfigRefusal::Broken(error.to_string())
}
