//! The configuration that the fleet's sites have in common: told before it is in force here, taken over from others whole
//! or not at all.

use super::{Change, Config, LiveConfig, lock};
use crate::config::{tellable_common_of, with_common};
use portolan_base::SiteName;
use portolan_ports::{
    Changer, ConfigRefusal, FleetConfiguration, FleetVersion, SharedConfig, SharedConfiguration,
    SiteConfiguration, SiteRuns,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

/// What was taken over last, kept in `config/fleet.json`: after a restart only what is newer counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Followed {
    version: FleetVersion,
    digest: String,
}

/// One that was not taken over.
#[derive(Clone, Debug)]
struct Refused {
    version: FleetVersion,
    /// What it says.
    digest: String,
    why: String,
}

/// What this process knows of the fleet's configuration.
pub(super) struct Fleet {
    file: PathBuf,
    here: Vec<SiteName>,
    all: Vec<SiteName>,
    shared: OnceLock<Arc<dyn SharedConfiguration>>,
    followed: Mutex<Followed>,
    /// The newest that was not taken over.
    refused: Mutex<Option<Refused>>,
    others: Mutex<BTreeMap<SiteName, SiteRuns>>,
}

impl Fleet {
    pub(super) fn of(config: &Config) -> Self {
        let file = config.data_dir.join("config").join("fleet.json");
        let read = std::fs::read(&file).ok();
        let followed = read.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Self {
            file,
            here: config.sites_here().map(|site| site.name.clone()).collect(),
            all: config.sites.iter().map(|site| site.name.clone()).collect(),
            shared: OnceLock::new(),
            // Of one that is lost the newest is taken over again, which changes nothing where it is in force.
            followed: Mutex::new(followed.unwrap_or_default()),
            refused: Mutex::default(),
            others: Mutex::default(),
        }
    }

    /// Notes what is in force here. What cannot be written down is taken over once more after a restart.
    fn note(&self, followed: Followed) {
        let written = serde_json::to_vec(&followed)
            .map_err(std::io::Error::from)
            .and_then(|bytes| super::versions::write_whole(&self.file, &bytes, 0o600));
        if let Err(error) = written {
            tracing::warn!(path = %self.file.display(), %error, "it cannot be written down which configuration of the fleet is in force here");
        }
        *lock(&self.refused) = None;
        *lock(&self.followed) = followed;
    }
}

impl Refused {
    /// A file that says the same by an operator's hand takes it over; any other would pass over what the fleet was told.
    fn mended_by(self, digest: String) -> Result<Followed, ConfigRefusal> {
        if digest != self.digest {
            return Err(ConfigRefusal::NotTakenOver(self.why));
        }
        Ok(Followed {
            version: self.version,
            digest,
        })
    }
}

impl LiveConfig {
    /// From here on what is common is told to the other sites.
    pub(in crate::host) fn join(&self, shared: Arc<dyn SharedConfiguration>) {
        drop(self.fleet.shared.set(shared));
    }

    /// Puts a text into force here and, where what is common differs in it, at every other site: first told, then made.
    pub(super) fn put_into_force_everywhere(
        &self,
        (next, text): (Config, &str),
        changes: &[Change],
        by: &Changer,
    ) -> Result<portolan_ports::ConfigDone, ConfigRefusal> {
        let ready = self.prepare((next, text), changes, by)?;
        let told = self.tell_others(&ready.next, text, by)?;
        let done = self.put_into_force(ready, by)?;
        if let Some(told) = told {
            self.fleet.note(told);
        }
        Ok(done)
    }

    /// Tells the fleet what is common in a text; nothing where it is what is in force.
    fn tell_others(
        &self,
        next: &Config,
        text: &str,
        by: &Changer,
    ) -> Result<Option<Followed>, ConfigRefusal> {
        let (Some(shared), Some(from)) = (self.fleet.shared.get(), self.fleet.here.first()) else {
            return Ok(None);
        };
        let digest = next.common_digest();
        if digest == self.config().common_digest() {
            return Ok(None);
        }
        if let Some(refused) = lock(&self.fleet.refused).clone() {
            return refused.mended_by(digest).map(Some);
        }
        let told = SharedConfig {
            sections: tellable_common_of(text).map_err(ConfigRefusal::Bad)?,
            digest: digest.clone(),
            from: from.clone(),
            actor: by.actor.clone(),
            reason: by.reason.clone(),
            at: self.clock.now(),
        };
        let over = lock(&self.fleet.followed).version;
        let version = shared.share(&told, over)?;
        Ok(Some(Followed { version, digest }))
    }

    /// Takes over what another site told, whole or not at all; says whether something changed.
    pub(in crate::host) fn take_over(
        &self,
        version: FleetVersion,
        told: &SharedConfig,
    ) -> Result<bool, ConfigRefusal> {
        let _one_at_a_time = lock(&self.changing);
        if version <= lock(&self.fleet.followed).version {
            return Ok(false);
        }
        let taken = self.take(told);
        match &taken {
            Ok(_) => self.fleet.note(Followed {
                version,
                digest: told.digest.clone(),
            }),
            Err(why) => {
                *lock(&self.fleet.refused) = Some(Refused {
                    version,
                    digest: told.digest.clone(),
                    why: why.to_string(),
                });
            }
        }
        taken
    }

    fn take(&self, told: &SharedConfig) -> Result<bool, ConfigRefusal> {
        let now = self.config();
        if now.common_digest() == told.digest {
            return Ok(false);
        }
        let text = now.source.as_ref().map(|source| source.text.as_str());
        let text = text.ok_or_else(|| {
            ConfigRefusal::Missing("this host was started without a configuration file".to_owned())
        })?;
        let text = with_common(text, &told.sections).map_err(|why| {
            ConfigRefusal::Bad(format!(
                "this site's file has to be mended and reloaded first: {why}"
            ))
        })?;
        let (next, changes) = self.weigh(&now, &text)?;
        if next.common_digest() != told.digest {
            let text = "what another site told says something else in this site's file";
            return Err(ConfigRefusal::Bad(text.to_owned()));
        }
        let by = Changer {
            actor: format!("{} at {}", told.actor, told.from),
            holder: None,
            reason: told.reason.clone(),
        };
        let ready = self.prepare((next, &text), &changes, &by)?;
        self.set_edits_aside(&now, &text)?;
        self.put_into_force(ready, &by).map(|_| true)
    }

    /// What the sites of this process run.
    pub(in crate::host) fn runs(&self) -> SiteRuns {
        let followed = lock(&self.fleet.followed).clone();
        SiteRuns {
            fleet: followed.version,
            version: self.versions.newest().unwrap_or(0),
            differs: followed.version.number > 0 && followed.digest != self.config().common_digest(),
            refused: lock(&self.fleet.refused)
                .as_ref()
                .map(|refused| (refused.version, refused.why.clone())),
        }
    }

    /// Notes what another site runs.
    pub(in crate::host) fn hear(&self, site: SiteName, runs: SiteRuns) {
        lock(&self.fleet.others).insert(site, runs);
    }

    /// Says what the sites of this process run.
    pub(in crate::host) fn report(&self, runs: &SiteRuns) -> Result<(), ConfigRefusal> {
        let Some(shared) = self.fleet.shared.get() else {
            return Ok(());
        };
        self.fleet
            .here
            .iter()
            .try_for_each(|site| shared.report(site, runs))
    }

    /// Which configuration each site runs.
    pub(super) fn sites_run(&self) -> FleetConfiguration {
        let (own, others) = (self.runs(), lock(&self.fleet.others));
        let newest = own.refused.as_ref().map_or(own.fleet, |(version, _)| *version);
        let heard = others.values().map(|runs| runs.fleet).max().unwrap_or_default();
        let runs = |site: &SiteName| match self.fleet.here.contains(site) {
            true => Some(own.clone()),
            false => others.get(site).cloned(),
        };
        let site = |site: &SiteName| SiteConfiguration {
            site: site.clone(),
            runs: runs(site),
        };
        FleetConfiguration {
            fleet: newest.max(heard),
            sites: self.fleet.all.iter().map(site).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
