//! A change that waits for a second person.

use crate::{Reuse, Scope};
use portolan_base::Moment;
use portolan_decide::{Budget, TrialStage};
use portolan_policy::QuestionKind;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is to be done to a slot, with everything it depends on written out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum ProposedChange {
    /// A stored version answers.
    Activate {
        /// SHA-256 of the component, hexadecimal.
        sha256: String,
        /// The text for `configure`.
        config: String,
        /// Whether its instances are kept from call to call.
        #[serde(default, skip_serializing_if = "Reuse::is_by_class")]
        reuse: Reuse,
        /// What it may cost.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        budget: Option<Budget>,
    },
    /// A stored version goes on trial, or further on it.
    Try {
        /// SHA-256 of the component, hexadecimal.
        sha256: String,
        /// The text for `configure`.
        config: String,
        /// Whether its instances are kept from call to call.
        #[serde(default, skip_serializing_if = "Reuse::is_by_class")]
        reuse: Reuse,
        /// What it may cost.
        budget: Budget,
        /// How far it goes.
        #[serde(flatten)]
        stage: TrialStage,
    },
    /// The version on trial answers everyone.
    Promote {
        /// SHA-256 of the component, hexadecimal.
        sha256: String,
    },
    /// The trial ends.
    Withdraw,
    /// An earlier binding comes back.
    Rollback {
        /// SHA-256 of the component that comes back, hexadecimal.
        sha256: String,
        /// Its text for `configure`.
        config: String,
        /// Whether its instances are kept from call to call.
        #[serde(default, skip_serializing_if = "Reuse::is_by_class")]
        reuse: Reuse,
        /// The version that was named, if one was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// Nothing is bound.
    Unbind,
    /// The binding may not be changed.
    Pin,
    /// It may be changed again.
    Unpin,
    /// The fallback answers.
    Disable,
    /// The versions answer again.
    Enable,
}

impl fmt::Display for ProposedChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Activate {
                sha256,
                config,
                reuse,
                ..
            } => write!(f, "activate {sha256}{} {config}", of_instances(*reuse)),
            Self::Try {
                sha256,
                stage,
                config,
                reuse,
                ..
            } => write!(f, "{stage} of {sha256}{} {config}", of_instances(*reuse)),
            Self::Promote { sha256 } => write!(f, "promote {sha256}"),
            Self::Withdraw => f.write_str("withdraw"),
            Self::Rollback { sha256, reuse, .. } => {
                write!(f, "roll back to {sha256}{}", of_instances(*reuse))
            }
            Self::Unbind => f.write_str("unbind"),
            Self::Pin => f.write_str("pin"),
            Self::Unpin => f.write_str("unpin"),
            Self::Disable => f.write_str("disable"),
            Self::Enable => f.write_str("enable"),
        }
    }
}

/// What a proposal says of the instances, where the class does not decide.
const fn of_instances(reuse: Reuse) -> &'static str {
    match reuse {
        Reuse::ByClass => "",
        Reuse::Fresh => " (fresh)",
        Reuse::Warm => " (warm)",
    }
}

/// How a slot stood. Two equal ones mean that nothing was changed between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotState {
    /// Generation of the binding in force.
    pub bound: Option<u64>,
    /// Generation of the last binding that was made, in force or not.
    pub made: u64,
    /// What is on trial and what is held.
    pub rollout: crate::RolloutRecord,
}

/// A change that waits for a second person, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposalRecord {
    /// Its number, from 1.
    pub id: u64,
    /// For whom.
    pub scope: Scope,
    /// Which question.
    pub question: QuestionKind,
    /// What is to be done.
    #[serde(flatten)]
    pub change: ProposedChange,
    /// How the slot stood when it was proposed.
    pub found: SlotState,
    /// Who proposed it.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Moment,
    /// Until when it can be approved.
    pub expires: Moment,
    /// What was said to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

/// What the second person said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Yes or no.
    pub kind: VerdictKind,
    /// Who said it.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Moment,
}

/// Yes or no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerdictKind {
    /// It was done.
    Approved,
    /// It will not be done.
    Rejected,
}

/// Where a proposal stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProposalState {
    /// It waits.
    Pending,
    /// It was done.
    Approved,
    /// It will not be done.
    Rejected,
    /// Nobody approved it in time.
    Expired,
}

impl ProposalRecord {
    /// Where it stands at `now`.
    pub fn state(&self, now: Moment) -> ProposalState {
        match &self.verdict {
            Some(verdict) if verdict.kind == VerdictKind::Approved => ProposalState::Approved,
            Some(_) => ProposalState::Rejected,
            None if now >= self.expires => ProposalState::Expired,
            None => ProposalState::Pending,
        }
    }

    /// The proposal in words, as the audit log names it.
    pub fn subject(&self) -> String {
        let words = format!(
            "{}, {}: {} (proposal {})",
            self.scope,
            self.question,
            self.change.to_string().trim_end(),
            self.id
        );
        match &self.verdict {
            Some(_) => format!("{words}, of {}", self.actor),
            None => words,
        }
    }

    /// The audit line of its last step: action, actor, reason and moment.
    pub fn last_step(&self) -> (&'static str, &str, &str, Moment) {
        match &self.verdict {
            None => ("proposal.open", &self.actor, &self.reason, self.at),
            Some(verdict) => {
                let action = match verdict.kind {
                    VerdictKind::Approved => "proposal.approve",
                    VerdictKind::Rejected => "proposal.reject",
                };
                (action, &verdict.actor, &verdict.reason, verdict.at)
            }
        }
    }
}
