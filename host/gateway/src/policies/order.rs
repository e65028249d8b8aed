//! What is asked of the desk, and what it answers.

use bytes::Bytes;
use portolan_decide::{Budget, TrialStage};
use portolan_policy::{QuestionKind, Scope};
use portolan_ports::{
    BindingRecord, PolicyReport, ProposalRecord, Reuse, RolloutRecord, SlotState, VersionRecord,
};
use serde::Serialize;
use std::fmt;
use std::sync::Weak;

/// Who changes what spent its budget, in the audit log.
pub(super) const BUDGET: &str = "budget";

/// Whose answer to which question: what at most one policy at a time is bound to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicySlot {
    /// For whom.
    pub scope: Scope,
    /// Which question.
    pub question: QuestionKind,
}

impl PolicySlot {
    /// The slot of `scope` for `question`.
    pub const fn new(scope: Scope, question: QuestionKind) -> Self {
        Self { scope, question }
    }
}

impl fmt::Display for PolicySlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.scope, self.question)
    }
}

/// Who asks for a change, and why: for the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct By {
    /// Who.
    pub actor: String,
    /// Why; may be empty.
    pub reason: String,
    /// What lets it through where a second person is needed.
    pub(super) authority: Authority,
}

/// On whose word a change is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Authority {
    /// The actor's own.
    #[default]
    Own,
    /// The host's, which enforces what was agreed on before.
    Host,
    /// A second person's, for a slot that stands like this.
    Approved(Box<SlotState>),
}

impl By {
    /// `actor` asks because of `reason`.
    pub fn new(actor: &str, reason: &str) -> Self {
        Self {
            actor: actor.to_owned(),
            reason: reason.to_owned(),
            authority: Authority::Own,
        }
    }

    /// The host itself acts.
    pub(super) fn host(actor: &str, reason: &str) -> Self {
        Self {
            authority: Authority::Host,
            ..Self::new(actor, reason)
        }
    }
}

/// Whoever sent a component. Compiling takes minutes on a busy host: what a sender asked for that does not wait any more is
/// not put into force over what was put there since.
#[derive(Clone, Debug, Default)]
pub enum Sender {
    /// Wants it whatever happens: a file in a watched folder.
    #[default]
    Stays,
    /// Waits for the answer as long as somebody holds this.
    Waits(Weak<()>),
}

impl Sender {
    /// Whether nobody waits for what comes of it.
    pub(super) fn has_left(&self) -> bool {
        matches!(self, Self::Waits(waits) if waits.strong_count() == 0)
    }
}

/// A component to be kept, and perhaps made active.
#[derive(Clone, Debug)]
pub struct Upload {
    /// What it is for.
    pub slot: PolicySlot,
    /// The policy's name, see [`portolan_base::id::check_name`].
    pub name: String,
    /// The component.
    pub component: Bytes,
    /// The binding's text for `configure`, JSON by convention, at most 64 KiB; `None`: that of the binding in force
    /// stays, where it is of the same name. A push checks the component with it and does not keep it.
    pub config: Option<String>,
    /// The text of its signatures, see [`portolan_ports::VersionSignature::read_all`]; empty: it has none.
    pub signature: String,
    /// What it may cost before the version before it comes back; `None`: whatever it costs. A push does not keep it.
    pub budget: Option<Budget>,
    /// Whether its instances are kept from call to call. A push does not keep it.
    pub reuse: Reuse,
}

/// A stored version to be made active.
#[derive(Clone, Debug)]
pub struct Activation {
    /// What it is for.
    pub slot: PolicySlot,
    /// SHA-256 of the component, hexadecimal.
    pub sha256: String,
    /// The binding's text for `configure`; `None` takes the text this version was last bound with, so that a roll-back
    /// brings back the version as it was, or that of the binding in force, of the same name, where it never was.
    pub config: Option<String>,
    /// What it may cost before the version before it comes back; `None`: whatever it costs.
    pub budget: Option<Budget>,
    /// Whether its instances are kept from call to call; `None`: as this version was last bound.
    pub reuse: Option<Reuse>,
}

/// A stored version to be put on trial.
#[derive(Clone, Debug)]
pub struct TrialOrder {
    /// What it is for.
    pub slot: PolicySlot,
    /// SHA-256 of the component, hexadecimal; `None`: the one that is on trial.
    pub sha256: Option<String>,
    /// How far it is to go.
    pub stage: TrialStage,
    /// The text for `configure`; `None` takes the text it is on trial with, or was last bound with, or that of the
    /// binding in force where it never was.
    pub config: Option<String>,
    /// What it may cost; `None` takes the budget it is on trial with, or the default.
    pub budget: Option<Budget>,
    /// Whether its instances are kept from call to call; `None`: as it is on trial, or was last bound.
    pub reuse: Option<Reuse>,
}

/// A binding to be brought back.
#[derive(Clone, Debug)]
pub struct RollBack {
    /// What it is for.
    pub slot: PolicySlot,
    /// SHA-256 of the component, hexadecimal; `None`: the one before the one in force.
    pub to: Option<String>,
}

/// Anything that can be done to a slot whose versions are stored.
#[derive(Clone, Debug)]
pub enum Order {
    /// A version answers.
    Activate(Activation),
    /// A version goes on trial, or further on it.
    Try(TrialOrder),
    /// The version on trial answers everyone.
    Promote(PolicySlot),
    /// The trial ends.
    Withdraw(PolicySlot),
    /// An earlier binding comes back.
    RollBack(RollBack),
    /// Nothing is bound.
    Unbind(PolicySlot),
    /// The binding may not be changed.
    Pin(PolicySlot),
    /// It may be changed again.
    Unpin(PolicySlot),
    /// The fallback answers.
    Disable(PolicySlot),
    /// The versions answer again.
    Enable(PolicySlot),
}

impl Order {
    /// What it is done to.
    pub const fn slot(&self) -> &PolicySlot {
        match self {
            Self::Activate(Activation { slot, .. })
            | Self::Try(TrialOrder { slot, .. })
            | Self::RollBack(RollBack { slot, .. })
            | Self::Promote(slot)
            | Self::Withdraw(slot)
            | Self::Unbind(slot)
            | Self::Pin(slot)
            | Self::Unpin(slot)
            | Self::Disable(slot)
            | Self::Enable(slot) => slot,
        }
    }
}

/// What came of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// This is in force.
    Bound(Box<BindingRecord>),
    /// This is on trial and held.
    Rollout(Box<RolloutRecord>),
    /// Nothing is bound.
    Unbound,
    /// It waits for a second person.
    Proposed(Box<ProposalRecord>),
}

/// What came of an upload.
#[derive(Clone, Debug)]
pub struct UploadDone {
    /// The version that was kept.
    pub stored: Stored,
    /// What came of making it active.
    pub done: Done,
}

/// A version that was kept without being made active.
#[derive(Clone, Debug, Serialize)]
pub struct Stored {
    /// The version.
    pub version: VersionRecord,
    /// What the check found: notes and warnings.
    pub report: PolicyReport,
    /// The text for `configure` that it was checked with.
    pub config: String,
}

/// A version that was kept and made active.
#[derive(Clone, Debug, Serialize)]
pub struct Uploaded {
    /// The version.
    pub version: VersionRecord,
    /// What the check found: notes and warnings.
    pub report: PolicyReport,
    /// The binding in force, with its generation.
    pub binding: BindingRecord,
}
