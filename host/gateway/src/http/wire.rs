//! OpenAI's shapes of answers. `token_ids` and `prompt_token_ids` are vLLM's, sent when asked for.

use crate::answer::Usage;
use crate::stage::accept::{Endpoint, Order};
use portolan_base::kv::KvQuant;
use portolan_ports::FinishReason;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

/// What every piece of one answer begins with.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
}

impl Head {
    pub(super) fn of(order: &Order) -> Self {
        let prefix = match order.options.endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completion => "cmpl",
        };
        // An order holds at least one request.
        let first = order.requests.first();
        Self {
            id: format!("{prefix}-{}", order.id),
            created: first.map_or(0, |request| request.at.millis() / 1000),
            model: first.map(|request| request.model.to_string()).unwrap_or_default(),
        }
    }
}

/// A whole answer, or a piece of a stream.
#[derive(Debug, Serialize)]
pub(super) struct Envelope<'a, C> {
    pub(super) id: &'a str,
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: &'a str,
    pub(super) choices: Vec<C>,
    /// Outer `None`: the field is left out; inner: it is null.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Option<UsageBody>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_token_ids: Option<Arc<[u32]>>,
}

/// One answer of a chat that is delivered whole.
#[derive(Debug, Serialize)]
pub(super) struct ChatChoice {
    pub(super) index: usize,
    pub(super) message: ChatAnswer,
    pub(super) logprobs: Option<Value>,
    pub(super) finish_reason: FinishReason,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token_ids: Option<Vec<u32>>,
}

/// What the model said.
#[derive(Debug, Serialize)]
pub(super) struct ChatAnswer {
    pub(super) role: &'static str,
    pub(super) content: String,
    pub(super) refusal: Option<String>,
}

/// A piece of a streamed chat answer.
#[derive(Debug, Serialize)]
pub(super) struct ChatPiece {
    pub(super) index: usize,
    pub(super) delta: Delta,
    pub(super) logprobs: Option<Value>,
    pub(super) finish_reason: Option<FinishReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token_ids: Option<Vec<u32>>,
}

/// What a piece adds to the message.
#[derive(Debug, Default, Serialize)]
pub(super) struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<String>,
}

/// One completion, whole or a piece of a stream.
#[derive(Debug, Serialize)]
pub(super) struct TextChoice {
    pub(super) index: usize,
    pub(super) text: String,
    pub(super) logprobs: Option<Value>,
    pub(super) finish_reason: Option<FinishReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_token_ids: Option<Arc<[u32]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token_ids: Option<Vec<u32>>,
}

/// Token counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct UsageBody {
    prompt_tokens: u32,
    total_tokens: u32,
    completion_tokens: u32,
    prompt_tokens_details: PromptDetails,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct PromptDetails {
    cached_tokens: u32,
    /// Ours: such an answer is not promised to equal a single site's.
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_quantised: Option<KvQuant>,
}

/// Adds up the counts of an order's answers. The answers to one prompt share it: it counts once.
pub(super) fn total(usages: &[Usage], choices: u32) -> UsageBody {
    let mut sum = Usage::default();
    for (position, usage) in usages.iter().enumerate() {
        sum.completion_tokens = sum.completion_tokens.saturating_add(usage.completion_tokens);
        if position % choices.max(1) as usize == 0 {
            sum.prompt_tokens = sum.prompt_tokens.saturating_add(usage.prompt_tokens);
            sum.cached_tokens = sum.cached_tokens.saturating_add(usage.cached_tokens);
        }
        // The coarsest of all: four bits order after eight.
        sum.kv_quantised = sum.kv_quantised.max(usage.kv_quantised);
    }
    UsageBody {
        prompt_tokens: sum.prompt_tokens,
        total_tokens: sum.prompt_tokens.saturating_add(sum.completion_tokens),
        completion_tokens: sum.completion_tokens,
        prompt_tokens_details: PromptDetails {
            cached_tokens: sum.cached_tokens,
            kv_quantised: sum.kv_quantised,
        },
    }
}
