//! An answer in one piece.

use super::events::{Events, Positioned};
use super::logprobs::{Written, logprobs};
use super::wire::{ChatAnswer, ChatChoice, Envelope, Head, TextChoice, total};
use crate::answer::{AnswerEvent, ToldLogprobs, Usage};
use crate::error::RequestError;
use crate::stage::accept::{AnswerOptions, Endpoint};
use axum::Json;
use axum::response::{IntoResponse, Response};
use futures_util::stream::StreamExt;
use portolan_ports::FinishReason;
use std::sync::Arc;

/// One answer, as far as it has come.
#[derive(Debug)]
struct Collected {
    text: String,
    tokens: Vec<u32>,
    logprobs: Vec<ToldLogprobs>,
    reason: FinishReason,
    usage: Usage,
}

/// Waits for all answers and puts them together. `prompts` holds the prompt of each answer.
pub(super) async fn collect(
    mut events: Events,
    head: &Head,
    options: AnswerOptions,
    prompts: &[Arc<[u32]>],
) -> Result<Response, RequestError> {
    let blank = || Collected {
        text: String::new(),
        tokens: Vec::new(),
        logprobs: Vec::new(),
        reason: FinishReason::Stop,
        usage: Usage::default(),
    };
    let mut answers: Vec<Collected> = prompts.iter().map(|_| blank()).collect();
    while let Some(event) = events.next().await {
        note(&mut answers, event)?;
    }
    let usages: Vec<Usage> = answers.iter().map(|answer| answer.usage).collect();
    let usage = Some(Some(total(&usages, options.choices)));
    let (id, created, model) = (head.id.as_str(), head.created, head.model.as_str());
    let ids = |tokens: Vec<u32>| options.return_token_ids.then_some(tokens);
    let told = |told: &[ToldLogprobs]| {
        (!told.is_empty()).then(|| logprobs(options.endpoint, told, &mut Written::default()))
    };
    let prompt_ids = |i: usize| prompts.get(i).filter(|_| options.return_token_ids).cloned();
    let answers = answers.into_iter().enumerate();
    Ok(match options.endpoint {
        Endpoint::Chat => {
            let choices = answers.map(|(index, answer)| ChatChoice {
                index,
                message: ChatAnswer {
                    role: "assistant",
                    content: answer.text,
                    refusal: None,
                },
                logprobs: told(&answer.logprobs),
                finish_reason: answer.reason,
                token_ids: ids(answer.tokens),
            });
            let (object, choices) = ("chat.completion", choices.collect());
            Json(Envelope {
                id,
                object,
                created,
                model,
                choices,
                usage,
                prompt_token_ids: prompt_ids(0),
            })
            .into_response()
        }
        Endpoint::Completion => {
            let choices = answers.map(|(index, answer)| TextChoice {
                index,
                text: answer.text,
                logprobs: told(&answer.logprobs),
                finish_reason: Some(answer.reason),
                prompt_token_ids: prompt_ids(index),
                token_ids: ids(answer.tokens),
            });
            let (object, choices) = ("text_completion", choices.collect());
            Json(Envelope {
                id,
                object,
                created,
                model,
                choices,
                usage,
                prompt_token_ids: None,
            })
            .into_response()
        }
    })
}

fn note(answers: &mut [Collected], (position, event): Positioned) -> Result<(), RequestError> {
    let Some(answer) = answers.get_mut(position) else {
        return Ok(());
    };
    match event {
        AnswerEvent::Delta {
            token,
            text,
            logprobs,
        } => {
            answer.tokens.push(token);
            answer.logprobs.extend(logprobs);
            answer.text.push_str(&text);
        }
        AnswerEvent::Finished { text, reason, usage } => {
            answer.text.push_str(&text);
            answer.reason = reason;
            answer.usage = usage;
        }
        AnswerEvent::Failed(error) => return Err(error),
        // An engine's own answer is not written here.
        AnswerEvent::Head(_) | AnswerEvent::Bytes(_) | AnswerEvent::Ended => {}
    }
    Ok(())
}
