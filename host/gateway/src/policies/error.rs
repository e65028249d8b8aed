//! Why the desk did not do what it was asked. In every case nothing changed that a request could notice.

use super::PolicySlot;
use portolan_base::id::NameError;
use portolan_decide::rollout::BadBudget;
use portolan_ports::{HoldRecord, PolicyRejection, PolicyReport, Quotas, SharedError, StoreError};
use std::time::Duration;

/// Longest configuration of a binding in bytes, as the policy contract says.
pub(super) const CONFIG_MAX_BYTES: usize = 64 << 10;

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// The component, or its configuration, cannot be used: the report says why and how to mend it.
    #[error("{}", PolicyRejection(.0.clone()))]
    Rejected(PolicyReport),
    /// It was not found out whether the component can be used: there was no compiler, or no processor, for it in time.
    #[error("{0}; nothing was changed, and nothing is known of the component; send it again")]
    CompilerBusy(String),
    /// Compiling the component takes more than this host gives: the host's limit, whatever the component is worth.
    #[error("this host did not compile the component: {}; nothing was changed", .0.first_error())]
    CompileLimit(PolicyReport),
    /// There is no such version or binding.
    #[error("{0} does not exist")]
    NotFound(String),
    /// The policy's name is not acceptable.
    #[error("the policy's name cannot be used: {0}")]
    BadName(#[from] NameError),
    /// The configuration is too long.
    #[error("the configuration has {0} bytes, at most {CONFIG_MAX_BYTES} are allowed")]
    ConfigTooLong(usize),
    /// The budget makes no sense.
    #[error(transparent)]
    BadBudget(#[from] BadBudget),
    /// Somebody pinned the binding.
    #[error("{slot} is pinned by {}{}; unpin it first", .pin.actor, because(&.pin.reason))]
    Pinned {
        /// What is pinned.
        slot: PolicySlot,
        /// By whom and why.
        pin: HoldRecord,
    },
    /// It needs a second person, and came by a way that asks for none.
    #[error("a change of {0} needs a second operator's approval")]
    NeedsApproval(PolicySlot),
    /// Who asks may not decide.
    #[error("{0}")]
    NotYours(String),
    /// The tenant sent as many components as it may.
    #[error(
        "this tenant may upload {most} components an hour, refused ones included; the next is taken in {} min; a stored \
         version can be activated at any time",
        minutes(.frees_in)
    )]
    TooManyUploads {
        /// How many it may send.
        most: u32,
        /// When one more is taken.
        frees_in: Duration,
    },
    /// Nothing more of the tenant's is kept.
    #[error(
        "{bytes} bytes more do not fit: {} versions with {} bytes are bound, on trial, or what a roll-back would go to, and \
         {} versions with {} bytes are kept altogether; unbind or remove versions (`portolan policy remove`), or ask the \
         operator for a larger quota",
        .needed.0, .needed.1, .quotas.stored_versions, .quotas.stored_bytes
    )]
    StoreFull {
        /// Size of what was sent.
        bytes: u64,
        /// Versions that cannot be pruned, and their bytes.
        needed: (u64, u64),
        /// What the tenant may keep.
        quotas: Quotas,
    },
    /// It must be compiled for this host first, which was not asked for.
    #[error("the version is not compiled for this host yet; the fallback answers until it is")]
    NotCompiled,
    /// It does not fit what is there.
    #[error("{0}")]
    Conflict(String),
    /// The other processes of the fleet were not told, so that nothing changed here either.
    #[error(transparent)]
    NotShared(SharedError),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

fn minutes(time: &Duration) -> u64 {
    time.as_secs().div_ceil(60)
}

fn because(reason: &str) -> String {
    match reason {
        "" => String::new(),
        reason => format!(" ({reason})"),
    }
}

impl From<StoreError> for DeskError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound(what) => Self::NotFound(what),
            error @ StoreError::InUseVersion { .. } => Self::Conflict(error.to_string()),
            error => Self::Store(error),
        }
    }
}

impl From<PolicyRejection> for DeskError {
    fn from(rejection: PolicyRejection) -> Self {
        Self::of_report(rejection.0)
    }
}

impl DeskError {
    /// Why a component with this report is not taken.
    pub(super) fn of_report(report: PolicyReport) -> Self {
        match report {
            report if report.is_busy() => Self::CompilerBusy(report.first_error().to_owned()),
            report if report.overran() => Self::CompileLimit(report),
            report => Self::Rejected(report),
        }
    }

    /// Whether the host had no room for what was sent, which says nothing about it.
    pub(super) fn is_want_of_room(&self) -> bool {
        match self {
            Self::CompilerBusy(_) => true,
            Self::Store(error) => !matches!(error, StoreError::Invalid { .. }),
            Self::NotShared(error) => !matches!(error, SharedError::ChangedElsewhere),
            _ => false,
        }
    }
}
