//! The traits between the host's parts. Whoever orders the stages of a request sees only these; the crates that
//! compute, move, remember and know implement them.

pub mod bus;
pub mod config_digest;
pub mod configuration;
pub mod control;
pub mod control_fake;
pub mod enforced;
pub mod engine;
pub mod engine_fake;
pub mod fleet;
pub mod fleet_fake;
pub mod kvset;
pub mod landing;
pub mod landing_fake;
pub mod loader;
pub mod loader_fake;
pub mod operation;
pub mod policy_log;
pub mod proposal;
pub mod quota;
mod retention;
pub mod sample;
pub mod shared_configuration;
pub mod shared_policies;
pub mod shared_policies_fake;
pub mod signature;
pub mod state;
pub mod state_fake;
pub mod state_values;
pub mod store;
pub mod store_fake;
pub mod text;
pub mod text_fake;
pub mod transport;
pub mod transport_fake;
pub mod uploads;
pub mod validity;
pub mod whole;

pub use bus::{
    AppliedReport, Bus, BusMessage, EffectQuestion, EffectReply, InstanceLoadReport, PRESENCE_LEASE,
    PrefixSummary, SitePresence, SiteState, SnapshotRequest, Visits,
};
pub use config_digest::config_digest;
pub use configuration::{
    Changer, ConfigDone, ConfigOrder, ConfigOutcome, ConfigRefusal, ConfigVersion, Configuration, Edits,
    FleetConfiguration, PendingConfig, SiteConfiguration,
};
pub use control::{
    Beat, ControlEntries, ControlEntry, ControlError, ControlEvent, ControlStream, Cursor, Invalidated,
    Invalidation, Running, StreamId,
};
pub use control_fake::{ControlFault, MemoryControl};
pub use enforced::{ENFORCED_KEPT, Enforced, EnforcedRecord, Successor};
pub use engine::{
    DecodeEvent, DecodeJob, Engine, EngineDescription, EngineError, EngineLoad, FetchReport, FinishReason,
    HeldPrefix, KeepJob, KvCache, KvEvent, PrefillJob, PrefillReport, Retention, Role, Sampling,
    TokenLogprobs,
};
pub use engine_fake::{EngineFault, FakeEngine};
pub use fleet::{
    Claim, Fleet, Forecast, InstanceOutcome, Member, MemberState, NoSuchInstance, OnTheWay, Service, Visit,
};
pub use fleet_fake::FakeFleet;
pub use kvset::{KvMade, KvPast, KvPiece, KvSet, KvSetError};
pub use landing::{LandedSet, Landing};
pub use landing_fake::{LandingFault, MemoryLanding};
pub use loader::{
    Binding, COMPILE_TIME, COMPILER_BUSY, Finding, PolicyLoader, PolicyOwner, PolicyRejection, PolicyReport,
    Rehearsal, Reuse, Scope, Severity,
};
pub use loader_fake::FakeLoader;
pub use operation::{Operation, OperationKind};
pub use policy_log::{LogLevel, LogOccasion, PolicyLogLine};
pub use proposal::{ProposalRecord, ProposalState, ProposedChange, SlotState, Verdict, VerdictKind};
pub use quota::{QuotaBook, Quotas};
pub use retention::{BINDINGS_KEPT, PROPOSALS_KEPT, bindings_to_forget, proposals_to_forget};
pub use sample::{Reading, Sample};
pub use shared_configuration::{FleetVersion, SharedConfig, SharedConfiguration, SiteRuns};
pub use shared_policies::{SharedError, SharedPolicies, SharedSlot};
pub use shared_policies_fake::MemoryShared;
pub use signature::{
    BadSignatureText, FakeSignatures, NoSignatures, SIGNATURES_MAX_BYTES, SIGNED_PREFIX, Signatures, Signed,
    VersionSignature,
};
pub use state::{Entry, PolicyState, StateQuota, StateSpace, StateUsage, StateUsed};
pub use state_fake::MemoryState;
pub use state_values::{StateValue, StateValues};
pub use store::{
    Admission, AuditRecord, BindingChange, BindingRecord, ChangeRecord, HoldRecord, KeyRecord, NewVersion,
    PolicyStore, Principal, Removal, RemovalCause, RolloutChange, RolloutDeed, RolloutRecord, StoreError,
    TenantRecord, TrialRecord, VersionRecord,
};
pub use store_fake::{MemoryStore, StoreCall};
pub use text::{ChatMessage, TemplateValues, TextError, TextModel, TextStream};
pub use text_fake::{FAKE_END, FAKE_VOCABULARY, FakeText};
pub use transport::{
    Evidence, Fidelity, KvOrder, KvSource, LinkReading, OrderPurpose, PieceSink, Pull, PullEvent, PullReport,
    QuarantinedSet, TransferError, Transport,
};
pub use transport_fake::NoLinks;
pub use uploads::{UploadTurn, UploadWindow};
pub use validity::{
    AlwaysValid, Applied, AsOf, Begun, CacheValidity, Deciding, Given, InUse, Order, Patience, SiteApplied,
    SiteEffect, Stale, VersionRule,
};
pub use whole::{
    AnswerBody, AnswerHead, CacheSalt, Handed, Offer, Prefilling, WholeAnswer, WholeJob, WholePath,
    WholeRequests,
};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Tells a job that nobody waits for its result. Cheap to clone; checked between layers and between tokens.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<CancelState>);

#[derive(Debug, Default)]
struct CancelState {
    flag: AtomicBool,
    told: Notify,
}

impl Cancel {
    /// A job that runs until it is told otherwise.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells the job to stop.
    pub fn cancel(&self) {
        self.0.flag.store(true, Ordering::Release);
        self.0.told.notify_waiters();
    }

    /// Whether the job should stop.
    pub fn is_cancelled(&self) -> bool {
        self.0.flag.load(Ordering::Acquire)
    }

    /// Returns when the job should stop.
    pub async fn cancelled(&self) {
        let mut told = std::pin::pin!(self.0.told.notified());
        // Listen first, then look: a cancel between the two is not missed.
        told.as_mut().enable();
        if !self.is_cancelled() {
            told.await;
        }
    }

    /// Cancels when the returned guard is dropped.
    pub fn on_drop(&self) -> CancelOnDrop {
        CancelOnDrop(self.clone())
    }
}

/// Cancels its job when dropped.
#[derive(Debug)]
pub struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
