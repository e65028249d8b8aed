//! One policy call: asked, checked, timed, recorded; on any fault the caller falls back.

use crate::record::{Fallback, PolicyRecord};
use portolan_base::Clock;
use portolan_policy::{
    Answer, Answered, Call, CostColumn, NEVER, Placement, Policy, PolicyFault, Question, QuestionKind,
    RoutingDecision,
};
use std::collections::BTreeMap;

/// Longest a policy may hold a request before it is asked again: longer, and clients give up.
pub const MAX_DEFER_MS: u32 = 10_000;

/// Asks policies on behalf of one request and keeps the record of every call.
pub struct Asker<'a> {
    clock: &'a dyn Clock,
    labels: &'a BTreeMap<String, String>,
    request_id: &'a str,
    /// Every call so far.
    pub calls: Vec<PolicyRecord>,
    /// Every fallback so far.
    pub fallbacks: Vec<Fallback>,
}

impl<'a> Asker<'a> {
    /// Asks on behalf of the request `request_id` with its `labels`.
    pub fn new(clock: &'a dyn Clock, labels: &'a BTreeMap<String, String>, request_id: &'a str) -> Self {
        Self {
            clock,
            labels,
            request_id,
            calls: Vec::new(),
            fallbacks: Vec::new(),
        }
    }

    /// Asks. `None` means the policy gave no usable answer, and what happens instead is `fallback`.
    pub fn ask(&mut self, policy: &dyn Policy, question: Question<'_>, fallback: &str) -> Option<Answer> {
        let begun = self.clock.now();
        let call = Call {
            question,
            labels: self.labels,
            request_id: self.request_id,
        };
        let Answered { result, fuel } = policy.ask(&call);
        let micros = u64::try_from(self.clock.now().since(begun).as_micros()).unwrap_or(u64::MAX);
        let result = result.and_then(|answer| check(&question, &answer).map(|()| answer));
        let who = policy.descriptor();
        let fault = result.as_ref().err();
        self.calls.push(PolicyRecord {
            question: question.kind(),
            name: who.name.clone(),
            version: who.version.clone(),
            source: who.source,
            micros,
            fuel,
            outcome: fault.map_or("ok", PolicyFault::word).to_owned(),
            answer: result.as_ref().ok().map(in_short),
            detail: fault.map(ToString::to_string),
            generation: who.bound.generation,
            config_digest: who.bound.config_digest.clone(),
        });
        if let Some(fault) = fault {
            self.fallbacks.push(Fallback {
                stage: "decide".to_owned(),
                from: format!("{} policy {}", question.kind(), who.name),
                to: fallback.to_owned(),
                reason: fault.to_string(),
            });
        }
        result.ok()
    }

    /// Notes an answer that the built-in policy gave.
    pub fn note_built_in(&mut self, question: QuestionKind, name: &str, micros: u64) {
        self.calls.push(PolicyRecord {
            question,
            name: name.to_owned(),
            version: "built-in".to_owned(),
            source: portolan_policy::PolicySource::BuiltIn,
            micros,
            fuel: None,
            outcome: "ok".to_owned(),
            answer: None,
            detail: None,
            generation: None,
            config_digest: None,
        });
    }
}

/// An answer in a few words.
fn in_short(answer: &Answer) -> String {
    match answer {
        Answer::Residency(placements) => {
            let allowed = placements.iter().filter(|p| **p != Placement::Denied).count();
            format!("{allowed} of {} sites allowed", placements.len())
        }
        Answer::Cost(_) => "costs".to_owned(),
        Answer::Routing(RoutingDecision::Scores(scores)) => {
            let never = scores.iter().filter(|score| **score == NEVER).count();
            if never == 0 {
                "scores".to_owned()
            } else {
                format!("scores, {never} of {} never", scores.len())
            }
        }
        Answer::Routing(RoutingDecision::Defer(ms)) => format!("deferred by {ms} ms"),
        Answer::Routing(RoutingDecision::Refuse(reason)) => format!("refused: {reason}"),
        Answer::Invalidation(directives) => format!("{} directives", directives.len()),
    }
}

/// Whether an answer fits its question. Implementations check too; a second look here costs nanoseconds and holds for
/// any implementation.
fn check(question: &Question<'_>, answer: &Answer) -> Result<(), PolicyFault> {
    let expect = |what: &str, got: usize, wanted: usize| {
        let text = || format!("{got} {what} for {wanted} expected");
        if got == wanted {
            Ok(())
        } else {
            Err(PolicyFault::BadAnswer(text()))
        }
    };
    match (question, answer) {
        (Question::Residency { sites, .. }, Answer::Residency(got)) => {
            expect("placements", got.len(), *sites)
        }
        (Question::Cost { routes, .. }, Answer::Cost(got)) => {
            expect("cost values", got.len(), routes.len() * CostColumn::COUNT)
        }
        (Question::Routing { routes, .. }, Answer::Routing(RoutingDecision::Scores(got))) => {
            expect("scores", got.len(), routes.len())
        }
        (Question::Routing { .. }, Answer::Routing(_))
        | (Question::Invalidation { .. }, Answer::Invalidation(_)) => Ok(()),
        (question, _) => Err(PolicyFault::BadAnswer(format!(
            "the answer is not one to the {} question",
            question.kind()
        ))),
    }
}
