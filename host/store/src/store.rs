//! The store itself: opening it, and where each call goes.

mod admission;
mod forgetting;
mod mending;
mod slots;
mod versions;

use crate::files;
use crate::key_ring::KeyRing;
use crate::ledger::{Deed, Ledger, Table, Write};
use crate::opening::{lock, open_secret, read_keys, read_tenants};
use crate::secret::PlatformSecret;
use crate::slot::tenant_key;
use bytes::Bytes;
use parking_lot::RwLock;
use portolan_base::{Moment, Random, TenantName};
use portolan_policy::QuestionKind;
use portolan_ports::{
    Admission, AuditRecord, BindingRecord, KeyRecord, NewVersion, Operation, PolicyStore, ProposalRecord,
    Removal, RolloutDeed, RolloutRecord, Scope, StoreError, TenantRecord, UploadTurn, UploadWindow,
    VersionRecord,
};
use std::collections::BTreeMap;
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
}

impl PolicyStore for SledStore {
    fn put_version(&self, version: NewVersion) -> Result<VersionRecord, StoreError> {
        self.keep_version(version)
    }

    fn versions(&self, scope: &Scope, question: QuestionKind) -> Result<Vec<VersionRecord>, StoreError> {
        self.versions_of(scope, question)
    }

    fn component(&self, sha256: &str) -> Result<Bytes, StoreError> {
        self.read_component(sha256)
    }

    fn compiled(&self, sha256: &str) -> Result<Option<Bytes>, StoreError> {
        Ok(files::read(&self.artefact_path(sha256)?)?.map(Bytes::from))
    }

    fn put_compiled(&self, sha256: &str, compiled: &[u8]) -> Result<(), StoreError> {
        self.replace_artefact(sha256, compiled)
    }

    fn bind(&self, binding: BindingRecord) -> Result<BindingRecord, StoreError> {
        self.make_binding(binding)
    }

    fn unbind(
        &self,
        scope: &Scope,
        question: QuestionKind,
        actor: &str,
        reason: &str,
        at: Moment,
    ) -> Result<(), StoreError> {
        self.end_binding((scope, question), (actor, reason), at)
    }

    fn history(&self, scope: &Scope, question: QuestionKind) -> Result<Vec<BindingRecord>, StoreError> {
        self.bindings_made(scope, question)
    }

    fn rollout(&self, scope: &Scope, question: QuestionKind) -> Result<RolloutRecord, StoreError> {
        let slot = self.slot(scope, question)?;
        Ok(slot
            .rollout
            .unwrap_or_else(|| RolloutRecord::plain(scope.clone(), question)))
    }

    fn rollouts(&self) -> Result<Vec<RolloutRecord>, StoreError> {
        self.rollouts_under_way()
    }

    fn put_rollout(&self, rollout: RolloutRecord, deed: RolloutDeed) -> Result<(), StoreError> {
        self.change_rollout(rollout, deed)
    }

    fn bindings(&self) -> Result<Vec<BindingRecord>, StoreError> {
        self.bindings_in_force()
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
        self.forget_version(removal)
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

    fn take_upload_back(&self, tenant: &TenantName, counted_at: Moment) -> Result<(), StoreError> {
        let mut turn = self.turn()?;
        let key = tenant_key(tenant);
        let Some(mut window) = self.ledger.get::<UploadWindow>(Table::Uploads, key)? else {
            return Ok(());
        };
        window.take_back(counted_at);
        let write = Write::new(Table::Uploads, key, &window)?;
        self.ledger.commit_unaudited(&mut turn, &[write])
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
