//! An answer on its way to the client.

use crate::error::RequestError;
use bytes::Bytes;
use portolan_base::RequestId;
use portolan_base::kv::KvQuant;
use portolan_ports::{AnswerHead, CancelOnDrop, FinishReason};
use tokio::sync::mpsc;

/// What was computed for the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub completion_tokens: u32,
    /// Prompt tokens whose KV was reused.
    pub cached_tokens: u32,
    /// How the prompt's KV was quantised on its way here.
    pub kv_quantised: Option<KvQuant>,
}

/// A token as clients are told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToldToken {
    /// What it stands for; need not be whole characters.
    pub bytes: Vec<u8>,
    /// The natural logarithm of its probability, before anything that the client asked for changed it.
    pub logprob: f32,
}

/// A token that was drawn, and the likeliest that might have been in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct ToldLogprobs {
    /// What was drawn.
    pub drawn: ToldToken,
    /// As many as the client asked for, the likeliest first.
    pub likeliest: Vec<ToldToken>,
}

/// What comes out of the stages, in order. Exactly one of `Finished`, `Ended` and `Failed` ends it.
#[derive(Clone, Debug)]
pub enum AnswerEvent {
    /// One more token and the text it completes, which may be empty.
    Delta {
        /// The token.
        token: u32,
        /// Complete UTF-8, stop texts cut off.
        text: String,
        /// What the model thought of it, where the client asked.
        logprobs: Option<ToldLogprobs>,
    },
    /// The answer is complete. `text` was withheld until it was known not to begin a stop text.
    Finished {
        /// The rest of the text.
        text: String,
        /// Why it ended.
        reason: FinishReason,
        /// What was computed.
        usage: Usage,
    },
    /// An engine's own answer begins: its head, then its bytes, then its end.
    Head(AnswerHead),
    /// More of an engine's own answer.
    Bytes(Bytes),
    /// An engine's own answer is complete.
    Ended,
    /// The answer broke off.
    Failed(RequestError),
}

/// A request being served. Dropping it cancels the request wherever it is.
#[derive(Debug)]
pub struct Answer {
    /// The request.
    pub id: RequestId,
    /// What comes.
    pub events: mpsc::UnboundedReceiver<AnswerEvent>,
    /// Cancels when the client is gone.
    pub cancel: CancelOnDrop,
}
