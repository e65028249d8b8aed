//! How the client wants its answer drawn and delivered.

use super::fields::{Fields, unusable};
use super::{AnswerOptions, Delivery, Endpoint};
use crate::error::RequestError;
use portolan_base::Random;
use portolan_ports::Sampling;

/// Most answers to one prompt. Each holds a decode slot; OpenAI's own clients rarely ask for more than 4.
pub(super) const CHOICES_MAX: i64 = 8;

/// Most stop texts: OpenAI allows 4, agents written for vLLM send more.
const STOP_TEXTS_MAX: usize = 16;

/// Longest stop text in bytes: this much of the answer is withheld while it may still match.
const STOP_TEXT_MAX_BYTES: usize = 1024;

/// Below this the division of logits overflows; the answer is greedy instead, as in vLLM.
const GREEDY_BELOW: f64 = 1e-5;

/// What the client said about generation, before the prompt's length is known.
#[derive(Clone, Debug)]
pub(super) struct Generation {
    pub(super) sampling: Sampling,
    pub(super) stop: Vec<String>,
    pub(super) ignore_eos: bool,
    pub(super) limit: TokenLimit,
    pub(super) options: AnswerOptions,
}

/// The client's bound on the answer's length.
#[derive(Clone, Copy, Debug)]
pub(super) enum TokenLimit {
    /// It named none.
    Default(u32),
    /// It sent this in the field of this name.
    Asked(u32, &'static str),
}

impl Generation {
    pub(super) fn take(
        fields: &mut Fields<'_>,
        endpoint: Endpoint,
        random: &dyn Random,
    ) -> Result<Self, RequestError> {
        let choices = fields.integer("n", 1..=CHOICES_MAX)?.map_or(1, to_u32);
        let return_token_ids = fields.take::<bool>("return_token_ids")?.unwrap_or(false);
        let delivery = delivery(fields)?;
        Ok(Self {
            sampling: sampling(fields, random)?,
            stop: stop(fields)?,
            ignore_eos: fields.take::<bool>("ignore_eos")?.unwrap_or(false),
            limit: limit(fields, endpoint)?,
            options: AnswerOptions {
                endpoint,
                choices,
                delivery,
                return_token_ids,
            },
        })
    }
}

fn delivery(fields: &mut Fields<'_>) -> Result<Delivery, RequestError> {
    let streamed = fields.take::<bool>("stream")?.unwrap_or(false);
    let has_options = fields.has("stream_options");
    let mut options = fields.object("stream_options", "stream_options.")?;
    let usage = options.take::<bool>("include_usage")?.unwrap_or(false);
    if options.take::<bool>("continuous_usage_stats")?.unwrap_or(false) {
        let message = "stream_options.continuous_usage_stats is not supported here; use include_usage";
        return Err(
            RequestError::bad_field("stream_options.continuous_usage_stats", message)
                .with_code("unsupported_parameter"),
        );
    }
    match (streamed, has_options) {
        (false, true) => {
            let message = "stream_options may only be sent together with \"stream\": true";
            Err(RequestError::bad_field("stream_options", message))
        }
        (false, false) => Ok(Delivery::Whole),
        (true, _) if usage => Ok(Delivery::StreamWithUsage),
        (true, _) => Ok(Delivery::Stream),
    }
}

fn sampling(fields: &mut Fields<'_>, random: &dyn Random) -> Result<Sampling, RequestError> {
    let temperature = fields.number("temperature", 0.0..=100.0)?.unwrap_or(1.0);
    let top_p = fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0);
    // Below the smallest number of the engine's format it would read as 0 there.
    if (top_p as f32) == 0.0 {
        return Err(RequestError::bad_field("top_p", "top_p must be above 0, got 0"));
    }
    // -1 and 0 both mean "all", as in vLLM.
    let top_k = fields
        .integer("top_k", -1..=i64::from(u32::MAX))?
        .map_or(0, |k| to_u32(k.max(0)));
    let seed = fields.integer("seed", i64::MIN..=i64::MAX)?;
    Ok(Sampling {
        temperature: if temperature < GREEDY_BELOW {
            0.0
        } else {
            temperature as f32
        },
        top_p: top_p as f32,
        top_k,
        seed: seed.map_or_else(|| random.next_u64(), i64::cast_unsigned),
        ..Sampling::GREEDY
    })
}

fn stop(fields: &mut Fields<'_>) -> Result<Vec<String>, RequestError> {
    let Some(raw) = fields.raw("stop") else {
        return Ok(Vec::new());
    };
    let parsed = if raw.starts_with('[') {
        serde_json::from_str::<Vec<String>>(raw)
    } else {
        serde_json::from_str::<String>(raw).map(|text| vec![text])
    };
    let texts = parsed.map_err(|error| unusable("stop", &error))?;
    if texts.len() > STOP_TEXTS_MAX {
        let message = format!(
            "stop holds {} texts, at most {STOP_TEXTS_MAX} are taken",
            texts.len()
        );
        return Err(RequestError::bad_field("stop", message));
    }
    for text in &texts {
        if text.is_empty() {
            return Err(RequestError::bad_field(
                "stop",
                "stop holds an empty text, which would end every answer",
            ));
        }
        if text.len() > STOP_TEXT_MAX_BYTES {
            let message = format!(
                "a stop text has {} bytes, at most {STOP_TEXT_MAX_BYTES} are taken",
                text.len()
            );
            return Err(RequestError::bad_field("stop", message));
        }
    }
    Ok(texts)
}

fn limit(fields: &mut Fields<'_>, endpoint: Endpoint) -> Result<TokenLimit, RequestError> {
    let range = || 1..=i64::from(u32::MAX);
    let older = fields.integer("max_tokens", range())?;
    let newer = fields.integer("max_completion_tokens", range())?;
    Ok(match (newer, older) {
        (Some(tokens), _) => TokenLimit::Asked(to_u32(tokens), "max_completion_tokens"),
        (None, Some(tokens)) => TokenLimit::Asked(to_u32(tokens), "max_tokens"),
        (None, None) => TokenLimit::Default(endpoint.default_max_tokens()),
    })
}

impl TokenLimit {
    /// Most tokens to generate after a prompt of `prompt` tokens, which is below `context`.
    pub(super) fn resolve(self, prompt: u32, context: u32) -> Result<u32, RequestError> {
        let room = context.saturating_sub(prompt);
        match self {
            Self::Default(tokens) => Ok(tokens.min(room)),
            Self::Asked(tokens, _) if tokens <= room => Ok(tokens),
            Self::Asked(tokens, field) => {
                let message = format!(
                    "{field} is too large: {tokens}. This model's maximum context length is {context} tokens and \
                     your request has {prompt} input tokens ({tokens} > {context} - {prompt})."
                );
                Err(RequestError::bad_field(field, message).with_code("context_length_exceeded"))
            }
        }
    }
}

/// Converts what a range check has bounded.
fn to_u32(value: i64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
