//! Making a stored version callable.

#[cfg(test)]
mod tests;

use super::error::CONFIG_MAX_BYTES;
use super::{DeskError, PolicyDesk, PolicySlot};
use portolan_policy::Policy;
use portolan_ports::{
    BindingRecord, Finding, PolicyOwner, Rehearsal, Reuse, Severity, TrialRecord, config_digest,
};
use std::sync::Arc;

/// What a version is told, and how its instances are used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told<'a> {
    /// The policy's name.
    pub(super) name: &'a str,
    /// SHA-256 of the component, hexadecimal.
    pub(super) sha256: &'a str,
    /// The text for `configure`.
    pub(super) config: &'a str,
    /// Whether instances are kept from call to call.
    pub(super) reuse: Reuse,
}

impl<'a> From<&'a BindingRecord> for Told<'a> {
    fn from(binding: &'a BindingRecord) -> Self {
        Self {
            name: &binding.name,
            sha256: &binding.sha256,
            config: &binding.config,
            reuse: binding.reuse,
        }
    }
}

impl<'a> From<&'a TrialRecord> for Told<'a> {
    fn from(trial: &'a TrialRecord) -> Self {
        Self {
            name: &trial.name,
            sha256: &trial.sha256,
            config: &trial.config,
            reuse: trial.reuse,
        }
    }
}

/// How a stored version was last bound.
#[derive(Clone, Debug)]
pub(super) struct LastKnown {
    pub(super) name: String,
    pub(super) sha256: String,
    pub(super) config: String,
    pub(super) reuse: Reuse,
}

impl LastKnown {
    pub(super) fn as_told(&self) -> Told<'_> {
        Told {
            name: &self.name,
            sha256: &self.sha256,
            config: &self.config,
            reuse: self.reuse,
        }
    }
}

impl PolicyDesk {
    /// How a stored version is to be bound: as it was last, but for what an order says otherwise; one that never was, with
    /// the configuration in force, where that is of the same policy. With a configuration that it was not last bound with, it is probed first, as an upload
    /// is.
    pub(super) fn known_with(
        &self,
        slot: &PolicySlot,
        sha256: &str,
        (config, reuse): (Option<String>, Option<Reuse>),
    ) -> Result<LastKnown, DeskError> {
        let (last, was_bound) = self.last_known(slot, sha256)?;
        let proven = if was_bound {
            last.config.clone()
        } else {
            String::new()
        };
        let (config, told) = match config {
            Some(config) => (config, None),
            None if was_bound => (last.config, None),
            None => self.config_in_force(slot, &last.name)?,
        };
        if config != proven {
            self.rehearse(slot, (&last.name, sha256), &config)
                .map_err(|error| match error {
                    DeskError::Rejected(mut report) => {
                        report.findings.extend(told);
                        DeskError::Rejected(report)
                    }
                    error => error,
                })?;
        }
        Ok(LastKnown {
            config,
            reuse: reuse.unwrap_or(last.reuse),
            ..last
        })
    }

    /// What a policy of this name is configured with when nobody says: the binding in force may be an older version of it,
    /// whose configuration stays. Another policy's is not for it. With it, what there is to say about that.
    pub(super) fn config_in_force(
        &self,
        slot: &PolicySlot,
        name: &str,
    ) -> Result<(String, Option<Finding>), DeskError> {
        let bound = self.bound(slot)?.filter(|bound| !bound.config.is_empty());
        Ok(match bound {
            None => (String::new(), None),
            Some(bound) if bound.name == name => {
                let told = config_kept(&bound.config);
                (bound.config, Some(told))
            }
            Some(bound) => (String::new(), Some(config_not_kept(&bound, name))),
        })
    }

    /// Checks a stored version with a configuration and the slot's name tables.
    fn rehearse(
        &self,
        slot: &PolicySlot,
        (name, sha256): (&str, &str),
        config: &str,
    ) -> Result<(), DeskError> {
        check_config(config)?;
        let component = self.parts.store.component(sha256)?;
        let names = self.names(slot);
        let rehearsal = Rehearsal {
            config,
            names: Some(&names),
            owner: Some(PolicyOwner {
                scope: &slot.scope,
                name,
            }),
        };
        let report = self
            .parts
            .loader
            .check(Some(slot.question), &component, Some(rehearsal));
        match report.ok {
            true => Ok(()),
            false => Err(DeskError::of_report(report)),
        }
    }

    /// How a stored version was last bound, and whether it was; when not: under its own name, with no text, by class.
    fn last_known(&self, slot: &PolicySlot, sha256: &str) -> Result<(LastKnown, bool), DeskError> {
        let mut versions = self.versions(slot)?.into_iter();
        let version = versions.find(|version| version.sha256 == sha256);
        let version = version.ok_or_else(|| DeskError::NotFound(format!("version {sha256:?} of {slot}")))?;
        let mut history = self.history(slot)?.into_iter().rev();
        let Some(last) = history.find(|binding| binding.sha256 == sha256) else {
            let new = LastKnown {
                name: version.name,
                sha256: version.sha256,
                config: String::new(),
                reuse: Reuse::ByClass,
            };
            return Ok((new, false));
        };
        // The same component may have come again since, under another name.
        let name = if last.at < version.at {
            version.name
        } else {
            last.name
        };
        let last = LastKnown {
            name,
            sha256: version.sha256,
            config: last.config,
            reuse: last.reuse,
        };
        Ok((last, true))
    }

    /// Makes a stored version callable. An artefact that is missing is made and kept.
    pub(super) fn load_stored(
        &self,
        slot: &PolicySlot,
        told: Told<'_>,
    ) -> Result<Arc<dyn Policy>, DeskError> {
        match self.load_ready(slot, told) {
            Err(DeskError::NotCompiled) => {
                self.compile_stored(told.sha256)?;
                self.load_ready(slot, told)
            }
            loaded => loaded,
        }
    }

    /// Makes a stored version callable, if it is compiled for this host.
    pub(super) fn load_ready(&self, slot: &PolicySlot, told: Told<'_>) -> Result<Arc<dyn Policy>, DeskError> {
        check_config(told.config)?;
        let (store, loader) = (&self.parts.store, &self.parts.loader);
        let component = store.component(told.sha256)?;
        let compiled = store.compiled(told.sha256)?;
        // Missing, or of another release.
        let compiled = compiled.filter(|compiled| loader.accepts(told.sha256, compiled));
        let compiled = compiled.ok_or(DeskError::NotCompiled)?;
        let binding = self.binding(slot, told);
        Ok(loader.load(&binding, &component, Some(&compiled))?)
    }

    /// As [`PolicyDesk::compile_stored`], however long others keep the compiler busy: for what nobody waits for.
    pub(super) fn compile_when_free(&self, sha256: &str) -> Result<(), DeskError> {
        loop {
            match self.compile_stored(sha256) {
                Err(DeskError::CompilerBusy(_)) => {
                    tracing::info!(version = sha256, "a bound policy waits for the compiler");
                }
                compiled => return compiled,
            }
        }
    }

    /// Compiles a stored version for this host and keeps what came of it.
    pub(super) fn compile_stored(&self, sha256: &str) -> Result<(), DeskError> {
        let component = self.parts.store.component(sha256)?;
        let compiled = self.parts.loader.compile(&component)?;
        Ok(self.parts.store.put_compiled(sha256, &compiled)?)
    }
}

fn config_kept(config: &str) -> Finding {
    Finding {
        code: "configuration-kept".to_owned(),
        severity: Severity::Note,
        message: format!(
            "no configuration was given, and the one in force is kept: {}, {} bytes",
            config_digest(config).unwrap_or_default(),
            config.len()
        ),
        help: "give another one with --config, or none with --config ''".to_owned(),
    }
}

fn config_not_kept(bound: &BindingRecord, name: &str) -> Finding {
    Finding {
        code: "configuration-not-kept".to_owned(),
        severity: Severity::Warning,
        message: format!(
            "no configuration was given, and that of {}, which is in force, is not handed to another policy, {name}",
            bound.name
        ),
        help: format!(
            "give one with --config; where this is a new version of {}, push it with --name {}",
            bound.name, bound.name
        ),
    }
}

pub(super) fn check_config(config: &str) -> Result<(), DeskError> {
    if config.len() > CONFIG_MAX_BYTES {
        return Err(DeskError::ConfigTooLong(config.len()));
    }
    Ok(())
}
