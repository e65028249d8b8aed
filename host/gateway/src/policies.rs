//! The policy desk: the one place through which policies change, whichever door the change came in by.
//!
//! A change goes `check → compile → load → store → bind → swap`. Everything that a component can be at fault for comes
//! before the store, so a bad upload changes nothing and leaves nothing; the swap is one pointer and cannot fail, so
//! the table never shows what the store does not hold. Requests take the table once, at admit, and finish on it.
//!
//! Every call but [`PolicyDesk::table`] blocks, on the disk or for as long as compiling takes: call them with
//! `spawn_blocking`.

mod approval;
mod bound;
mod change;
mod enforce;
mod error;
mod load;
mod missing;
mod order;
mod quota;
mod restore;
mod rollout;
mod shared;
mod signing;
mod tally;
#[cfg(test)]
mod tests;
mod unavailable;
mod usage;

pub use approval::{Decision, FourEyes};
pub use error::DeskError;
pub use order::{
    Activation, By, Done, Order, PolicySlot, RollBack, Sender, Stored, TrialOrder, Upload, UploadDone,
    Uploaded,
};
pub use quota::CountedUpload;
pub use restore::{NotRestored, Restored};
pub use shared::AdoptError;
pub use tally::{Breach, Counts};
pub use usage::{LogLines, PolicyUsage, PolicyUse, Share, Usage};

use self::load::Told;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use portolan_base::{Clock, TenantName};
use portolan_decide::PolicyTable;
use portolan_policy::{NameTables, QuestionKind, Scope};
use portolan_ports::{
    Binding, BindingRecord, NoSignatures, PolicyLoader, PolicyLogLine, PolicyReport, PolicyState,
    PolicyStore, QuotaBook, Quotas, Sample, SharedPolicies, Signatures, VersionRecord,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// Gives the tables behind the indices, as the fleet knows them; the desk fills in the tenant.
pub type NamesSource = Arc<dyn Fn() -> Arc<NameTables> + Send + Sync>;

/// What a [`PolicyDesk`] is made of.
pub struct DeskParts {
    /// Remembers versions and bindings.
    pub store: Arc<dyn PolicyStore>,
    /// Turns bytes into policies.
    pub loader: Arc<dyn PolicyLoader>,
    /// What a policy's indices stand for.
    pub names: NamesSource,
    /// Reads the time.
    pub clock: Arc<dyn Clock>,
}

/// Changes policies, and holds the table of those that are active.
pub struct PolicyDesk {
    parts: DeskParts,
    table: ArcSwap<PolicyTable>,
    /// Held while the store and the table change together, so that their order is the same in both. Compiling and
    /// loading happen outside it: one tenant's slow component does not hold up another's change.
    changing: Mutex<()>,
    signatures: Arc<dyn Signatures>,
    four_eyes: Option<FourEyes>,
    /// Held while a proposal is made or decided on, so that numbers are unique and each is decided once.
    proposing: Mutex<()>,
    /// Locked for moments, by requests that settle.
    tallies: Mutex<tally::Tallies>,
    /// As `tallies`.
    used: Mutex<usage::Ledger>,
    quotas: QuotaBook,
    state: Option<Arc<dyn PolicyState>>,
    shared: Option<Arc<dyn SharedPolicies>>,
    /// Slots that were changed here while the fleet could not be told.
    untold: Mutex<BTreeSet<PolicySlot>>,
    /// Bindings that do not answer. Locked for moments, never while anything is loaded.
    missing: Mutex<BTreeMap<PolicySlot, missing::Missing>>,
}

impl fmt::Debug for PolicyDesk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyDesk")
            .field("table", &self.table.load())
            .finish_non_exhaustive()
    }
}

impl PolicyDesk {
    /// A desk whose table is empty until [`PolicyDesk::restore`] has read the bindings.
    pub fn new(parts: DeskParts) -> Self {
        Self {
            parts,
            table: ArcSwap::from_pointee(PolicyTable::new()),
            changing: Mutex::new(()),
            signatures: Arc::new(NoSignatures),
            four_eyes: None,
            proposing: Mutex::new(()),
            tallies: Mutex::default(),
            used: Mutex::default(),
            quotas: QuotaBook::default(),
            state: None,
            shared: None,
            untold: Mutex::default(),
            missing: Mutex::default(),
        }
    }

    /// The same desk, where `signatures` says whom a component must come from.
    #[must_use]
    pub fn demanding(mut self, signatures: Arc<dyn Signatures>) -> Self {
        self.signatures = signatures;
        self
    }

    /// The same desk, where a change of the platform's policies waits for a second operator.
    #[must_use]
    pub fn with_four_eyes(mut self, four_eyes: FourEyes) -> Self {
        self.four_eyes = Some(four_eyes);
        self
    }

    /// The same desk, which holds tenants to these quotas.
    #[must_use]
    pub fn with_quotas(mut self, quotas: QuotaBook) -> Self {
        self.quotas = quotas;
        self
    }

    /// The same desk, which tells what policies keep in `state`.
    #[must_use]
    pub fn telling_of(mut self, state: Arc<dyn PolicyState>) -> Self {
        self.state = Some(state);
        self
    }

    fn quotas_of_tenant(&self, tenant: &TenantName) -> Quotas {
        self.quotas.of(&Scope::Tenant(tenant.clone()))
    }

    /// The active policies at this moment. Does not block.
    pub fn table(&self) -> Arc<PolicyTable> {
        self.table.load_full()
    }

    /// Has a policy answer that no component stands behind.
    #[cfg(test)]
    pub(crate) fn bind_for_test(
        &self,
        scope: Scope,
        question: QuestionKind,
        policy: Arc<dyn portolan_policy::Policy>,
    ) {
        self.table
            .store(Arc::new(self.table.load().with(scope, question, policy)));
    }

    /// Says what an upload of `component` would be told, and changes nothing.
    pub fn check(&self, question: Option<QuestionKind>, component: &[u8]) -> PolicyReport {
        self.parts.loader.check(question, component, None)
    }

    /// What the active policies did so far, for the metrics page.
    pub fn samples(&self) -> Vec<Sample> {
        let mut samples = self.parts.loader.samples();
        samples.extend(self.missing_samples());
        samples
    }

    /// The latest log lines of a scope's policies at this host, oldest first.
    pub fn log_lines(&self, scope: &Scope) -> Vec<PolicyLogLine> {
        self.parts.loader.log_lines(scope)
    }

    /// Whether there is such a tenant.
    pub fn knows(&self, tenant: &TenantName) -> Result<bool, DeskError> {
        Ok(self.parts.store.tenant(tenant)?.is_some())
    }

    /// Every binding in force.
    pub fn list(&self) -> Result<Vec<BindingRecord>, DeskError> {
        Ok(self.parts.store.bindings()?)
    }

    /// Every stored version of one slot, oldest first.
    pub fn versions(&self, slot: &PolicySlot) -> Result<Vec<VersionRecord>, DeskError> {
        Ok(self.parts.store.versions(&slot.scope, slot.question)?)
    }

    /// The stored version of one slot that is this very component, if there is one.
    pub fn version_of(
        &self,
        slot: &PolicySlot,
        component: &[u8],
    ) -> Result<Option<VersionRecord>, DeskError> {
        let same_size = |version: &VersionRecord| version.bytes == component.len() as u64;
        // One that does not read back is not the same: storing it again mends it.
        let same = |version: &VersionRecord| {
            self.parts
                .store
                .component(&version.sha256)
                .is_ok_and(|c| c == component)
        };
        Ok(self.versions(slot)?.into_iter().filter(same_size).find(same))
    }

    /// Every binding that was ever made in one slot, oldest first: what to roll back to.
    pub fn history(&self, slot: &PolicySlot) -> Result<Vec<BindingRecord>, DeskError> {
        Ok(self.parts.store.history(&slot.scope, slot.question)?)
    }

    /// What the loader needs to know, with the name tables of the scope.
    fn binding(&self, slot: &PolicySlot, told: Told<'_>) -> Binding {
        Binding {
            scope: slot.scope.clone(),
            question: slot.question,
            name: told.name.to_owned(),
            version: told.sha256.to_owned(),
            config: told.config.to_owned(),
            names: self.names(slot),
            reuse: told.reuse,
        }
    }

    /// The name tables of a slot: the fleet's, with the tenant it belongs to.
    fn names(&self, slot: &PolicySlot) -> Arc<NameTables> {
        let names = (self.parts.names)();
        match &slot.scope {
            Scope::Platform => names,
            Scope::Tenant(tenant) => Arc::new(NameTables {
                tenant: tenant.to_string(),
                ..NameTables::clone(&names)
            }),
        }
    }
}
