//! A built-in policy behind the same trait as a component.

use super::contract::{Candidates, Cost, Groups, Invalidation, Residency, Routes, Routing};
use crate::answer::Answer;
use crate::column::RequestView;
use crate::policy::{Answered, BoundAs, Call, Policy, PolicyDescriptor, PolicyFault, PolicySource};
use crate::question::{Question, QuestionKind};
use std::sync::Arc;

/// The policy's own code, by the question it answers.
pub(super) enum Code {
    Residency(Box<dyn Residency>),
    Cost(Box<dyn Cost>),
    Routing(Box<dyn Routing>),
    Invalidation(Box<dyn Invalidation>),
}

impl Code {
    fn question(&self) -> QuestionKind {
        match self {
            Self::Residency(_) => QuestionKind::Residency,
            Self::Cost(_) => QuestionKind::Cost,
            Self::Routing(_) => QuestionKind::Routing,
            Self::Invalidation(_) => QuestionKind::Invalidation,
        }
    }

    fn answer(&self, question: &Question<'_>) -> Option<Answer> {
        Some(match (self, *question) {
            (Self::Residency(code), Question::Residency { subject, request, .. }) => {
                Answer::Residency(code.partition(&subject, RequestView(request)))
            }
            (Self::Cost(code), Question::Cost { request, routes }) => {
                Answer::Cost(code.estimate_all(RequestView(request), Routes(routes)).cells)
            }
            (
                Self::Routing(code),
                Question::Routing {
                    request,
                    routes,
                    costs,
                },
            ) => Answer::Routing(code.decide(RequestView(request), Candidates::new(routes, costs))),
            (Self::Invalidation(code), Question::Invalidation { event, groups }) => {
                Answer::Invalidation(code.react(event, Groups(groups)))
            }
            _ => return None,
        })
    }
}

struct Native {
    descriptor: PolicyDescriptor,
    code: Code,
}

/// Wraps a policy's code; the version of whatever is compiled into the host is `built-in`.
pub(super) fn native(name: &str, code: Code) -> Arc<dyn Policy> {
    let descriptor = PolicyDescriptor {
        question: code.question(),
        name: name.to_owned(),
        version: "built-in".to_owned(),
        source: PolicySource::BuiltIn,
        bound: BoundAs::default(),
    };
    Arc::new(Native { descriptor, code })
}

impl Policy for Native {
    fn descriptor(&self) -> &PolicyDescriptor {
        &self.descriptor
    }

    fn ask(&self, call: &Call<'_>) -> Answered {
        let other_question = || {
            let PolicyDescriptor { name, question, .. } = &self.descriptor;
            PolicyFault::BadAnswer(format!(
                "{name} answers {question}, and was asked {}",
                call.question.kind()
            ))
        };
        Answered {
            result: self.code.answer(&call.question).ok_or_else(other_question),
            fuel: None,
        }
    }
}
