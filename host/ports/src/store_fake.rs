//! The fake beside [`PolicyStore`], and its fault: the same behaviour in memory, for tests, the simulator and as the
//! model that the real store is compared with.

use crate::{
    Admission, AuditRecord, BindingRecord, ChangeRecord, HoldRecord, KeyRecord, NewVersion, Operation,
    PolicyStore, ProposalRecord, Removal, RolloutDeed, RolloutRecord, Scope, StoreError, TenantRecord,
    UploadTurn, UploadWindow, VersionRecord, VersionSignature, bindings_to_forget, proposals_to_forget,
};
use bytes::Bytes;
use portolan_base::{Moment, TenantName};
use portolan_policy::QuestionKind;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A call that can be made to fail, see [`MemoryStore::fail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StoreCall {
    /// [`PolicyStore::put_version`].
    PutVersion,
    /// [`PolicyStore::component`].
    Component,
    /// [`PolicyStore::put_compiled`].
    PutCompiled,
    /// [`PolicyStore::bind`].
    Bind,
    /// [`PolicyStore::unbind`].
    Unbind,
    /// [`PolicyStore::put_rollout`].
    PutRollout,
    /// [`PolicyStore::put_proposal`].
    PutProposal,
    /// [`PolicyStore::note`].
    Note,
    /// [`PolicyStore::admit`].
    Admit,
}

/// A [`PolicyStore`] that forgets everything when it is dropped.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Mutex<State>,
}

type Slot = (Scope, QuestionKind);

#[derive(Default)]
struct State {
    components: HashMap<String, Bytes>,
    compiled: HashMap<String, Bytes>,
    versions: BTreeMap<Slot, Vec<VersionRecord>>,
    bindings: BTreeMap<Slot, BindingRecord>,
    generations: BTreeMap<Slot, u64>,
    history: BTreeMap<Slot, Vec<BindingRecord>>,
    rollouts: BTreeMap<Slot, RolloutRecord>,
    tenants: BTreeMap<TenantName, TenantRecord>,
    keys: HashMap<[u8; 32], KeyRecord>,
    proposals: BTreeMap<u64, ProposalRecord>,
    uploads: BTreeMap<TenantName, UploadWindow>,
    audit: Vec<AuditRecord>,
    failing: BTreeSet<StoreCall>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("bindings", &self.bindings)
            .field("audit", &self.audit)
            .finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a call fail with [`StoreError::Io`], changing nothing, until [`MemoryStore::heal`].
    pub fn fail(&self, call: StoreCall) {
        self.state().failing.insert(call);
    }

    /// Ends every failure.
    pub fn heal(&self) {
        self.state().failing.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who does what to which thing, and why: one audit line before it has a number.
struct Deed<'a> {
    at: Moment,
    actor: &'a str,
    action: &'static str,
    subject: String,
    reason: &'a str,
    change: Option<ChangeRecord>,
}

impl<'a> Deed<'a> {
    fn of(operation: &'a Operation) -> Self {
        Self {
            at: operation.at,
            actor: &operation.actor,
            action: operation.kind.action(),
            subject: operation.subject.clone(),
            reason: &operation.reason,
            change: None,
        }
    }
}

impl State {
    fn refuse_if_failing(&self, call: StoreCall) -> Result<(), StoreError> {
        if self.failing.contains(&call) {
            return Err(StoreError::Io(format!("{call:?} was made to fail")));
        }
        Ok(())
    }

    fn note(&mut self, deed: Deed<'_>) {
        self.audit.push(AuditRecord {
            sequence: self.audit.len() as u64 + 1,
            at: deed.at,
            actor: deed.actor.to_owned(),
            action: deed.action.to_owned(),
            subject: deed.subject,
            reason: deed.reason.to_owned(),
            change: deed.change,
        });
    }

    fn version(&self, slot: &Slot, sha256: &str) -> Option<&VersionRecord> {
        self.versions
            .get(slot)?
            .iter()
            .find(|version| version.sha256 == sha256)
    }

    /// Keeps a binding among those that were made, and forgets what it pushes out.
    fn remember(&mut self, slot: &Slot, binding: BindingRecord) {
        let mut history = self.history.remove(slot).unwrap_or_default();
        history.push(binding);
        let gone: BTreeSet<u64> = bindings_to_forget(&history, |sha256| self.version(slot, sha256).is_some())
            .into_iter()
            .map(|binding| binding.generation)
            .collect();
        history.retain(|binding| !gone.contains(&binding.generation));
        self.history.insert(slot.clone(), history);
    }

    /// Adds the signatures that a known version came with this time.
    fn sign(&mut self, slot: &Slot, known: VersionRecord, again: &NewVersion) -> VersionRecord {
        let signatures = VersionSignature::merged(&known.signatures, &again.signatures);
        if signatures == known.signatures {
            return known;
        }
        let signed = VersionRecord { signatures, ..known };
        self.note(Deed {
            at: again.at,
            actor: &again.actor,
            action: "policy.sign",
            subject: signed.subject(),
            reason: &again.reason,
            change: None,
        });
        for version in self.versions.entry(slot.clone()).or_default() {
            if version.sha256 == signed.sha256 {
                version.clone_from(&signed);
            }
        }
        signed
    }

    fn next_generation(&mut self, slot: &Slot) -> u64 {
        let generation = self.generations.entry(slot.clone()).or_default();
        *generation += 1;
        *generation
    }
}

impl PolicyStore for MemoryStore {
    fn put_version(&self, version: NewVersion) -> Result<VersionRecord, StoreError> {
        let mut state = self.state();
        state.refuse_if_failing(StoreCall::PutVersion)?;
        let sha256 = hex::encode(Sha256::digest(&version.component));
        let slot = (version.scope.clone(), version.question);
        state.compiled.insert(sha256.clone(), version.compiled.clone());
        let known = state.version(&slot, &sha256).cloned();
        if let Some(known) = known.clone().filter(|known| known.name == version.name) {
            return Ok(state.sign(&slot, known, &version));
        }
        let signed = known.map(|known| known.signatures).unwrap_or_default();
        let record = VersionRecord {
            scope: version.scope,
            question: version.question,
            name: version.name,
            sha256: sha256.clone(),
            bytes: version.component.len() as u64,
            signatures: VersionSignature::merged(&signed, &version.signatures),
            actor: version.actor,
            reason: version.reason,
            at: version.at,
        };
        state.note(Deed {
            at: record.at,
            actor: &record.actor,
            action: "policy.put",
            subject: record.subject(),
            reason: &record.reason,
            change: None,
        });
        let versions = state.versions.entry(slot).or_default();
        versions.retain(|known| known.sha256 != sha256);
        versions.push(record.clone());
        state.components.insert(sha256, version.component);
        Ok(record)
    }

    fn versions(&self, scope: &Scope, question: QuestionKind) -> Result<Vec<VersionRecord>, StoreError> {
        Ok(self
            .state()
            .versions
            .get(&(scope.clone(), question))
            .cloned()
            .unwrap_or_default())
    }

    fn component(&self, sha256: &str) -> Result<Bytes, StoreError> {
        let state = self.state();
        state.refuse_if_failing(StoreCall::Component)?;
        state
            .components
            .get(sha256)
            .cloned()
            .ok_or_else(|| no_component(sha256))
    }

    fn compiled(&self, sha256: &str) -> Result<Option<Bytes>, StoreError> {
        Ok(self.state().compiled.get(sha256).cloned())
    }

    fn put_compiled(&self, sha256: &str, compiled: &[u8]) -> Result<(), StoreError> {
        let mut state = self.state();
        state.refuse_if_failing(StoreCall::PutCompiled)?;
        if !state.components.contains_key(sha256) {
            return Err(no_component(sha256));
        }
        state
            .compiled
            .insert(sha256.to_owned(), Bytes::copy_from_slice(compiled));
        Ok(())
    }

    fn bind(&self, binding: BindingRecord) -> Result<BindingRecord, StoreError> {
        let mut state = self.state();
        state.refuse_if_failing(StoreCall::Bind)?;
        let slot = (binding.scope.clone(), binding.question);
        if state.version(&slot, &binding.sha256).is_none() {
            return Err(StoreError::NotFound(binding.subject()));
        }
        let binding = BindingRecord {
            ended: None,
            generation: state.next_generation(&slot),
            ..binding
        };
        let previous = state.bindings.get(&slot).cloned();
        state.note(Deed {
            at: binding.at,
            actor: &binding.actor,
            action: binding.how.action(),
            subject: binding.subject(),
            reason: &binding.reason,
            change: Some(ChangeRecord::between(previous.as_ref(), Some(&binding))),
        });
        state.remember(&slot, binding.clone());
        let plain = || RolloutRecord::plain(binding.scope.clone(), binding.question);
        let rollout = state.rollouts.remove(&slot).unwrap_or_else(plain);
        state
            .rollouts
            .insert(slot.clone(), rollout.after_binding(&binding));
        state.bindings.insert(slot, binding.clone());
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
        let mut state = self.state();
        state.refuse_if_failing(StoreCall::Unbind)?;
        let slot = (scope.clone(), question);
        let Some(binding) = state.bindings.remove(&slot) else {
            return Err(StoreError::NotFound(format!("a {question} binding of {scope}")));
        };
        state.next_generation(&slot);
        let made = state.history.get_mut(&slot).into_iter().flatten();
        for made in made.filter(|made| made.generation == binding.generation) {
            made.ended = Some(HoldRecord {
                actor: actor.to_owned(),
                reason: reason.to_owned(),
                at,
            });
        }
        state.note(Deed {
            at,
            actor,
            action: "policy.unbind",
            subject: binding.subject(),
            reason,
            change: Some(ChangeRecord::between(Some(&binding), None)),
        });
        Ok(())
    }

    fn history(&self, scope: &Scope, question: QuestionKind) -> Result<Vec<BindingRecord>, StoreError> {
        Ok(self
            .state()
            .history
            .get(&(scope.clone(), question))
            .cloned()
            .unwrap_or_default())
    }

    fn rollout(&self, scope: &Scope, question: QuestionKind) -> Result<RolloutRecord, StoreError> {
        let found = self.state().rollouts.get(&(scope.clone(), question)).cloned();
        Ok(found.unwrap_or_else(|| RolloutRecord::plain(scope.clone(), question)))
    }

    fn rollouts(&self) -> Result<Vec<RolloutRecord>, StoreError> {
        let state = self.state();
        let rollouts = state.rollouts.values().filter(|rollout| !rollout.is_plain());
        Ok(rollouts.cloned().collect())
    }

    fn put_rollout(&self, rollout: RolloutRecord, deed: RolloutDeed) -> Result<(), StoreError> {
        let mut state = self.state();
        state.refuse_if_failing(StoreCall::PutRollout)?;
        let slot = (rollout.scope.clone(), rollout.question);
        if let Some(trial) = &rollout.trial
            && state.version(&slot, &trial.sha256).is_none()
        {
            return Err(StoreError::NotFound(deed.subject));
        }
        state.note(Deed {
            at: deed.at,
            actor: &deed.actor,
            action: deed.change.action(),
            subject: deed.subject,
            reason: &deed.reason,
            change: None,
        });
        state.rollouts.insert(slot, rollout);
        Ok(())
    }

    fn bindings(&self) -> Result<Vec<BindingRecord>, StoreError> {
        Ok(self.state().bindings.values().cloned().collect())
    }

    fn put_tenant(&self, tenant: TenantRecord, actor: &str, at: Moment) -> Result<(), StoreError> {
        let mut state = self.state();
        let subject = tenant.name.to_string();
        state.note(Deed {
            at,
            actor,
            action: "tenant.put",
            subject,
            reason: "",
            change: None,
        });
        state.tenants.insert(tenant.name.clone(), tenant);
        Ok(())
    }

    fn tenant(&self, name: &TenantName) -> Result<Option<TenantRecord>, StoreError> {
        Ok(self.state().tenants.get(name).cloned())
    }

    fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError> {
        Ok(self.state().tenants.values().cloned().collect())
    }

    fn put_key(&self, key: &str, record: KeyRecord, actor: &str, at: Moment) -> Result<(), StoreError> {
        if key.is_empty() {
            return Err(empty_key());
        }
        let mut state = self.state();
        state.note(Deed {
            at,
            actor,
            action: "key.put",
            subject: record.subject(),
            reason: "",
            change: None,
        });
        state.keys.insert(Sha256::digest(key).into(), record);
        Ok(())
    }

    fn admit(
        &self,
        admission: Admission<'_>,
        note: Option<Operation>,
        actor: &str,
        at: Moment,
    ) -> Result<usize, StoreError> {
        let mut state = self.state();
        state.refuse_if_failing(StoreCall::Admit)?;
        if admission.keys.iter().any(|(key, ..)| key.is_empty()) {
            return Err(empty_key());
        }
        if let Some(note) = note {
            state.note(Deed::of(&note));
        }
        let line = |action, subject| Deed {
            at,
            actor,
            action,
            subject,
            reason: "",
            change: None,
        };
        for tenant in &admission.tenants {
            if state.tenants.get(&tenant.name) != Some(tenant) {
                state.note(line("tenant.put", tenant.name.to_string()));
                state.tenants.insert(tenant.name.clone(), tenant.clone());
            }
        }
        let mut named = BTreeSet::new();
        for (key, principal, holder) in &admission.keys {
            let digest: [u8; 32] = Sha256::digest(key).into();
            named.insert(digest);
            let known = state.keys.get(&digest);
            if known.is_none_or(|known| known.principal != *principal || known.holder != *holder) {
                let record = admission.record(principal, holder.as_ref());
                state.note(line("key.put", record.subject()));
                state.keys.insert(digest, record);
            }
        }
        let revoked: Vec<KeyRecord> = state
            .keys
            .extract_if(|digest, record| record.label == admission.label && !named.contains(digest))
            .map(|(_, record)| record)
            .collect();
        let mut subjects: Vec<String> = revoked.iter().map(KeyRecord::subject).collect();
        subjects.sort();
        for subject in subjects {
            state.note(line("key.revoke", subject));
        }
        Ok(revoked.len())
    }

    fn key(&self, key: &str) -> Result<Option<KeyRecord>, StoreError> {
        let digest: [u8; 32] = Sha256::digest(key).into();
        Ok(self.state().keys.get(&digest).cloned())
    }

    fn put_proposal(&self, proposal: ProposalRecord) -> Result<(), StoreError> {
        let mut state = self.state();
        state.refuse_if_failing(StoreCall::PutProposal)?;
        let (action, actor, reason, at) = proposal.last_step();
        state.note(Deed {
            at,
            actor,
            action,
            subject: proposal.subject(),
            reason,
            change: None,
        });
        let (scope, (.., at)) = (proposal.scope.clone(), proposal.last_step());
        state.proposals.insert(proposal.id, proposal);
        let proposals: Vec<ProposalRecord> = state.proposals.values().cloned().collect();
        for id in proposals_to_forget(&proposals, &scope, at) {
            state.proposals.remove(&id);
        }
        Ok(())
    }

    fn proposals(&self) -> Result<Vec<ProposalRecord>, StoreError> {
        Ok(self.state().proposals.values().cloned().collect())
    }

    fn remove_version(&self, removal: Removal) -> Result<(), StoreError> {
        let mut state = self.state();
        let slot = (removal.scope, removal.question);
        let sha256 = &removal.sha256;
        let version = state.version(&slot, sha256).cloned();
        let version = version.ok_or_else(|| no_component(sha256))?;
        let bound = state.bindings.get(&slot).map(|binding| &binding.sha256);
        let trial = state
            .rollouts
            .get(&slot)
            .and_then(|rollout| rollout.trial.as_ref());
        version.refuse_if_used(bound, trial.map(|trial| &trial.sha256))?;
        state.note(Deed {
            at: removal.at,
            actor: &removal.actor,
            action: removal.cause.action(),
            subject: version.subject(),
            reason: &removal.reason,
            change: None,
        });
        state
            .versions
            .entry(slot)
            .or_default()
            .retain(|known| known.sha256 != *sha256);
        if !state
            .versions
            .values()
            .flatten()
            .any(|known| known.sha256 == *sha256)
        {
            state.components.remove(sha256);
            state.compiled.remove(sha256);
        }
        Ok(())
    }

    fn count_upload(&self, tenant: &TenantName, most: u32, at: Moment) -> Result<UploadTurn, StoreError> {
        let mut state = self.state();
        Ok(state.uploads.entry(tenant.clone()).or_default().count(most, at))
    }

    fn take_upload_back(&self, tenant: &TenantName, counted_at: Moment) -> Result<(), StoreError> {
        if let Some(window) = self.state().uploads.get_mut(tenant) {
            window.take_back(counted_at);
        }
        Ok(())
    }

    fn uploads(&self, tenant: &TenantName, at: Moment) -> Result<u32, StoreError> {
        Ok(self
            .state()
            .uploads
            .get(tenant)
            .map_or(0, |window| window.used(at)))
    }

    fn note(&self, operation: Operation) -> Result<(), StoreError> {
        let mut state = self.state();
        state.refuse_if_failing(StoreCall::Note)?;
        state.note(Deed::of(&operation));
        Ok(())
    }

    fn audit(&self, limit: usize) -> Result<Vec<AuditRecord>, StoreError> {
        Ok(self.state().audit.iter().rev().take(limit).cloned().collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(sha256: &str) -> BindingRecord {
        BindingRecord {
            scope: Scope::Platform,
            question: QuestionKind::Cost,
            name: "cheap".into(),
            sha256: sha256.into(),
            config: String::new(),
            budget: None,
            reuse: crate::Reuse::ByClass,
            how: crate::BindingChange::Activate,
            in_place_of: None,
            ended: None,
            generation: 0,
            actor: "op".into(),
            reason: String::new(),
            at: Moment(2),
        }
    }

    #[test]
    fn only_stored_versions_can_be_bound_and_generations_never_return() {
        let store = MemoryStore::new();
        assert!(matches!(store.bind(binding("00")), Err(StoreError::NotFound(_))));
        let version = store
            .put_version(NewVersion {
                scope: Scope::Platform,
                question: QuestionKind::Cost,
                name: "cheap".into(),
                component: Bytes::from_static(b"c"),
                compiled: Bytes::new(),
                signatures: Vec::new(),
                actor: "op".into(),
                reason: String::new(),
                at: Moment(1),
            })
            .unwrap();
        assert_eq!(store.bind(binding(&version.sha256)).unwrap().generation, 1);
        store
            .unbind(&Scope::Platform, QuestionKind::Cost, "op", "", Moment(3))
            .unwrap();
        assert_eq!(store.bind(binding(&version.sha256)).unwrap().generation, 3);
        store.fail(StoreCall::Bind);
        assert!(matches!(
            store.bind(binding(&version.sha256)),
            Err(StoreError::Io(_))
        ));
        store.heal();
        let actions: Vec<_> = store
            .audit(9)
            .unwrap()
            .into_iter()
            .map(|line| (line.sequence, line.action))
            .collect();
        let expected = [
            (4, "policy.activate"),
            (3, "policy.unbind"),
            (2, "policy.activate"),
            (1, "policy.put"),
        ];
        assert_eq!(actions, expected.map(|(n, a)| (n, a.to_owned())));
    }
}
