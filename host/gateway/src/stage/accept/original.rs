//! A request for engines that answer whole ones: kept as it was written, and read for what the host has to know. What
//! cannot be read here is the engine's to judge.

use super::fields::Fields;
use super::prompt::Prompts;
use super::{Call, Delivery, Endpoint};
use crate::accepted::Original;
use crate::site::ServedModel;
use axum::http::HeaderMap;
use portolan_base::{Moment, TenantName};
use portolan_ports::{TemplateValues, WholePath};
use serde_json::value::RawValue;
use std::sync::Arc;

/// Fields that the host reads and no engine is given.
const OURS: [&str; 5] = [
    "portolan",
    "request_id",
    "tenant_id",
    "trace_id",
    "prefill_policy",
];

/// Headers that are of this connection, of this host, or written anew for the engine.
const KEPT_BACK: [&str; 18] = [
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "keep-alive",
    "accept-encoding",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-api-key",
    "x-request-id",
];

/// Variables of a chat template that a request may set.
const TEMPLATE: [&str; 4] = [
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
];

/// What a request is read for.
pub(super) struct Outline {
    /// The first prompt, as well as it can be told. Not empty.
    pub(super) prompt: Arc<[u32]>,
    /// Most tokens of one answer.
    pub(super) max_tokens: u32,
    /// Answers to each prompt, all prompts together.
    pub(super) answers: usize,
    pub(super) delivery: Delivery,
}

/// Keeps a request.
pub(super) fn keep(call: &Call, delivery: Delivery) -> Arc<Original> {
    Arc::new(Original {
        path: match call.endpoint {
            Endpoint::Chat => WholePath::Chat,
            Endpoint::Completion => WholePath::Completions,
        },
        body: call.body.clone(),
        remove: Arc::from(OURS),
        headers: headers(&call.headers),
        streamed: delivery != Delivery::Whole,
    })
}

fn headers(headers: &HeaderMap) -> Arc<[(String, String)]> {
    let named: Vec<String> = headers
        .get_all("connection")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    let passes = |name: &str| {
        !KEPT_BACK.contains(&name) && !name.starts_with("x-portolan-") && !named.iter().any(|n| n == name)
    };
    headers
        .iter()
        .filter(|(name, _)| passes(name.as_str()))
        .filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())))
        .collect()
}

/// Reads a request as far as it can be read.
pub(super) fn outline(
    mut fields: Fields<'_>,
    endpoint: Endpoint,
    model: &ServedModel,
    (whose, at): (&TenantName, Moment),
) -> Outline {
    let context = model.description.context_tokens.0;
    let mut number = |name: &str| fields.take::<u64>(name).ok().flatten();
    let choices = number("n").unwrap_or(1).clamp(1, 1024) as usize;
    let asked = number("max_completion_tokens").or_else(|| number("max_tokens"));
    let mut flag = |name: &str| fields.take::<bool>(name).ok().flatten().unwrap_or(false);
    let delivery = match flag("stream") {
        true => Delivery::Stream,
        false => Delivery::Whole,
    };
    let more = template_values(&mut fields);
    // Where the prompt is not of a form that is known here, its length is guessed from its text, and nothing is found.
    let raw = match endpoint {
        Endpoint::Chat => fields.peek("messages"),
        Endpoint::Completion => fields.peek("prompt"),
    };
    let raw_bytes = raw.map_or(1, str::len);
    let prompts = Prompts::take(&mut fields, endpoint).ok();
    let count = prompts.as_ref().map_or(1, Prompts::count);
    let tokens = prompts.and_then(|prompts| prompts.first_tokens(model, whose, &more, at));
    let tokens = tokens.unwrap_or_else(|| guessed(raw_bytes, context));
    let room = context.saturating_sub(tokens.len() as u32).max(1);
    let default = match endpoint {
        Endpoint::Chat => room,
        Endpoint::Completion => endpoint.default_max_tokens(),
    };
    Outline {
        prompt: tokens,
        max_tokens: asked
            .map_or(default, |n| u32::try_from(n).unwrap_or(u32::MAX))
            .clamp(1, room),
        answers: choices * count,
        delivery,
    }
}

/// What the client sets of its chat template.
fn template_values(fields: &mut Fields<'_>) -> TemplateValues {
    let mut more = TemplateValues::new();
    for name in TEMPLATE {
        if let Some(Ok(value)) = fields.raw(name).map(|raw| RawValue::from_string(raw.to_owned())) {
            more.insert(name.to_owned(), value);
        }
    }
    let own = fields.raw("chat_template_kwargs").unwrap_or("{}");
    if let Ok(own) = serde_json::from_str::<TemplateValues>(own) {
        more.extend(own);
    }
    more
}

/// Four bytes of text are a token or less, in the scripts that are longest in tokens.
fn guessed(bytes: usize, context: u32) -> Arc<[u32]> {
    let tokens = (bytes / 4).clamp(1, context.max(1) as usize);
    vec![0; tokens].into()
}
