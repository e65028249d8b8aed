//! An answer as server-sent events: `data: JSON`, a blank line, and at the end `data: [DONE]`. A stream that breaks
//! off ends with an `error` event instead, so that a client can tell it from a complete answer.

use super::errors::ErrorBody;
use super::events::{Events, Positioned};
use super::logprobs::{Written, logprobs};
use super::wire::{ChatPiece, Delta, Envelope, Head, TextChoice, UsageBody, total};
use crate::answer::{AnswerEvent, ToldLogprobs, Usage};
use crate::error::RequestError;
use crate::stage::accept::{AnswerOptions, Delivery, Endpoint};
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use portolan_ports::FinishReason;
use serde::Serialize;
use serde_json::Value;
use std::convert::Infallible;
use std::sync::Arc;

const DONE: &[u8] = b"data: [DONE]\n\n";

/// The response that carries `events`. `prompts` holds the prompt of each answer.
pub(super) fn response(
    events: Events,
    head: Head,
    options: AnswerOptions,
    prompts: Vec<Arc<[u32]>>,
) -> Response {
    let writer = Writer::new(head, options, prompts);
    let frames = stream::unfold(Some((events, writer)), |state| async move {
        let (mut events, mut writer) = state?;
        loop {
            let Some(event) = events.next().await else {
                return Some((Ok::<_, Infallible>(writer.end()), None));
            };
            let frame = writer.write(event);
            match frame {
                Frame::Nothing => {}
                Frame::More(bytes) => return Some((Ok(bytes), Some((events, writer)))),
                // Dropping the events cancels the answers that are still being computed.
                Frame::Last(bytes) => return Some((Ok(bytes), None)),
            }
        }
    });
    let headers = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream; charset=utf-8"),
        ),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // Asks nginx and its kin not to collect tokens before passing them on.
        (
            HeaderName::from_static("x-accel-buffering"),
            HeaderValue::from_static("no"),
        ),
    ];
    (headers, Body::from_stream(frames)).into_response()
}

/// What one event becomes on the wire.
#[derive(Debug, PartialEq, Eq)]
enum Frame {
    /// Nothing: the token completes no text.
    Nothing,
    /// Bytes to send at once.
    More(Bytes),
    /// Bytes after which the stream ends.
    Last(Bytes),
}

/// Turns events into frames.
#[derive(Debug)]
struct Writer {
    head: Head,
    options: AnswerOptions,
    prompts: Vec<Arc<[u32]>>,
    begun: Vec<bool>,
    /// Each answer's text so far, followed where logprobs are told.
    written: Vec<Written>,
    usages: Vec<Usage>,
}

/// What one piece adds to its answer.
#[derive(Debug)]
struct Piece {
    index: usize,
    text: String,
    tokens: Vec<u32>,
    logprobs: Option<Value>,
    reason: Option<FinishReason>,
}

impl Writer {
    fn new(head: Head, options: AnswerOptions, prompts: Vec<Arc<[u32]>>) -> Self {
        let answers = prompts.len();
        Self {
            head,
            options,
            prompts,
            begun: vec![false; answers],
            written: vec![Written::default(); answers],
            usages: vec![Usage::default(); answers],
        }
    }

    fn write(&mut self, (index, event): Positioned) -> Frame {
        let piece = match event {
            AnswerEvent::Delta {
                token,
                text,
                logprobs,
            } => {
                if text.is_empty() && !self.options.return_token_ids && logprobs.is_none() {
                    return Frame::Nothing;
                }
                Piece {
                    index,
                    text,
                    tokens: vec![token],
                    logprobs: logprobs.map(|told| self.logprobs(index, &told)),
                    reason: None,
                }
            }
            AnswerEvent::Finished { text, reason, usage } => {
                if let Some(slot) = self.usages.get_mut(index) {
                    *slot = usage;
                }
                Piece {
                    index,
                    text,
                    tokens: Vec::new(),
                    logprobs: None,
                    reason: Some(reason),
                }
            }
            AnswerEvent::Failed(error) => return Frame::Last(failure(&error)),
            // An engine's own answer is not written here.
            AnswerEvent::Head(_) | AnswerEvent::Bytes(_) | AnswerEvent::Ended => return Frame::Nothing,
        };
        let mut out = Vec::new();
        let first = self
            .begun
            .get_mut(index)
            .is_some_and(|begun| !std::mem::replace(begun, true));
        let prompt = self
            .prompts
            .get(index)
            .filter(|_| first && self.options.return_token_ids)
            .cloned();
        match self.options.endpoint {
            Endpoint::Chat => {
                if first {
                    self.chat_role(&mut out, index, prompt);
                }
                self.chat_piece(&mut out, piece);
            }
            Endpoint::Completion => self.text_piece(&mut out, piece, prompt),
        }
        Frame::More(out.into())
    }

    /// What follows the last answer.
    fn end(&self) -> Bytes {
        let mut out = Vec::new();
        if self.options.delivery == Delivery::StreamWithUsage {
            let usage = total(&self.usages, self.options.choices);
            let body: Envelope<'_, ChatPiece> = Envelope {
                usage: Some(Some(usage)),
                ..self.envelope(Vec::new())
            };
            frame(&mut out, &body);
        }
        out.extend_from_slice(DONE);
        out.into()
    }

    fn logprobs(&mut self, index: usize, told: &ToldLogprobs) -> Value {
        let mut beyond = Written::default();
        let before = self.written.get_mut(index).unwrap_or(&mut beyond);
        logprobs(self.options.endpoint, std::slice::from_ref(told), before)
    }

    fn chat_role(&self, out: &mut Vec<u8>, index: usize, prompt_token_ids: Option<Arc<[u32]>>) {
        let delta = Delta {
            role: Some("assistant"),
            content: Some(String::new()),
        };
        let choice = ChatPiece {
            index,
            delta,
            logprobs: None,
            finish_reason: None,
            token_ids: None,
        };
        frame(
            out,
            &Envelope {
                prompt_token_ids,
                ..self.envelope(vec![choice])
            },
        );
    }

    fn chat_piece(&self, out: &mut Vec<u8>, piece: Piece) {
        // The last piece of a chat has an empty delta unless text had been withheld.
        let content = (!piece.text.is_empty() || piece.reason.is_none()).then_some(piece.text);
        let choice = ChatPiece {
            index: piece.index,
            delta: Delta { role: None, content },
            logprobs: piece.logprobs,
            finish_reason: piece.reason,
            token_ids: self.options.return_token_ids.then_some(piece.tokens),
        };
        frame(out, &self.envelope(vec![choice]));
    }

    fn text_piece(&self, out: &mut Vec<u8>, piece: Piece, prompt_token_ids: Option<Arc<[u32]>>) {
        let choice = TextChoice {
            index: piece.index,
            text: piece.text,
            logprobs: piece.logprobs,
            finish_reason: piece.reason,
            prompt_token_ids,
            token_ids: self.options.return_token_ids.then_some(piece.tokens),
        };
        frame(out, &self.envelope(vec![choice]));
    }

    fn envelope<C>(&self, choices: Vec<C>) -> Envelope<'_, C> {
        let usage: Option<Option<UsageBody>> =
            (self.options.delivery == Delivery::StreamWithUsage).then_some(None);
        Envelope {
            id: &self.head.id,
            object: match self.options.endpoint {
                Endpoint::Chat => "chat.completion.chunk",
                Endpoint::Completion => "text_completion",
            },
            created: self.head.created,
            model: &self.head.model,
            choices,
            usage,
            prompt_token_ids: None,
        }
    }
}

fn failure(error: &RequestError) -> Bytes {
    let mut out = Vec::new();
    frame(&mut out, &ErrorBody::from(error));
    out.into()
}

/// Appends one event. Serialised JSON holds no line break, so one `data:` line carries it.
fn frame<T: Serialize>(out: &mut Vec<u8>, body: &T) {
    out.extend_from_slice(b"data: ");
    let before = out.len();
    if serde_json::to_writer(&mut *out, body).is_err() {
        // Cannot happen for these types, whose keys are all texts; an empty object keeps the stream readable.
        out.truncate(before);
        out.extend_from_slice(b"{}");
    }
    out.extend_from_slice(b"\n\n");
}
