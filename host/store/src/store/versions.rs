//! Versions: their records, and the files of their components and artefacts.

use super::SledStore;
use crate::files;
use crate::ledger::{Deed, Table, Turn, Write};
use crate::slot::{StoredVersion, is_sha256, slot_prefix, version_key};
use bytes::Bytes;
use portolan_policy::QuestionKind;
use portolan_ports::{NewVersion, Removal, Scope, StoreError, VersionRecord, VersionSignature};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::path::PathBuf;

impl SledStore {
    /// Removes components and artefacts that no version names: their upload was never acknowledged.
    pub(super) fn sweep_unrecorded(&self) -> Result<(), StoreError> {
        let versions: Vec<(_, StoredVersion)> = self.ledger.scan(Table::Versions, "")?;
        if versions.is_empty() && self.ledger.audit(1)?.is_empty() {
            // A folder whose records are gone: the components may be all that is left of someone's work.
            return Ok(());
        }
        let known: HashSet<String> = versions
            .into_iter()
            .map(|(_, version)| version.record.sha256)
            .collect();
        let unrecorded = |name: &std::ffi::OsStr| {
            let stem = name
                .to_str()
                .and_then(|name| name.split_once('.'))
                .map(|(stem, _)| stem);
            stem.is_some_and(|stem| is_sha256(stem) && !known.contains(stem))
        };
        files::sweep(&self.components, unrecorded)?;
        files::sweep(&self.artefacts, unrecorded)
    }

    /// Files first, then the record that names them.
    pub(super) fn keep_version(&self, version: NewVersion) -> Result<VersionRecord, StoreError> {
        let sha256 = hex::encode(Sha256::digest(&version.component));
        self.keep_component(&sha256, &version.component)?;
        files::write(&self.artefact_path(&sha256)?, &version.compiled)?;
        let key = version_key(&version.scope, version.question, &sha256);
        let mut turn = self.turn()?;
        // The files may have gone, since the last version that had them was removed meanwhile.
        if !self.has_files(&sha256)? {
            self.keep_component(&sha256, &version.component)?;
            files::write(&self.artefact_path(&sha256)?, &version.compiled)?;
        }
        let known: Option<StoredVersion> = self.ledger.get(Table::Versions, &key)?;
        let signed = known.as_ref().map(|known| known.record.signatures.clone());
        if let Some(known) = known.filter(|known| known.record.name == version.name) {
            return self.sign(&mut turn, (key, known), version);
        }
        let record = VersionRecord {
            scope: version.scope,
            question: version.question,
            name: version.name,
            sha256,
            bytes: version.component.len() as u64,
            signatures: VersionSignature::merged(&signed.unwrap_or_default(), &version.signatures),
            actor: version.actor,
            reason: version.reason,
            at: version.at,
        };
        let stored = StoredVersion {
            sequence: turn.next_sequence(),
            record,
        };
        let write = Write::new(Table::Versions, key, &stored)?;
        let record = stored.record;
        let deed = Deed {
            at: record.at,
            actor: record.actor.clone(),
            action: "policy.put",
            subject: record.subject(),
            reason: record.reason.clone(),
        };
        self.ledger.commit(&mut turn, deed, vec![write])?;
        Ok(record)
    }

    /// Oldest first.
    pub(super) fn versions_of(
        &self,
        scope: &Scope,
        question: QuestionKind,
    ) -> Result<Vec<VersionRecord>, StoreError> {
        let found = self.ledger.scan(Table::Versions, &slot_prefix(scope, question))?;
        let mut versions: Vec<StoredVersion> = found.into_iter().map(|(_, version)| version).collect();
        versions.sort_by_key(|version| version.sequence);
        Ok(versions.into_iter().map(|version| version.record).collect())
    }

    /// The bytes of a component, verified against its name.
    pub(super) fn read_component(&self, sha256: &str) -> Result<Bytes, StoreError> {
        let path = self.component_path(sha256)?;
        let bytes = files::read(&path)?.ok_or_else(|| no_component(sha256))?;
        let found = hex::encode(Sha256::digest(&bytes));
        if found != sha256 {
            return Err(StoreError::Damaged {
                place: path.display().to_string(),
                detail: format!(
                    "its {} bytes hash to {found}; upload the component again",
                    bytes.len()
                ),
            });
        }
        Ok(bytes.into())
    }

    /// Puts an artefact beside its component, which must be there.
    pub(super) fn replace_artefact(&self, sha256: &str, compiled: &[u8]) -> Result<(), StoreError> {
        let component = self.component_path(sha256)?;
        if !component.try_exists().map_err(|e| files::io(&component, &e))? {
            return Err(no_component(sha256));
        }
        files::write(&self.artefact_path(sha256)?, compiled)
    }

    /// Forgets a version that nothing uses, and its files with the last version that has them.
    pub(super) fn forget_version(&self, removal: Removal) -> Result<(), StoreError> {
        let mut turn = self.turn()?;
        let (scope, question, sha256) = (&removal.scope, removal.question, &removal.sha256);
        let key = version_key(scope, question, sha256);
        let version: Option<StoredVersion> = self.ledger.get(Table::Versions, &key)?;
        let version = version.ok_or_else(|| no_component(sha256))?.record;
        let slot = self.slot(scope, question)?;
        let bound = slot.binding.as_ref().map(|binding| &binding.sha256);
        let trial = slot.rollout.as_ref().and_then(|rollout| rollout.trial.as_ref());
        version.refuse_if_used(bound, trial.map(|trial| &trial.sha256))?;
        let deed = Deed {
            at: removal.at,
            actor: removal.actor,
            action: removal.cause.action(),
            subject: version.subject(),
            reason: removal.reason,
        };
        let write = Write::removal(Table::Versions, key);
        self.ledger.commit(&mut turn, deed, vec![write])?;
        // After a crash between the two, the next start removes what nothing names.
        self.sweep_component(sha256)
    }

    fn component_path(&self, sha256: &str) -> Result<PathBuf, StoreError> {
        if !is_sha256(sha256) {
            return Err(no_component(sha256));
        }
        Ok(self.components.join(format!("{sha256}.wasm")))
    }

    pub(super) fn artefact_path(&self, sha256: &str) -> Result<PathBuf, StoreError> {
        if !is_sha256(sha256) {
            return Err(no_component(sha256));
        }
        Ok(self.artefacts.join(format!("{sha256}.cwasm")))
    }

    /// Puts the component where its name says, unless it is there unharmed.
    fn keep_component(&self, sha256: &str, component: &[u8]) -> Result<(), StoreError> {
        let path = self.component_path(sha256)?;
        if files::read(&path)?.is_some_and(|bytes| bytes == component) {
            return Ok(());
        }
        files::write(&path, component)
    }

    /// Adds the signatures that a known version came with this time.
    fn sign(
        &self,
        turn: &mut Turn,
        (key, mut known): (String, StoredVersion),
        again: NewVersion,
    ) -> Result<VersionRecord, StoreError> {
        let signatures = VersionSignature::merged(&known.record.signatures, &again.signatures);
        if signatures == known.record.signatures {
            return Ok(known.record);
        }
        known.record.signatures = signatures;
        let write = Write::new(Table::Versions, key, &known)?;
        let deed = Deed {
            at: again.at,
            actor: again.actor,
            action: "policy.sign",
            subject: known.record.subject(),
            reason: again.reason,
        };
        self.ledger.commit(turn, deed, vec![write])?;
        Ok(known.record)
    }

    /// Whether a component and its artefact are there.
    fn has_files(&self, sha256: &str) -> Result<bool, StoreError> {
        let is_there = |path: PathBuf| path.try_exists().map_err(|e| files::io(&path, &e));
        Ok(is_there(self.component_path(sha256)?)? && is_there(self.artefact_path(sha256)?)?)
    }

    /// Removes a component and its artefact when no version of any scope has them. Only called in a turn.
    fn sweep_component(&self, sha256: &str) -> Result<(), StoreError> {
        let versions: Vec<(_, StoredVersion)> = self.ledger.scan(Table::Versions, "")?;
        if versions
            .iter()
            .any(|(_, version)| version.record.sha256 == sha256)
        {
            return Ok(());
        }
        files::remove(&self.artefact_path(sha256)?)?;
        files::remove(&self.component_path(sha256)?)
    }
}

fn no_component(sha256: &str) -> StoreError {
    StoreError::NotFound(format!("component {sha256:?}"))
}
