//! What a modelled engine answers, in vLLM's shapes: whole, streamed, refused.

use super::super::schedule::Said;
use super::order::{Door, Order};
use super::{Answer, plain};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame};
use hyper::{Response, StatusCode, header};
use portolan_ports::{TextModel, TextStream};
use serde::Serialize;
use serde_json::{Value, json};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Why a request is not served.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    kind: &'static str,
    param: Option<String>,
    message: String,
}

impl Refusal {
    fn new(status: StatusCode, kind: &'static str, message: &str) -> Self {
        Self {
            status,
            kind,
            param: None,
            message: message.to_owned(),
        }
    }

    pub(super) fn bad(message: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Bad Request", message)
    }

    pub(super) fn field(param: &str, message: &str) -> Self {
        Self {
            param: Some(param.to_owned()),
            ..Self::new(StatusCode::BAD_REQUEST, "BadRequestError", message)
        }
    }

    pub(super) fn unknown_model(asked: &str, known: &str) -> Self {
        let message = format!("The model `{asked}` does not exist. Valid aliases: {known}.");
        Self {
            param: Some("model".to_owned()),
            ..Self::not_found(&message)
        }
    }

    pub(super) fn not_found(message: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFoundError", message)
    }

    pub(super) fn unavailable() -> Self {
        let message = "the engine is overloaded; try again";
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailableError",
            message,
        )
    }

    pub(super) fn internal(message: &str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", message)
    }

    /// What kills the engine that this one models.
    pub(super) fn fatal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "EngineDeadError",
            "the engine met an assertion and died",
        )
    }

    pub(super) fn is_fatal(&self) -> bool {
        self.kind == "EngineDeadError"
    }

    pub(super) fn dead(why: &str) -> Self {
        let message =
            format!("EngineCore encountered an issue. See stack trace (above) for the root cause. {why}");
        Self::internal(message.trim_end())
    }

    pub(super) fn answer(self) -> Answer {
        let code = self.status.as_u16();
        let body =
            json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": code}});
        plain(self.status, "application/json", body.to_string())
    }
}

/// Writes one answer.
pub(super) struct Pen {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) text: Arc<dyn TextModel>,
    /// Whether the connection is cut after the first token.
    pub(super) breaks: bool,
    pub(super) order: Order,
}

/// A whole answer, but for what another instance is told.
pub(super) struct Written(String);

impl Written {
    /// The answer with its `kv_transfer_params`.
    pub(super) fn with_params(self, params: Option<&Value>) -> String {
        let params = params.map_or_else(|| "null".to_owned(), Value::to_string);
        format!("{},\"kv_transfer_params\":{params},\"metrics\":null}}", self.0)
    }
}

/// What stays at the engine after a whole answer.
#[derive(Default)]
pub(super) struct Kept {
    pub(super) blocks: Vec<u64>,
    pub(super) cached: u32,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
    completion_tokens: usize,
    prompt_tokens_details: Cached,
}

#[derive(Serialize)]
struct Cached {
    cached_tokens: u32,
}

/// One choice, as far as it has come.
struct Choice {
    stream: Box<dyn TextStream>,
    text: String,
    /// Text that was sent.
    sent: usize,
    tokens: Vec<u32>,
    reason: Option<&'static str>,
    stop: Option<String>,
}

impl Choice {
    fn new(text: &dyn TextModel) -> Self {
        Self {
            stream: text.stream(),
            text: String::new(),
            sent: 0,
            tokens: Vec::new(),
            reason: None,
            stop: None,
        }
    }

    /// Takes a token; whether a stop text ends the answer.
    fn push(&mut self, token: u32, stops: &[String]) -> bool {
        self.tokens.push(token);
        self.text.push_str(&self.stream.push(token).unwrap_or_default());
        let hit = stops
            .iter()
            .filter_map(|stop| Some((self.text.find(stop.as_str())?, stop)))
            .min();
        if let Some((at, stop)) = hit {
            self.text.truncate(at);
            self.reason = Some("stop");
            self.stop = Some(stop.clone());
        }
        self.reason.is_some()
    }

    fn finish(&mut self, stopped: bool) {
        self.text.push_str(&self.stream.finish().unwrap_or_default());
        self.reason = Some(if stopped { "stop" } else { "length" });
    }

    /// What may be sent: all of it but what may be the beginning of a stop text.
    fn unsent(&mut self, stops: &[String]) -> String {
        let longest = stops.iter().map(String::len).max().unwrap_or(1);
        let withheld = if self.reason.is_some() { 0 } else { longest - 1 };
        let upto = self
            .text
            .floor_char_boundary(self.text.len().saturating_sub(withheld))
            .max(self.sent);
        let more = self.text[self.sent..upto].to_owned();
        self.sent = upto;
        more
    }
}

type Answers = Vec<mpsc::UnboundedReceiver<Said>>;

impl Pen {
    /// The answer in one piece, and what stays.
    pub(super) async fn whole(self, answers: Answers) -> Result<(Written, Kept), Refusal> {
        let mut kept = Kept::default();
        let mut choices = Vec::new();
        for mut said in answers {
            let mut choice = Choice::new(self.text.as_ref());
            loop {
                match said.recv().await {
                    Some(Said::Begun { cached }) => kept.cached += cached,
                    Some(Said::Token(token)) => {
                        if self.breaks {
                            return Err(Refusal::internal("the engine broke in the middle"));
                        }
                        if choice.push(token, &self.order.stop) {
                            break;
                        }
                    }
                    Some(Said::Ended { stopped, parked }) => {
                        choice.finish(stopped);
                        kept.blocks.extend(parked);
                        break;
                    }
                    None => return Err(Refusal::dead("")),
                }
            }
            choices.push(choice);
        }
        let body = choices
            .iter()
            .enumerate()
            .map(|(at, choice)| self.whole_choice(at, choice));
        let body = body.collect::<Vec<_>>().join(",");
        let object = match self.order.door {
            Door::Chat => "chat.completion",
            Door::Completion => "text_completion",
        };
        let usage = text(&self.usage(&choices, kept.cached));
        let written = format!(
            "{{\"id\":{},\"object\":\"{object}\",\"created\":{},\"model\":{},\"choices\":[{body}],\"usage\":{usage}",
            text(&self.id),
            self.created,
            text(&self.model)
        );
        Ok((Written(written), kept))
    }

    fn whole_choice(&self, at: usize, choice: &Choice) -> String {
        let ids = self.ids(&choice.tokens);
        let (said, reason, stop) = (text(&choice.text), text(&choice.reason), text(&choice.stop));
        match self.order.door {
            Door::Chat => format!(
                "{{\"index\":{at},\"message\":{{\"role\":\"assistant\",\"content\":{said},\"refusal\":null}},\
                 \"logprobs\":null,\"finish_reason\":{reason},\"stop_reason\":{stop},\"token_ids\":{ids}}}"
            ),
            Door::Completion => format!(
                "{{\"index\":{at},\"text\":{said},\"logprobs\":null,\"finish_reason\":{reason},\"stop_reason\":{stop},\
                 \"token_ids\":{ids}}}"
            ),
        }
    }

    fn ids(&self, tokens: &[u32]) -> String {
        match self.order.token_ids {
            true => text(&tokens),
            false => "null".to_owned(),
        }
    }

    fn usage(&self, choices: &[Choice], cached: u32) -> Usage {
        let prompt: usize = self.order.prompts.iter().map(|p| p.len()).sum();
        let completion: usize = choices.iter().map(|c| c.tokens.len()).sum();
        Usage {
            prompt_tokens: prompt,
            total_tokens: prompt + completion,
            completion_tokens: completion,
            prompt_tokens_details: Cached {
                cached_tokens: cached,
            },
        }
    }

    /// The answer as server-sent events.
    pub(super) fn stream(self, answers: Answers) -> Answer {
        let (events_in, events) = mpsc::channel(64);
        tokio::spawn(self.write(answers, events_in));
        let mut answer = Response::new(Events(events).boxed());
        let kind = header::HeaderValue::from_static("text/event-stream; charset=utf-8");
        answer.headers_mut().insert(header::CONTENT_TYPE, kind);
        answer
    }

    /// Writes events until the last choice ends or nobody reads them; dropping the answers cancels what still runs.
    async fn write(self, answers: Answers, out: mpsc::Sender<io::Result<Bytes>>) {
        let mut choices: Vec<Choice> = answers.iter().map(|_| Choice::new(self.text.as_ref())).collect();
        let (all_in, mut all) = mpsc::unbounded_channel();
        let mut tasks = tokio::task::JoinSet::new();
        for (at, mut said) in answers.into_iter().enumerate() {
            let all = all_in.clone();
            tasks.spawn(async move {
                while let Some(said) = said.recv().await {
                    if all.send((at, said)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(all_in);
        let mut cached = 0;
        loop {
            let next = tokio::select! {
                next = all.recv() => next,
                () = out.closed() => return,
            };
            let Some((at, said)) = next else { break };
            let choice = &mut choices[at];
            let events = match said {
                Said::Begun { cached: found } => {
                    cached += found;
                    self.first(at)
                }
                // What comes after a stop text is not said.
                Said::Token(_) if choice.reason.is_some() => continue,
                Said::Token(token) => {
                    choice.push(token, &self.order.stop);
                    let piece = choice.unsent(&self.order.stop);
                    self.piece(at, &piece, &[token], choice.reason, choice.stop.as_deref())
                }
                Said::Ended { .. } if choice.reason.is_some() => continue,
                Said::Ended { stopped, .. } => {
                    choice.finish(stopped);
                    let piece = choice.unsent(&self.order.stop);
                    self.piece(at, &piece, &[], choice.reason, None)
                }
            };
            if out.send(Ok(Bytes::from(events))).await.is_err() {
                return;
            }
            if self.breaks && choices.iter().any(|c| !c.tokens.is_empty()) {
                drop(
                    out.send(Err(io::Error::other("the engine broke in the middle")))
                        .await,
                );
                return;
            }
            if choices.iter().all(|c| c.reason.is_some()) {
                break;
            }
        }
        if choices.iter().any(|choice| choice.reason.is_none()) {
            drop(out.send(Err(io::Error::other("the engine died"))).await);
            return;
        }
        let mut end = String::new();
        if self.order.usage {
            let usage = text(&self.usage(&choices, cached));
            end = format!("data: {},\"choices\":[],\"usage\":{usage}}}\n\n", self.head());
        }
        end.push_str("data: [DONE]\n\n");
        drop(out.send(Ok(Bytes::from(end))).await);
    }

    fn head(&self) -> String {
        let object = match self.order.door {
            Door::Chat => "chat.completion.chunk",
            Door::Completion => "text_completion",
        };
        format!(
            "{{\"id\":{},\"object\":\"{object}\",\"created\":{},\"model\":{}",
            text(&self.id),
            self.created,
            text(&self.model)
        )
    }

    /// What precedes the tokens of a chat.
    fn first(&self, at: usize) -> String {
        match self.order.door {
            Door::Completion => String::new(),
            Door::Chat => format!(
                "data: {},\"choices\":[{{\"index\":{at},\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\
                 \"logprobs\":null,\"finish_reason\":null}}],\"prompt_token_ids\":null}}\n\n",
                self.head()
            ),
        }
    }

    fn piece(
        &self,
        at: usize,
        piece: &str,
        tokens: &[u32],
        reason: Option<&str>,
        stop: Option<&str>,
    ) -> String {
        let (said, reason, ids) = (text(&piece), text(&reason), self.ids(tokens));
        let choice = match self.order.door {
            Door::Chat => format!(
                "{{\"index\":{at},\"delta\":{{\"content\":{said}}},\"logprobs\":null,\"finish_reason\":{reason},\
                 \"token_ids\":{ids}}}"
            ),
            Door::Completion => format!(
                "{{\"index\":{at},\"text\":{said},\"logprobs\":null,\"finish_reason\":{reason},\"stop_reason\":{},\
                 \"prompt_token_ids\":null,\"token_ids\":{ids}}}",
                text(&stop)
            ),
        };
        format!("data: {},\"choices\":[{choice}]}}\n\n", self.head())
    }
}

/// Its JSON, which for these types exists.
fn text<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

/// A body that is written while it is sent. Dropping it, as a client that leaves does, ends the writing.
struct Events(mpsc::Receiver<io::Result<Bytes>>);

impl Body for Events {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0
            .poll_recv(context)
            .map(|next| next.map(|piece| piece.map(Frame::data)))
    }
}
