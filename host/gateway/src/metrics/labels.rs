//! The labels of the metrics, with the lists of words that bound them.

use crate::error::ErrorKind;
use portolan_decide::{PathRecord, PolicyRecord, ShadowRecord};
use portolan_policy::QuestionKind;
use prometheus_client::encoding::EncodeLabelSet;

/// What stands for every word that is in no list.
const OTHER: &str = "other";

const OUTCOMES: [&str; 4] = ["ok", "refused", "cancelled", "failed"];

const STAGES: [&str; 9] = [
    "accept", "admit", "locate", "decide", "fetch", "prefill", "transfer", "decode", "settle",
];

/// `ok` and the words of [`portolan_policy::PolicyFault`].
const POLICY_OUTCOMES: [&str; 8] = [
    "ok",
    "trap",
    "out-of-fuel",
    "timed-out",
    "out-of-memory",
    "bad-answer",
    "saturated",
    "unavailable",
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Work {
    pub(super) tenant: String,
    pub(super) model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Request {
    tenant: String,
    model: String,
    outcome: &'static str,
}

impl Request {
    pub(super) fn of(record: &PathRecord) -> Self {
        Self {
            tenant: record.tenant.to_string(),
            model: record.model.clone(),
            outcome: listed(&OUTCOMES, &record.status),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Stage {
    stage: &'static str,
}

impl Stage {
    pub(super) fn of(name: &str) -> Self {
        Self {
            stage: listed(&STAGES, name),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Question {
    pub(super) question: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Shadow {
    question: &'static str,
    outcome: &'static str,
}

impl Shadow {
    pub(super) fn of(shadow: &ShadowRecord) -> Self {
        let outcome = match (&*shadow.call.outcome, &shadow.differs) {
            ("ok", None) => "agrees",
            ("ok", Some(_)) => "differs",
            (fault, _) => listed(&POLICY_OUTCOMES, fault),
        };
        Self {
            question: shadow.call.question.as_str(),
            outcome,
        }
    }

    /// It was not asked.
    pub(super) fn dropped(question: QuestionKind) -> Self {
        Self {
            question: question.as_str(),
            outcome: "dropped",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Enforced {
    pub(super) question: &'static str,
    pub(super) change: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Policy {
    question: &'static str,
    outcome: &'static str,
}

impl Policy {
    pub(super) fn of(call: &PolicyRecord) -> Self {
        Self {
            question: call.question.as_str(),
            outcome: listed(&POLICY_OUTCOMES, &call.outcome),
        }
    }
}

/// What the reasons of fallbacks contain, and the word each becomes. The record keeps the reason for people; a test
/// holds this list to the texts of the errors.
const REASONS: [(&str, &str); 21] = [
    ("the policy trapped", "trap"),
    ("used up its budget", "out-of-fuel"),
    ("the policy was still running", "timed-out"),
    ("the policy wanted more than", "out-of-memory"),
    ("the policy's answer cannot be used", "bad-answer"),
    ("the policy is saturated", "saturated"),
    ("the policy could not be started", "unavailable"),
    ("no link to site", "link-down"),
    ("is down: ", "link-down"),
    ("no progress from", "stalled"),
    ("produced no token for", "stalled"),
    ("was damaged", "damaged"),
    ("is in quarantine", "quarantined"),
    ("could not serve the order", "refused"),
    ("the engine is full", "full"),
    ("the engine failed", "engine-failed"),
    ("did not come within", "late"),
    ("does not let this data come", "residency"),
    ("no room to keep", "no-room"),
    ("took longer than", "slow"),
    ("the retry budget is spent", "retry-budget"),
];

/// A fallback by stage and kind of reason.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Fallback {
    stage: &'static str,
    reason: &'static str,
}

impl Fallback {
    pub(super) fn of(fallback: &portolan_decide::Fallback) -> Self {
        Self {
            stage: listed(&STAGES, &fallback.stage),
            reason: reason_word(&fallback.reason),
        }
    }
}

/// The word for the reason of a fallback.
pub(super) fn reason_word(reason: &str) -> &'static str {
    REASONS
        .iter()
        .find(|(text, _)| reason.contains(text))
        .map_or(OTHER, |(_, word)| word)
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Error {
    kind: &'static str,
}

impl Error {
    pub(super) fn of(kind: ErrorKind) -> Self {
        let kind = match kind {
            ErrorKind::BadRequest => "bad_request",
            ErrorKind::Unauthenticated => "unauthenticated",
            ErrorKind::Forbidden => "forbidden",
            ErrorKind::NotFound => "not_found",
            ErrorKind::MethodNotAllowed => "method_not_allowed",
            ErrorKind::Conflict => "conflict",
            ErrorKind::TooLarge => "too_large",
            ErrorKind::RateLimited => "rate_limited",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Internal => "internal",
        };
        Self { kind }
    }
}

fn listed(words: &[&'static str], word: &str) -> &'static str {
    words
        .iter()
        .find(|known| **known == word)
        .copied()
        .unwrap_or(OTHER)
}
