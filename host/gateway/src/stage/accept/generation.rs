//! How the client wants its answer drawn and delivered.

use super::fields::{Fields, unusable};
use super::{AnswerOptions, Delivery, Endpoint};
use crate::error::RequestError;
use portolan_base::Random;
use portolan_ports::Sampling;
use std::collections::BTreeMap;

/// Most answers to one prompt. Each holds a decode slot; OpenAI's own clients rarely ask for more than 4.
pub(super) const CHOICES_MAX: i64 = 8;

/// Most stop texts: OpenAI allows 4, agents written for vLLM send more.
const STOP_TEXTS_MAX: usize = 16;

/// Longest stop text in bytes: this much of the answer is withheld while it may still match.
const STOP_TEXT_MAX_BYTES: usize = 1024;

/// Most tokens that end an answer: they are looked for in every step.
const STOP_TOKENS_MAX: usize = 256;

/// Most tokens with a bias, as in OpenAI's API.
const BIASES_MAX: usize = 300;

/// Largest bias either way, as in OpenAI's API: it bans a token, or makes it certain.
const BIAS_MAX: f32 = 100.0;

/// Most of the likeliest tokens that are told, as in OpenAI's and vLLM's chats.
const LOGPROBS_MAX: i64 = 20;

/// Below this the division of logits overflows; the answer is greedy instead, as in vLLM.
const GREEDY_BELOW: f64 = 1e-5;

/// What the client said about generation, before the prompt's length is known.
#[derive(Clone, Debug)]
pub(super) struct Generation {
    pub(super) sampling: Sampling,
    pub(super) stop: Vec<String>,
    pub(super) stop_token_ids: Vec<u32>,
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
            sampling: sampling(fields, endpoint, random)?,
            stop: stop(fields)?,
            stop_token_ids: stop_token_ids(fields)?,
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

impl Generation {
    /// For a prompt that gets no answer: what was said of one was read and binds nothing.
    pub(super) fn without_answer(mut self, endpoint: Endpoint) -> Self {
        self.options.choices = 1;
        self.limit = TokenLimit::Default(endpoint.default_max_tokens());
        self.sampling.min_tokens = 0;
        self
    }

    /// Whether every token that it names is one of the model's.
    pub(super) fn check_tokens(&self, vocabulary: u32) -> Result<(), RequestError> {
        let biased = self
            .sampling
            .logit_bias
            .iter()
            .map(|(token, _)| ("logit_bias", token));
        let stops = self.stop_token_ids.iter().map(|token| ("stop_token_ids", token));
        match biased.chain(stops).find(|(_, token)| **token >= vocabulary) {
            None => Ok(()),
            Some((field, token)) => {
                let last = vocabulary.saturating_sub(1);
                let message = format!("{field} names token {token}; this model's ids are 0 to {last}");
                Err(RequestError::bad_field(field, message))
            }
        }
    }

    /// Whether an answer of at most `max_tokens` can be as long as it is to be at least.
    pub(super) fn check_least(&self, max_tokens: u32) -> Result<(), RequestError> {
        let least = self.sampling.min_tokens;
        if least <= max_tokens {
            return Ok(());
        }
        let message = format!("min_tokens must be at most max_tokens, {max_tokens}, got {least}");
        Err(RequestError::bad_field("min_tokens", message))
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

fn sampling(
    fields: &mut Fields<'_>,
    endpoint: Endpoint,
    random: &dyn Random,
) -> Result<Sampling, RequestError> {
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
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(0.0) as f32,
        presence_penalty: penalty(fields, "presence_penalty")?,
        frequency_penalty: penalty(fields, "frequency_penalty")?,
        repetition_penalty: repetition_penalty(fields)?,
        logit_bias: logit_bias(fields)?,
        min_tokens: fields
            .integer("min_tokens", 0..=i64::from(u32::MAX))?
            .map_or(0, to_u32),
        logprobs: logprobs(fields, endpoint)?,
        seed: seed.map_or_else(|| random.next_u64(), i64::cast_unsigned),
    })
}

fn penalty(fields: &mut Fields<'_>, name: &str) -> Result<f32, RequestError> {
    Ok(fields.number(name, -2.0..=2.0)?.unwrap_or(0.0) as f32)
}

fn repetition_penalty(fields: &mut Fields<'_>) -> Result<f32, RequestError> {
    let factor = fields.number("repetition_penalty", 0.0..=100.0)?.unwrap_or(1.0) as f32;
    if factor == 0.0 {
        let message = "repetition_penalty must be above 0, got 0";
        return Err(RequestError::bad_field("repetition_penalty", message));
    }
    Ok(factor)
}

/// An object from token ids, written as texts, to numbers.
fn logit_bias(fields: &mut Fields<'_>) -> Result<Vec<(u32, f32)>, RequestError> {
    let Some(biases) = fields.take::<BTreeMap<String, f32>>("logit_bias")? else {
        return Ok(Vec::new());
    };
    let bad = |message| Err(RequestError::bad_field("logit_bias", message));
    if biases.len() > BIASES_MAX {
        return bad(format!(
            "logit_bias names {} tokens, at most {BIASES_MAX} are taken",
            biases.len()
        ));
    }
    let mut out: Vec<(u32, f32)> = Vec::with_capacity(biases.len());
    for (token, bias) in biases {
        let Ok(token) = token.parse::<u32>() else {
            return bad("logit_bias must name tokens by their ids".to_owned());
        };
        if out.iter().any(|(other, _)| *other == token) {
            return bad(format!("logit_bias names token {token} twice"));
        }
        if !(-BIAS_MAX..=BIAS_MAX).contains(&bias) {
            return bad(format!(
                "a bias must be from -{BIAS_MAX} to {BIAS_MAX}, got {bias} for token {token}"
            ));
        }
        out.push((token, bias));
    }
    Ok(out)
}

/// For chats a switch and a number, for completions the number.
fn logprobs(fields: &mut Fields<'_>, endpoint: Endpoint) -> Result<Option<u32>, RequestError> {
    if endpoint == Endpoint::Completion {
        return Ok(fields.integer("logprobs", 0..=LOGPROBS_MAX)?.map(to_u32));
    }
    let wanted = fields.take::<bool>("logprobs")?.unwrap_or(false);
    let likeliest = fields.integer("top_logprobs", 0..=LOGPROBS_MAX)?;
    match (wanted, likeliest) {
        (true, likeliest) => Ok(Some(likeliest.map_or(0, to_u32))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            let message = "top_logprobs may only be sent together with \"logprobs\": true";
            Err(RequestError::bad_field("top_logprobs", message))
        }
    }
}

fn stop_token_ids(fields: &mut Fields<'_>) -> Result<Vec<u32>, RequestError> {
    let ids = fields.take::<Vec<u32>>("stop_token_ids")?.unwrap_or_default();
    if ids.len() > STOP_TOKENS_MAX {
        let message = format!(
            "stop_token_ids holds {} tokens, at most {STOP_TOKENS_MAX} are taken",
            ids.len()
        );
        return Err(RequestError::bad_field("stop_token_ids", message));
    }
    Ok(ids)
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
