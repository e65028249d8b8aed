//! REMEMBERS: policies, bindings, tenants, keys, audit. What a call acknowledged survives `kill -9`.

use crate::Reuse;
use crate::operation::Operation;
use crate::{ENFORCED_KEPT, EnforcedRecord, ProposalRecord, Scope, UploadTurn, VersionSignature};
use bytes::Bytes;
use portolan_base::{Moment, OperatorName, TenantName};
use portolan_decide::{Budget, TrialStage};
use portolan_policy::QuestionKind;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A version to be kept.
#[derive(Clone, Debug)]
pub struct NewVersion {
    /// Whose policy.
    pub scope: Scope,
    /// Which question it answers.
    pub question: QuestionKind,
    /// The policy's name.
    pub name: String,
    /// The component.
    pub component: Bytes,
    /// Its compiled artefact.
    pub compiled: Bytes,
    /// What it is signed with.
    pub signatures: Vec<VersionSignature>,
    /// Who uploads it.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Moment,
}

/// A version that is kept. Immutable, but for signatures that are added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRecord {
    /// Whose policy.
    pub scope: Scope,
    /// Which question it answers.
    pub question: QuestionKind,
    /// The policy's name.
    pub name: String,
    /// SHA-256 of the component, hexadecimal.
    pub sha256: String,
    /// Size of the component in bytes.
    pub bytes: u64,
    /// What it is signed with. They were good, or not demanded, when they came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<VersionSignature>,
    /// Who uploaded it.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Moment,
}

impl VersionRecord {
    /// The version in words, as the audit log names it.
    pub fn subject(&self) -> String {
        subject(&self.scope, self.question, &self.name, &self.sha256)
    }
}

impl VersionRecord {
    /// Refuses to let go of a version that is bound or on trial.
    ///
    /// # Errors
    /// [`StoreError::InUseVersion`], which says what to do.
    pub fn refuse_if_used(&self, bound: Option<&String>, trial: Option<&String>) -> Result<(), StoreError> {
        let is_it = |sha256: Option<&String>| sha256.is_some_and(|sha256| *sha256 == self.sha256);
        let why = match (is_it(bound), is_it(trial)) {
            (true, _) => "it is bound; activate another version or unbind it first",
            (false, true) => "it is on trial; withdraw it first",
            (false, false) => return Ok(()),
        };
        Err(StoreError::InUseVersion {
            version: self.subject(),
            why,
        })
    }
}

fn subject(scope: &Scope, question: QuestionKind, name: &str, sha256: &str) -> String {
    format!("{scope}, {question}: {name} {sha256}")
}

/// Which version answers a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingRecord {
    /// For whom.
    pub scope: Scope,
    /// Which question.
    pub question: QuestionKind,
    /// The policy's name.
    pub name: String,
    /// SHA-256 of the component, hexadecimal.
    pub sha256: String,
    /// The binding's own text for `configure`.
    pub config: String,
    /// What it may cost before the version before it comes back; `None`: whatever it costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Whether its instances are kept from call to call.
    #[serde(default, skip_serializing_if = "Reuse::is_by_class")]
    pub reuse: Reuse,
    /// How it came about.
    #[serde(default)]
    pub how: BindingChange,
    /// The version in whose place the host put it, where it did so by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place_of: Option<EnforcedRecord>,
    /// By whom, why and when it was unbound; `None`: it is in force, or another binding followed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<HoldRecord>,
    /// Rises by one with each change of this binding, an `unbind` included.
    pub generation: u64,
    /// Who bound it.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Moment,
}

impl BindingRecord {
    /// The binding in words, as the audit log names it.
    pub fn subject(&self) -> String {
        subject(&self.scope, self.question, &self.name, &self.sha256)
    }
}

/// How a binding came about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BindingChange {
    /// It was chosen.
    #[default]
    Activate,
    /// It was on trial before.
    Promote,
    /// It was in force before.
    RollBack,
}

impl BindingChange {
    /// The word of the audit log.
    pub const fn action(self) -> &'static str {
        match self {
            Self::Activate => "policy.activate",
            Self::Promote => "policy.promote",
            Self::RollBack => "policy.rollback",
        }
    }
}

/// A version that is tried beside, or before, the one that is bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialRecord {
    /// The policy's name.
    pub name: String,
    /// SHA-256 of the component, hexadecimal.
    pub sha256: String,
    /// The text for `configure`.
    pub config: String,
    /// Whether its instances are kept from call to call. It becomes the binding's when the version is promoted.
    #[serde(default, skip_serializing_if = "Reuse::is_by_class")]
    pub reuse: Reuse,
    /// How far it has come.
    #[serde(flatten)]
    pub stage: TrialStage,
    /// What it may cost before it is withdrawn. It becomes the binding's when the version is promoted.
    pub budget: Budget,
    /// Who put it on trial.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Moment,
}

/// Who stopped, held or ended something, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldRecord {
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// When, or since when.
    pub at: Moment,
}

/// What holds for one question beside its binding. It outlives the binding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutRecord {
    /// For whom.
    pub scope: Scope,
    /// Which question.
    pub question: QuestionKind,
    /// The version on trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<TrialRecord>,
    /// Set while the binding may not be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<HoldRecord>,
    /// Set while the question's fallback answers in place of every version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<HoldRecord>,
    /// What the host took out of force by itself, oldest first: the latest [`ENFORCED_KEPT`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub enforced: Vec<EnforcedRecord>,
}

impl RolloutRecord {
    /// Nothing on trial, nothing held.
    pub const fn plain(scope: Scope, question: QuestionKind) -> Self {
        Self {
            scope,
            question,
            trial: None,
            pinned: None,
            disabled: None,
            enforced: Vec::new(),
        }
    }

    /// Whether nothing is on trial and nothing held.
    pub const fn is_plain(&self) -> bool {
        self.trial.is_none() && self.pinned.is_none() && self.disabled.is_none()
    }

    /// What is left when `binding` was made: a version that is bound is on trial no more.
    #[must_use]
    pub fn after_binding(mut self, binding: &BindingRecord) -> Self {
        self.trial = self.trial.filter(|trial| trial.sha256 != binding.sha256);
        match &binding.in_place_of {
            Some(enforced) => self.with_enforced(enforced.clone()),
            None => self,
        }
    }

    /// The same, which tells what the host took out of force.
    #[must_use]
    pub fn with_enforced(mut self, enforced: EnforcedRecord) -> Self {
        self.enforced.push(enforced);
        let too_many = self.enforced.len().saturating_sub(ENFORCED_KEPT);
        self.enforced.drain(..too_many);
        self
    }
}

/// What was done to a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutChange {
    /// A version is asked and not obeyed.
    Shadow,
    /// A version answers a share.
    Canary,
    /// A version is on trial no more.
    Withdraw,
    /// The binding may not be changed.
    Pin,
    /// It may be changed again.
    Unpin,
    /// The fallback answers.
    Disable,
    /// The versions answer again.
    Enable,
}

impl RolloutChange {
    /// The word of the audit log.
    pub const fn action(self) -> &'static str {
        match self {
            Self::Shadow => "policy.shadow",
            Self::Canary => "policy.canary",
            Self::Withdraw => "policy.withdraw",
            Self::Pin => "policy.pin",
            Self::Unpin => "policy.unpin",
            Self::Disable => "policy.disable",
            Self::Enable => "policy.enable",
        }
    }
}

/// A change of a rollout, as the audit log tells it.
#[derive(Clone, Debug)]
pub struct RolloutDeed {
    /// What was done.
    pub change: RolloutChange,
    /// To what, in words.
    pub subject: String,
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Moment,
}

/// A tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantRecord {
    /// The tenant's name.
    pub name: TenantName,
    /// Where its data may be processed; empty: no restriction.
    pub jurisdiction: String,
    /// Its class, by name.
    pub user_class: String,
}

/// A key, without the key: only its keyed hash is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// Whom it lets in.
    pub principal: Principal,
    /// A label for people.
    pub label: String,
    /// The person or machine that holds it, where the configuration names one: what tells two operators apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<OperatorName>,
}

impl KeyRecord {
    /// The key in words, as the audit log names it: its label and whom it lets in, never the key.
    pub fn subject(&self) -> String {
        match (&self.principal, &self.holder) {
            (Principal::Operator, None) => format!("key {:?} of the operator", self.label),
            (Principal::Operator, Some(name)) => format!("key {:?} of operator {name}", self.label),
            (Principal::Tenant(name), _) => format!("key {:?} of tenant {name}", self.label),
        }
    }

    /// Who is calling, as the audit log names them.
    pub fn actor(&self) -> String {
        match (&self.principal, &self.holder) {
            (Principal::Operator, None) => "operator".to_owned(),
            (Principal::Operator, Some(name)) => format!("operator {name}"),
            (Principal::Tenant(name), _) => format!("tenant {name}"),
        }
    }
}

/// Who is let in, as a configuration says it.
#[derive(Clone, Debug, Default)]
pub struct Admission<'a> {
    /// What keys of the configuration are labelled.
    pub label: &'a str,
    /// Its tenants.
    pub tenants: Vec<TenantRecord>,
    /// Its keys and whom they let in. One that is known under another label, and lets in the same, is left alone.
    pub keys: Vec<(&'a str, Principal, Option<OperatorName>)>,
}

impl Admission<'_> {
    /// The record of a key.
    pub fn record(&self, principal: &Principal, holder: Option<&OperatorName>) -> KeyRecord {
        KeyRecord {
            principal: principal.clone(),
            label: self.label.to_owned(),
            holder: holder.cloned(),
        }
    }
}

/// Who is calling.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Principal {
    /// The platform's operator.
    Operator,
    /// A tenant.
    Tenant(TenantName),
}

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Position in the log, from 1, without gaps.
    pub sequence: u64,
    /// When.
    pub at: Moment,
    /// Who.
    pub actor: String,
    /// What was done, such as `policy.activate`.
    pub action: String,
    /// To what.
    pub subject: String,
    /// Why.
    pub reason: String,
    /// What it was before and what it is since, where a binding changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<ChangeRecord>,
}

impl AuditRecord {
    /// Whether the line is about a tenant, or about the platform's policies where `tenant` is `_platform`.
    pub fn is_about(&self, tenant: &str) -> bool {
        let scope = match tenant {
            "_platform" => Scope::Platform.to_string(),
            name => format!("tenant {name}"),
        };
        let subject = &self.subject;
        let whose = subject.split_once(", ").map_or(&**subject, |(whose, _)| whose);
        whose == scope
            || (self.action == "tenant.put" && subject == tenant)
            || (self.action.starts_with("key.") && subject.ends_with(&format!(" of {scope}")))
    }
}

/// Longest configuration that an audit line holds in full, in bytes. The digest of a longer one tells whether it was the
/// same.
const AUDITED_CONFIG_BYTES: usize = 4096;

/// A change of a binding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeRecord {
    /// SHA-256 of the component that was bound before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// SHA-256 of the component that is bound since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Its configuration, or the beginning of a long one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// SHA-256 of the whole configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_sha256: Option<String>,
    /// Whether its instances are kept from call to call, where its class does not decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reuse: Option<Reuse>,
}

impl ChangeRecord {
    /// A change from one binding to another.
    pub fn between(previous: Option<&BindingRecord>, next: Option<&BindingRecord>) -> Self {
        let sha256 = |binding: &BindingRecord| binding.sha256.clone();
        let beginning = |config: &str| {
            let end = config.floor_char_boundary(AUDITED_CONFIG_BYTES);
            config[..end].to_owned()
        };
        Self {
            previous: previous.map(sha256),
            next: next.map(sha256),
            config: next.map(|binding| beginning(&binding.config)),
            config_sha256: next.map(|binding| hex::encode(Sha256::digest(&binding.config))),
            reuse: next
                .map(|binding| binding.reuse)
                .filter(|reuse| !reuse.is_by_class()),
        }
    }
}

/// A version to be forgotten.
#[derive(Clone, Debug)]
pub struct Removal {
    /// Whose.
    pub scope: Scope,
    /// Of which question.
    pub question: QuestionKind,
    /// SHA-256 of the component, hexadecimal.
    pub sha256: String,
    /// What asks for it.
    pub cause: RemovalCause,
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Moment,
}

/// Why a version is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalCause {
    /// Somebody asked for it.
    Asked,
    /// A newer one needed its place.
    Quota,
}

impl RemovalCause {
    /// The word of the audit log.
    pub const fn action(self) -> &'static str {
        match self {
            Self::Asked => "policy.remove",
            Self::Quota => "policy.prune",
        }
    }
}

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such thing.
    #[error("{0} does not exist")]
    NotFound(String),
    /// The store's data does not read back as it was written.
    #[error("the store is damaged at {place}: {detail}")]
    Damaged {
        /// Which file or tree.
        place: String,
        /// What was found.
        detail: String,
    },
    /// Another process has the store open.
    #[error("the store at {0} is open in another process; reach that host over HTTP instead")]
    InUse(String),
    /// The disk failed.
    #[error("the store could not be written or read: {0}")]
    Io(String),
    /// What was to be stored cannot be.
    #[error("{what} cannot be stored: {why}")]
    Invalid {
        /// What was to be stored.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// A version that is needed cannot be forgotten.
    #[error("{version} cannot be removed: {why}")]
    InUseVersion {
        /// The version in words.
        version: String,
        /// What needs it, and what to do.
        why: &'static str,
    },
    /// A later release wrote the store.
    #[error(
        "the store has schema {found}, this host knows schemas up to {known}; start the release that wrote it"
    )]
    NewerSchema {
        /// The schema found.
        found: u32,
        /// The newest schema this host reads.
        known: u32,
    },
}

/// Keeps what must outlive the process. Calls block on the disk: use them off the request path, `authenticate` and
/// `tenant` excepted.
pub trait PolicyStore: Send + Sync {
    /// Keeps a version. Storing the same component again under the same name returns the record of the first time; under
    /// another name, it is the newest version from then on, with that name, its uploader and its reason. The signatures
    /// that came along are added to it.
    fn put_version(&self, version: NewVersion) -> Result<VersionRecord, StoreError>;

    /// All versions of one question, oldest first.
    fn versions(&self, scope: &Scope, question: QuestionKind) -> Result<Vec<VersionRecord>, StoreError>;

    /// The bytes of a component, verified against its name.
    fn component(&self, sha256: &str) -> Result<Bytes, StoreError>;

    /// The compiled artefact of a component, if there is one.
    fn compiled(&self, sha256: &str) -> Result<Option<Bytes>, StoreError>;

    /// Replaces the compiled artefact of a component.
    fn put_compiled(&self, sha256: &str, compiled: &[u8]) -> Result<(), StoreError>;

    /// Makes a stored version answer a question. `generation` and `at` of `binding` are the store's to set: the first
    /// is ignored, the second kept. A trial of the same version ends with it.
    fn bind(&self, binding: BindingRecord) -> Result<BindingRecord, StoreError>;

    /// Removes a binding; the fallback answers from then on.
    fn unbind(
        &self,
        scope: &Scope,
        question: QuestionKind,
        actor: &str,
        reason: &str,
        at: Moment,
    ) -> Result<(), StoreError>;

    /// Every binding that was ever made for one question, oldest first; the one in force, if any, is the last. What
    /// a roll-back chooses from. A generation that is missing here was taken by an `unbind`.
    fn history(&self, scope: &Scope, question: QuestionKind) -> Result<Vec<BindingRecord>, StoreError>;

    /// What holds for one question beside its binding; a plain record when nothing does.
    fn rollout(&self, scope: &Scope, question: QuestionKind) -> Result<RolloutRecord, StoreError>;

    /// Every rollout that is not plain.
    fn rollouts(&self) -> Result<Vec<RolloutRecord>, StoreError>;

    /// Replaces what holds for one question beside its binding. A trial of a version that is not stored is
    /// [`StoreError::NotFound`].
    fn put_rollout(&self, rollout: RolloutRecord, deed: RolloutDeed) -> Result<(), StoreError>;

    /// Every binding.
    fn bindings(&self) -> Result<Vec<BindingRecord>, StoreError>;

    /// Adds or changes a tenant.
    fn put_tenant(&self, tenant: TenantRecord, actor: &str, at: Moment) -> Result<(), StoreError>;

    /// A tenant's record.
    fn tenant(&self, name: &TenantName) -> Result<Option<TenantRecord>, StoreError>;

    /// Every tenant.
    fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError>;

    /// Lets a key in, or changes whom it lets in. An empty key is [`StoreError::Invalid`].
    fn put_key(&self, key: &str, record: KeyRecord, actor: &str, at: Moment) -> Result<(), StoreError>;

    /// Lets in whom `admission` names and revokes the keys of its label that it does not name; gives how many. Tenants that
    /// it does not name keep their data. All of it is one change, `note` the first of its lines in the audit log: on disk
    /// when this returns, and after an error nothing of it counts. What is so already is not written, and without a note
    /// no line tells of it. An empty key is [`StoreError::Invalid`].
    fn admit(
        &self,
        admission: Admission<'_>,
        note: Option<Operation>,
        actor: &str,
        at: Moment,
    ) -> Result<usize, StoreError>;

    /// Whom a key lets in. Takes the same time whether or not the key exists.
    fn authenticate(&self, key: &str) -> Result<Option<Principal>, StoreError> {
        Ok(self.key(key)?.map(|record| record.principal))
    }

    /// What is known of a key. Takes the same time whether or not the key exists.
    fn key(&self, key: &str) -> Result<Option<KeyRecord>, StoreError>;

    /// Keeps a proposal, or what became of it; the audit log tells which.
    fn put_proposal(&self, proposal: ProposalRecord) -> Result<(), StoreError>;

    /// Every proposal, oldest first.
    fn proposals(&self) -> Result<Vec<ProposalRecord>, StoreError>;

    /// Forgets a version; its component and artefact go with the last version of any scope that has them. One that is
    /// bound or on trial is [`StoreError::InUseVersion`].
    fn remove_version(&self, removal: Removal) -> Result<(), StoreError>;

    /// Counts an upload of a tenant, unless `most` of the hour before `at` were counted.
    fn count_upload(&self, tenant: &TenantName, most: u32, at: Moment) -> Result<UploadTurn, StoreError>;

    /// Takes back an upload of a tenant that was counted at `counted_at`. Where none was, nothing changes.
    fn take_upload_back(&self, tenant: &TenantName, counted_at: Moment) -> Result<(), StoreError>;

    /// How many uploads of a tenant were counted in the hour before `at`.
    fn uploads(&self, tenant: &TenantName, at: Moment) -> Result<u32, StoreError>;

    /// Writes what an operator does to a running host into the audit log. On disk when this returns.
    fn note(&self, operation: Operation) -> Result<(), StoreError>;

    /// The newest lines of the audit log, newest first.
    fn audit(&self, limit: usize) -> Result<Vec<AuditRecord>, StoreError>;
}
