//! The fake beside [`PolicyLoader`], and its fault: components are short texts, so that a test can say what becomes
//! of one.
//!
//! | component | what happens |
//! |---|---|
//! | `ok:…` | answers any question, indifferently: every site, every route, no directive |
//! | `ok-routing:…` (or another question's word) | answers that question, refused for another |
//! | `defers:…` | answers any question like the first, but defers every request by 0 ms |
//! | `no-copies:…` | answers any question like the first, but lets no site fetch or replicate |
//! | `busy:…` | finds the compiler busy with other components |
//! | `endless:…` | takes more to compile than there is |
//! | `unloadable:…` | passes the check and compiles, cannot be loaded |
//! | anything else | refused by the check |
//!
//! A configuration that is `bad` is refused when it is rehearsed or loaded, as a policy's own `configure` would; one that
//! is `faulty` loads, and fails the probes of a rehearsal.

use crate::{
    Binding, COMPILE_TIME, COMPILER_BUSY, Finding, LogLevel, LogOccasion, PolicyLoader, PolicyLogLine,
    PolicyRejection, PolicyReport, Rehearsal, Scope, Severity,
};
use portolan_base::Moment;
use portolan_policy::{
    Answer, Answered, BoundAs, Call, CostColumn, Placement, Policy, PolicyDescriptor, PolicySource, Purpose,
    Question, QuestionKind, RoutingDecision,
};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// A [`PolicyLoader`] without WebAssembly.
#[derive(Clone, Copy, Debug, Default)]
pub struct FakeLoader;

/// Code, message and help of a configuration that is refused.
const BAD_CONFIG: (&str, &str, &str) = (
    "bad-config",
    "the configuration is refused",
    "send another configuration",
);

enum Fate {
    Works(Option<QuestionKind>),
    Unloadable,
    Busy,
    Endless,
    Refused,
}

fn fate(component: &[u8]) -> Fate {
    let Some((word, _)) = std::str::from_utf8(component)
        .ok()
        .and_then(|text| text.split_once(':'))
    else {
        return Fate::Refused;
    };
    match word {
        "ok" | "no-copies" | "defers" => Fate::Works(None),
        "unloadable" => Fate::Unloadable,
        "busy" => Fate::Busy,
        "endless" => Fate::Endless,
        word => match word
            .strip_prefix("ok-")
            .and_then(|question| question.parse().ok())
        {
            Some(question) => Fate::Works(Some(question)),
            None => Fate::Refused,
        },
    }
}

fn report(
    component: &[u8],
    question: Option<QuestionKind>,
    error: Option<(&str, &str, &str)>,
) -> PolicyReport {
    PolicyReport {
        ok: error.is_none(),
        question,
        findings: error
            .map(|(code, message, help)| Finding {
                code: code.into(),
                severity: Severity::Error,
                message: message.into(),
                help: help.into(),
            })
            .into_iter()
            .collect(),
        sha256: hex::encode(Sha256::digest(component)),
        bytes: component.len() as u64,
    }
}

impl PolicyLoader for FakeLoader {
    fn check(
        &self,
        question: Option<QuestionKind>,
        component: &[u8],
        rehearsal: Option<Rehearsal<'_>>,
    ) -> PolicyReport {
        match (fate(component), question) {
            (Fate::Refused, _) => {
                let error = (
                    "no-component",
                    "the bytes are no component",
                    "begin them with \"ok:\"",
                );
                report(component, None, Some(error))
            }
            (Fate::Busy, _) => {
                let error = (COMPILER_BUSY, "it waited for the compiler", "try again");
                report(component, question, Some(error))
            }
            (Fate::Endless, _) => {
                let error = (
                    COMPILE_TIME,
                    "it takes more than 1 s to compile",
                    "make it smaller",
                );
                report(component, question, Some(error))
            }
            (Fate::Works(Some(answers)), Some(wanted)) if answers != wanted => {
                let error = (
                    "other-world",
                    "it answers another question",
                    "bind it to the question it answers",
                );
                report(component, Some(answers), Some(error))
            }
            (Fate::Works(_), _) if rehearsal.is_some_and(|rehearsal| rehearsal.config == "bad") => {
                report(component, question, Some(BAD_CONFIG))
            }
            (Fate::Works(_), _) if rehearsal.is_some_and(|rehearsal| rehearsal.config == "faulty") => {
                let error = (
                    "probe-failed",
                    "a probe call failed",
                    "send another configuration",
                );
                report(component, question, Some(error))
            }
            (Fate::Works(answers), _) => report(component, question.or(answers), None),
            (Fate::Unloadable, _) => report(component, question, None),
        }
    }

    fn compile(&self, component: &[u8]) -> Result<Vec<u8>, PolicyRejection> {
        let report = self.check(None, component, None);
        if !report.ok {
            return Err(PolicyRejection(report));
        }
        Ok([b"compiled ", component].concat())
    }

    fn accepts(&self, sha256: &str, compiled: &[u8]) -> bool {
        let component = compiled.strip_prefix(b"compiled ");
        component.is_some_and(|component| hex::encode(Sha256::digest(component)) == sha256)
    }

    fn load(
        &self,
        binding: &Binding,
        component: &[u8],
        _compiled: Option<&[u8]>,
    ) -> Result<Arc<dyn Policy>, PolicyRejection> {
        let refused = |code, message, help| {
            Err(PolicyRejection(report(
                component,
                Some(binding.question),
                Some((code, message, help)),
            )))
        };
        if !matches!(fate(component), Fate::Works(_)) {
            return refused(
                "no-instance",
                "the component cannot be started",
                "send one that can",
            );
        }
        if binding.config == "bad" {
            let (code, message, help) = BAD_CONFIG;
            return refused(code, message, help);
        }
        Ok(Arc::new(Indifferent {
            who: PolicyDescriptor {
                question: binding.question,
                name: binding.name.clone(),
                version: binding.version.clone(),
                source: match binding.scope {
                    Scope::Platform => PolicySource::Platform,
                    Scope::Tenant(_) => PolicySource::Tenant,
                },
                bound: BoundAs::default(),
            },
            copies: if component.starts_with(b"no-copies") {
                Placement::Denied
            } else {
                Placement::Resident
            },
            ways: if component.starts_with(b"defers") {
                Ways::Later
            } else {
                Ways::AllAlike
            },
        }))
    }

    /// Two lines, which name their scope.
    fn log_lines(&self, scope: &Scope) -> Vec<PolicyLogLine> {
        let line = |at, question| PolicyLogLine {
            at: Moment(at),
            level: LogLevel::Info,
            question,
            policy: "mine".to_owned(),
            version: "v".to_owned(),
            request_id: String::new(),
            during: LogOccasion::Serving,
            dropped: 0,
            text: format!("of {scope}"),
        };
        vec![line(1, QuestionKind::Cost), line(2, QuestionKind::Routing)]
    }
}

/// Allows everything, but for what it says of copies, and prefers no route.
struct Indifferent {
    who: PolicyDescriptor,
    copies: Placement,
    ways: Ways,
}

/// What is said of routes.
#[derive(Clone, Copy)]
enum Ways {
    AllAlike,
    /// None yet.
    Later,
}

impl Policy for Indifferent {
    fn descriptor(&self) -> &PolicyDescriptor {
        &self.who
    }

    fn ask(&self, call: &Call<'_>) -> Answered {
        let answer = match call.question {
            Question::Residency { sites, subject, .. } => {
                let placement = match subject.purpose {
                    Purpose::Fetch | Purpose::Replicate => self.copies,
                    _ => Placement::Resident,
                };
                Answer::Residency(vec![placement; sites])
            }
            Question::Cost { routes, .. } => Answer::Cost(vec![0; routes.len() * CostColumn::COUNT]),
            Question::Routing { routes, .. } => Answer::Routing(match self.ways {
                Ways::AllAlike => RoutingDecision::Scores(vec![0; routes.len()]),
                Ways::Later => RoutingDecision::Defer(0),
            }),
            Question::Invalidation { .. } => Answer::Invalidation(Vec::new()),
        };
        Answered {
            result: Ok(answer),
            fuel: None,
        }
    }
}
