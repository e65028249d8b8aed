//! The store itself: opening, and what each call reads and writes.

mod admission;
mod forgetting;
mod mending;

use crate::files;
use crate::key_ring::KeyRing;
use crate::ledger::{Deed, Ledger, Table, Turn, Write};
use crate::opening::{lock, open_secret, read_keys, read_tenants};
use crate::secret::PlatformSecret;
use crate::slot::{
    StoredSlot, StoredVersion, history_key, is_sha256, slot_key, slot_prefix, tenant_key, version_key,
};
use bytes::Bytes;
use parking_lot::RwLock;
use portolan_base::{Moment, Random, TenantName};
use portolan_policy::QuestionKind;
use portolan_ports::{
    Admission, AuditRecord, BindingRecord, ChangeRecord, KeyRecord, NewVersion, Operation, PolicyStore,
    ProposalRecord, Removal, RolloutDeed, RolloutRecord, Scope, StoreError, TenantRecord, UploadTurn,
    UploadWindow, VersionRecord, VersionSignature,
};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

/// A [`PolicyStore`] in a folder.
#[derive(Debug)]
pub struct SledStore {
    components: PathBuf,
    artefacts: PathBuf,
    secret: PlatformSecret,
    keys: KeyRing,
    tenants: RwLock<BTreeMap<TenantName, TenantRecord>>,
    ledger: Ledger,
    /// Declared last, so that the lock goes after sled has closed its files.
    _lock: File,
}

impl SledStore {
    /// Opens the store in `folder`, or founds one there; `random` is asked only when a store is founded.
    ///
    /// # Errors
    /// [`StoreError::InUse`] when another process has it open, [`StoreError::NewerSchema`] when a later release wrote
    /// it, [`StoreError::Damaged`] when records do not read back, or the secret is not the one it was founded with.
    pub fn open(folder: &Path, random: &dyn Random) -> Result<Self, StoreError> {
        let (components, artefacts) = (folder.join("components"), folder.join("artefacts"));
        files::create_folder(folder)?;
        let lock = lock(folder)?;
        files::create_folder(&components)?;
        files::create_folder(&artefacts)?;
        for folder in [folder, &components, &artefacts] {
            files::sweep_temporary(folder)?;
        }
        let ledger = Ledger::open(&folder.join("db"))?;
        let secret = open_secret(&folder.join("secret"), &ledger, random)?;
        let keys = KeyRing::new(&secret, read_keys(&ledger)?);
        let tenants = RwLock::new(read_tenants(&ledger)?);
        let store = Self {
            components,
            artefacts,
            secret,
            keys,
            tenants,
            ledger,
            _lock: lock,
        };
        store.sweep_unrecorded()?;
        Ok(store)
    }

    /// The secret that keys of this installation are derived from.
    pub fn platform_secret(&self) -> &PlatformSecret {
        &self.secret
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The folder of the components.
    pub(crate) fn components(&self) -> &Path {
        &self.components
    }

    /// Removes components and artefacts that no version names: their upload was never acknowledged.
    fn sweep_unrecorded(&self) -> Result<(), StoreError> {
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

    fn component_path(&self, sha256: &str) -> Result<PathBuf, StoreError> {
        if !is_sha256(sha256) {
            return Err(no_component(sha256));
        }
        Ok(self.components.join(format!("{sha256}.wasm")))
    }

    fn artefact_path(&self, sha256: &str) -> Result<PathBuf, StoreError> {
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

    fn slot(&self, scope: &Scope, question: QuestionKind) -> Result<StoredSlot, StoreError> {
        self.slot_at(&slot_key(scope, question))
    }

    fn slot_at(&self, key: &str) -> Result<StoredSlot, StoreError> {
        Ok(self.ledger.get(Table::Bindings, key)?.unwrap_or_default())
    }
}

impl PolicyStore for SledStore {
    fn put_version(&self, version: NewVersion) -> Result<VersionRecord, StoreError> {
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

    fn versions(&self, scope: &Scope, question: QuestionKind) -> Result<Vec<VersionRecord>, StoreError> {
        let found = self.ledger.scan(Table::Versions, &slot_prefix(scope, question))?;
        let mut versions: Vec<StoredVersion> = found.into_iter().map(|(_, version)| version).collect();
        versions.sort_by_key(|version| version.sequence);
        Ok(versions.into_iter().map(|version| version.record).collect())
    }

    fn component(&self, sha256: &str) -> Result<Bytes, StoreError> {
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

    fn compiled(&self, sha256: &str) -> Result<Option<Bytes>, StoreError> {
        Ok(files::read(&self.artefact_path(sha256)?)?.map(Bytes::from))
    }

    fn put_compiled(&self, sha256: &str, compiled: &[u8]) -> Result<(), StoreError> {
        let component = self.component_path(sha256)?;
        if !component.try_exists().map_err(|e| files::io(&component, &e))? {
            return Err(no_component(sha256));
        }
        files::write(&self.artefact_path(sha256)?, compiled)
    }

    fn bind(&self, binding: BindingRecord) -> Result<BindingRecord, StoreError> {
        let mut turn = self.turn()?;
        let version = version_key(&binding.scope, binding.question, &binding.sha256);
        if self
            .ledger
            .get::<StoredVersion>(Table::Versions, &version)?
            .is_none()
        {
            return Err(StoreError::NotFound(binding.subject()));
        }
        let slot = self.slot(&binding.scope, binding.question)?;
        let change = ChangeRecord::between(slot.binding.as_ref(), Some(&binding));
        let generation = slot.generation + 1;
        let binding = BindingRecord {
            generation,
            ..binding
        };
        let slot = StoredSlot {
            generation,
            rollout: slot.rollout.map(|rollout| rollout.after_binding(&binding)),
            binding: Some(binding.clone()),
        };
        let mut writes = self.forgotten_bindings(&binding)?;
        writes.push(Write::new(
            Table::Bindings,
            slot_key(&binding.scope, binding.question),
            &slot,
        )?);
        writes.push(Write::new(Table::History, history_key(&binding), &binding)?);
        let deed = Deed {
            at: binding.at,
            actor: binding.actor.clone(),
            action: binding.how.action(),
            subject: binding.subject(),
            reason: binding.reason.clone(),
        };
        self.ledger.commit(&mut turn, deed.changing(change), writes)?;
        Ok(binding)
    }

    fn unbind(
        &self,
        scope: &Scope,
        question: QuestionKind,
        actor: &str,
        reason: &str,
        at: Moment,
    ) -> Result<(), StoreError> {
        let mut turn = self.turn()?;
        let slot = self.slot(scope, question)?;
        let Some(binding) = slot.binding else {
            return Err(StoreError::NotFound(format!("a {question} binding of {scope}")));
        };
        let slot = StoredSlot {
            generation: slot.generation + 1,
            binding: None,
            rollout: slot.rollout,
        };
        let write = Write::new(Table::Bindings, slot_key(scope, question), &slot)?;
        let deed = Deed {
            at,
            actor: actor.to_owned(),
            action: "policy.unbind",
            subject: binding.subject(),
            reason: reason.to_owned(),
        };
        let change = ChangeRecord::between(Some(&binding), None);
        self.ledger.commit(&mut turn, deed.changing(change), vec![write])
    }

    fn history(&self, scope: &Scope, question: QuestionKind) -> Result<Vec<BindingRecord>, StoreError> {
        let found = self.ledger.scan(Table::History, &slot_prefix(scope, question))?;
        Ok(found.into_iter().map(|(_, binding)| binding).collect())
    }

    fn rollout(&self, scope: &Scope, question: QuestionKind) -> Result<RolloutRecord, StoreError> {
        let slot = self.slot(scope, question)?;
        Ok(slot
            .rollout
            .unwrap_or_else(|| RolloutRecord::plain(scope.clone(), question)))
    }

    fn rollouts(&self) -> Result<Vec<RolloutRecord>, StoreError> {
        let slots: Vec<(_, StoredSlot)> = self.ledger.scan(Table::Bindings, "")?;
        let mut rollouts: Vec<RolloutRecord> = slots
            .into_iter()
            .filter_map(|(_, slot)| slot.rollout)
            .filter(|rollout| !rollout.is_plain())
            .collect();
        rollouts.sort_by(|a, b| (&a.scope, a.question).cmp(&(&b.scope, b.question)));
        Ok(rollouts)
    }

    fn put_rollout(&self, rollout: RolloutRecord, deed: RolloutDeed) -> Result<(), StoreError> {
        let mut turn = self.turn()?;
        if let Some(trial) = &rollout.trial {
            let version = version_key(&rollout.scope, rollout.question, &trial.sha256);
            if self
                .ledger
                .get::<StoredVersion>(Table::Versions, &version)?
                .is_none()
            {
                return Err(StoreError::NotFound(deed.subject));
            }
        }
        let key = slot_key(&rollout.scope, rollout.question);
        let slot = StoredSlot {
            rollout: Some(rollout),
            ..self.slot_at(&key)?
        };
        let write = Write::new(Table::Bindings, key, &slot)?;
        let deed = Deed {
            at: deed.at,
            actor: deed.actor,
            action: deed.change.action(),
            subject: deed.subject,
            reason: deed.reason,
        };
        self.ledger.commit(&mut turn, deed, vec![write])
    }

    fn bindings(&self) -> Result<Vec<BindingRecord>, StoreError> {
        let slots: Vec<(_, StoredSlot)> = self.ledger.scan(Table::Bindings, "")?;
        let mut bindings: Vec<BindingRecord> =
            slots.into_iter().filter_map(|(_, slot)| slot.binding).collect();
        bindings.sort_by(|a, b| (&a.scope, a.question).cmp(&(&b.scope, b.question)));
        Ok(bindings)
    }

    fn put_tenant(&self, tenant: TenantRecord, actor: &str, at: Moment) -> Result<(), StoreError> {
        let mut turn = self.turn()?;
        let write = Write::new(Table::Tenants, tenant_key(&tenant.name), &tenant)?;
        let subject = tenant.name.to_string();
        let deed = Deed {
            at,
            actor: actor.to_owned(),
            action: "tenant.put",
            subject,
            reason: String::new(),
        };
        self.ledger.commit(&mut turn, deed, vec![write])?;
        self.tenants.write().insert(tenant.name.clone(), tenant);
        Ok(())
    }

    fn tenant(&self, name: &TenantName) -> Result<Option<TenantRecord>, StoreError> {
        Ok(self.tenants.read().get(name).cloned())
    }

    fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError> {
        Ok(self.tenants.read().values().cloned().collect())
    }

    fn put_key(&self, key: &str, record: KeyRecord, actor: &str, at: Moment) -> Result<(), StoreError> {
        if key.is_empty() {
            return Err(empty_key());
        }
        let digest = self.keys.digest(key);
        let mut turn = self.turn()?;
        let write = Write::new(Table::Keys, hex::encode(digest), &record)?;
        let subject = record.subject();
        let deed = Deed {
            at,
            actor: actor.to_owned(),
            action: "key.put",
            subject,
            reason: String::new(),
        };
        self.ledger.commit(&mut turn, deed, vec![write])?;
        self.keys.insert(digest, record);
        Ok(())
    }

    fn admit(
        &self,
        admission: Admission<'_>,
        note: Option<Operation>,
        actor: &str,
        at: Moment,
    ) -> Result<usize, StoreError> {
        self.admit_all(&admission, note, (actor, at))
    }

    fn key(&self, key: &str) -> Result<Option<KeyRecord>, StoreError> {
        Ok(self.keys.record(key))
    }

    fn put_proposal(&self, proposal: ProposalRecord) -> Result<(), StoreError> {
        let mut turn = self.turn()?;
        let mut writes = self.forgotten_proposals(&proposal)?;
        writes.push(Write::new(
            Table::Proposals,
            proposal.id.to_be_bytes(),
            &proposal,
        )?);
        let (action, actor, reason, at) = proposal.last_step();
        let deed = Deed {
            at,
            actor: actor.to_owned(),
            action,
            subject: proposal.subject(),
            reason: reason.to_owned(),
        };
        self.ledger.commit(&mut turn, deed, writes)
    }

    fn proposals(&self) -> Result<Vec<ProposalRecord>, StoreError> {
        let found = self.ledger.scan(Table::Proposals, "")?;
        Ok(found.into_iter().map(|(_, proposal)| proposal).collect())
    }

    fn remove_version(&self, removal: Removal) -> Result<(), StoreError> {
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

    fn count_upload(&self, tenant: &TenantName, most: u32, at: Moment) -> Result<UploadTurn, StoreError> {
        let mut turn = self.turn()?;
        let key = tenant_key(tenant);
        let mut window: UploadWindow = self.ledger.get(Table::Uploads, key)?.unwrap_or_default();
        let counted = window.count(most, at);
        if counted == UploadTurn::Counted {
            let write = Write::new(Table::Uploads, key, &window)?;
            self.ledger.commit_unaudited(&mut turn, &[write])?;
        }
        Ok(counted)
    }

    fn uploads(&self, tenant: &TenantName, at: Moment) -> Result<u32, StoreError> {
        let window: Option<UploadWindow> = self.ledger.get(Table::Uploads, tenant_key(tenant))?;
        Ok(window.map_or(0, |window| window.used(at)))
    }

    fn note(&self, operation: Operation) -> Result<(), StoreError> {
        let mut turn = self.turn()?;
        self.ledger.commit(&mut turn, Deed::of(operation), Vec::new())
    }

    fn audit(&self, limit: usize) -> Result<Vec<AuditRecord>, StoreError> {
        self.ledger.audit(limit)
    }
}

fn empty_key() -> StoreError {
    StoreError::Invalid {
        what: "an API key".into(),
        why: "it is empty".into(),
    }
}

fn no_component(sha256: &str) -> StoreError {
    StoreError::NotFound(format!("component {sha256:?}"))
}
