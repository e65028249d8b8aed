//! A request for engines that answer whole ones: kept as it was written, and read for what the host has to know. What
//! cannot be read here is the engine's to judge.

use super::fields::Fields;
use super::lax;
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
pub(super) fn keep(call: &Call, outline: &Outline) -> Arc<Original> {
    Arc::new(Original {
        path: match call.endpoint {
            Endpoint::Chat => WholePath::Chat,
            Endpoint::Completion => WholePath::Completions,
        },
        body: call.body.clone(),
        remove: Arc::from(OURS),
        headers: headers(&call.headers),
        streamed: outline.delivery != Delivery::Whole,
        answers: outline.answers,
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

/// More answers than any request may ask for.
const MANY: usize = 1_000_000_000;

/// Reads a request as far as it can be read.
pub(super) fn outline(
    mut fields: Fields<'_>,
    endpoint: Endpoint,
    model: &ServedModel,
    (whose, at): (&TenantName, Moment),
) -> Outline {
    let context = model.description.context_tokens.0;
    let answers = answers(&fields);
    let number = |name: &str| fields.peek(name).and_then(lax::number);
    let asked = number("max_completion_tokens").or_else(|| number("max_tokens"));
    let delivery = match fields.peek("stream").is_some_and(lax::flag) {
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
    let tokens = prompts.and_then(|prompts| prompts.first_tokens(model, whose, &more, at));
    let tokens = tokens.unwrap_or_else(|| guessed(raw_bytes, context));
    let room = context.saturating_sub(tokens.len() as u32).max(1);
    let default = match endpoint {
        Endpoint::Chat => room,
        Endpoint::Completion => endpoint.default_max_tokens(),
    };
    Outline {
        prompt: tokens,
        max_tokens: asked.map_or(default, |n| n as u32).clamp(1, room),
        answers,
        delivery,
    }
}

/// Answers that an engine would give, however the request is written: some take `"n": "8"` for 8.
fn answers(fields: &Fields<'_>) -> usize {
    let choices = ["n", "best_of"]
        .map(|name| fields.peek(name).map_or(1, choices))
        .into_iter()
        .max();
    let prompts = ["prompt", "prompt_embeds"]
        .map(|name| fields.peek(name).map_or(0, listed))
        .into_iter()
        .sum::<usize>();
    choices.unwrap_or(1).max(1).saturating_mul(prompts.max(1))
}

/// How many choices a field asks for: more than any where that cannot be told.
fn choices(raw: &str) -> usize {
    match raw {
        "null" => 1,
        _ => lax::number(raw).map_or(MANY, |n| n.ceil().clamp(1.0, MANY as f64) as usize),
    }
}

/// Prompts in a field: a list of numbers is one prompt's tokens.
fn listed(raw: &str) -> usize {
    let inner = raw.strip_prefix('[').map_or("", str::trim_start);
    match inner.starts_with(['"', '[', '{']) {
        _ if raw == "null" => 0,
        true => serde_json::from_str::<Vec<&RawValue>>(raw).map_or(1, |prompts| prompts.len()),
        false => 1,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_whatever_an_engine_would_read_and_the_host_would_not() {
        let many = format!("[{}]", vec!["\"a\""; 65].join(","));
        for (body, expected) in [
            (r#"{"messages":[]}"#.to_owned(), 1),
            (r#"{"prompt":"a","n":null}"#.to_owned(), 1),
            (r#"{"prompt":[1,2,3],"n":3}"#.to_owned(), 3),
            (r#"{"prompt":[[1],[2]],"n":"8"}"#.to_owned(), 16),
            (r#"{"prompt":["a",[1]],"n":4.0}"#.to_owned(), 8),
            (r#"{"prompt":"a","best_of":70}"#.to_owned(), 70),
            (r#"{"prompt_embeds":["a","b"],"prompt":""}"#.to_owned(), 3),
            (r#"{"prompt_embeds":null,"prompt":"a"}"#.to_owned(), 1),
            (format!(r#"{{"prompt":{many}}}"#), 65),
            (r#"{"prompt":"a","n":1e400}"#.to_owned(), MANY),
            (r#"{"prompt":"a","n":"many"}"#.to_owned(), MANY),
            (r#"{"prompt":"a","n":"\u0036\u0034"}"#.to_owned(), 64),
            (r#"{"prompt":"a","best_of":"1_28"}"#.to_owned(), 128),
            (r#"{"prompt":[],"n":-1}"#.to_owned(), 1),
        ] {
            let body = bytes::Bytes::from(body);
            assert_eq!(answers(&Fields::parse(&body).unwrap()), expected, "{body:?}");
        }
    }
}
