//! What the client sent as its prompt, and how it becomes tokens.

use super::Endpoint;
use super::fields::{Fields, unusable};
use super::messages;
use crate::error::{ErrorKind, RequestError};
use crate::site::ServedModel;
use portolan_base::{Moment, TenantName};
use portolan_ports::{ChatMessage, TemplateValues, TextError};
use serde_json::value::RawValue;
use std::sync::Arc;

/// Most prompts of one request: each becomes a request of its own.
const PROMPTS_MAX: usize = 64;

/// The prompts of one request. Not empty.
#[derive(Clone, Debug)]
pub enum Prompts {
    /// One conversation.
    Chat(Vec<ChatMessage>),
    /// Raw texts.
    Texts(Vec<String>),
    /// The model's own tokens.
    Tokens(Vec<Vec<i64>>),
}

impl Prompts {
    /// Its size, as far as it takes memory.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Chat(messages) => messages.iter().map(|m| m.role.len() + m.content.len()).sum(),
            Self::Texts(texts) => texts.iter().map(String::len).sum(),
            Self::Tokens(lists) => lists.iter().map(|list| size_of_val(list.as_slice())).sum(),
        }
    }

    /// This prompt, which is one, and behind it each of `next`: as if they had been sent in one piece.
    pub(super) fn followed_by(self, next: Self) -> Result<Self, RequestError> {
        match (self, next) {
            (Self::Chat(mut messages), Self::Chat(more)) => {
                messages.extend(more);
                Ok(Self::Chat(messages))
            }
            (Self::Texts(first), Self::Texts(next)) => {
                let first = first.concat();
                Ok(Self::Texts(
                    next.into_iter().map(|text| format!("{first}{text}")).collect(),
                ))
            }
            (Self::Tokens(first), Self::Tokens(next)) => {
                let first = first.concat();
                let behind = |ids: Vec<i64>| first.iter().copied().chain(ids).collect();
                Ok(Self::Tokens(next.into_iter().map(behind).collect()))
            }
            _ => Err(RequestError::bad_field(
                "portolan.cache_id",
                "portolan.cache_id names a prompt of another kind: messages go behind messages, text behind text, \
                 token ids behind token ids",
            )),
        }
    }

    /// The tokens of the first prompt, for an engine that judges it by itself; none where it cannot be told. `more` is what
    /// the chat template is given besides.
    pub(super) fn first_tokens(
        self,
        model: &ServedModel,
        whose: &TenantName,
        more: &TemplateValues,
        at: Moment,
    ) -> Option<Arc<[u32]>> {
        let text = &model.text;
        let fits = |prompt: &str| could_fit("prompt", prompt, model).ok();
        let tokens = match self {
            Self::Chat(messages) => {
                let rendered = text.render_chat(&messages, more, at).ok()?;
                fits(&rendered)?;
                text.encode_chat(&rendered, whose).ok()?
            }
            Self::Texts(texts) => {
                let prompt = texts.first()?;
                fits(prompt)?;
                text.encode(prompt, true).ok()?
            }
            Self::Tokens(lists) => known_ids("prompt", lists.first()?, model.description.vocabulary).ok()?,
        };
        (!tokens.is_empty()).then(|| tokens.into())
    }

    pub(super) fn take(fields: &mut Fields<'_>, endpoint: Endpoint) -> Result<Self, RequestError> {
        match endpoint {
            Endpoint::Chat => messages::take(fields).map(Self::Chat),
            Endpoint::Completion => completion(fields),
        }
    }

    /// The tokens of each prompt: never empty, every id in the vocabulary, shorter than the context. The first prompt
    /// that does not fit ends the work.
    pub(super) fn tokenise(
        self,
        model: &ServedModel,
        whose: &TenantName,
        at: Moment,
    ) -> Result<Vec<Arc<[u32]>>, RequestError> {
        let text = &model.text;
        match self {
            Self::Chat(messages) => {
                let rendered = text
                    .render_chat(&messages, &TemplateValues::new(), at)
                    .map_err(|e| text_error(&e, "messages"))?;
                could_fit("messages", &rendered, model)?;
                let tokens = text.encode_chat(&rendered, whose);
                let tokens = tokens.map_err(|e| text_error(&e, "messages"))?;
                Ok(vec![fitting("messages", tokens, model)?])
            }
            Self::Texts(texts) => named(texts)
                .map(|(name, prompt)| {
                    could_fit(&name, &prompt, model)?;
                    let tokens = text.encode(&prompt, true).map_err(|e| text_error(&e, &name))?;
                    fitting(&name, tokens, model)
                })
                .collect(),
            Self::Tokens(lists) => named(lists)
                .map(|(name, ids)| {
                    fitting(
                        &name,
                        known_ids(&name, &ids, model.description.vocabulary)?,
                        model,
                    )
                })
                .collect(),
        }
    }
}

/// A normaliser may join characters before it cuts, so that a token stands for more bytes than it has: a letter with
/// its accent apart has three bytes where the letter in one piece has two.
const NORMALISED_BYTES: usize = 2;

/// Refuses a text that cannot fit the context however it is cut, before any time is spent on cutting it.
fn could_fit(name: &str, prompt: &str, model: &ServedModel) -> Result<(), RequestError> {
    let context = model.description.context_tokens.0 as usize;
    let most = context
        .saturating_mul(model.text.longest_token_bytes())
        .saturating_mul(NORMALISED_BYTES);
    if prompt.len() <= most {
        return Ok(());
    }
    let message = format!(
        "{name} has {} bytes; this model's maximum context length of {context} tokens holds at most {most}. \
         Please reduce the length of the input.",
        prompt.len()
    );
    let field = name.split('[').next().unwrap_or(name);
    Err(RequestError::bad_field(field, message).with_code("context_length_exceeded"))
}

/// Prompts with the name an error gives them: the only one is `prompt`, of several the second is `prompt[1]`.
fn named<T>(prompts: Vec<T>) -> impl Iterator<Item = (String, T)> {
    let several = prompts.len() > 1;
    prompts
        .into_iter()
        .enumerate()
        .map(move |(i, prompt)| match several {
            true => (format!("prompt[{i}]"), prompt),
            false => ("prompt".to_owned(), prompt),
        })
}

fn completion(fields: &mut Fields<'_>) -> Result<Prompts, RequestError> {
    let Some(raw) = fields.raw("prompt") else {
        return Err(RequestError::bad_field(
            "prompt",
            "prompt is missing; send a text, texts, token ids or lists of them",
        ));
    };
    let form = |error: &serde_json::Error| unusable("prompt", error);
    let first = raw
        .strip_prefix('[')
        .map(|inner| inner.trim_start().chars().next().unwrap_or(']'));
    match (raw.chars().next(), first) {
        (Some('"'), _) => bounded(vec![serde_json::from_str(raw).map_err(|e| form(&e))?]).map(Prompts::Texts),
        (_, Some(']')) => Err(RequestError::bad_field(
            "prompt",
            "prompt is an empty list; send at least one prompt",
        )),
        (_, Some('"')) => {
            let items: Vec<&RawValue> = serde_json::from_str(raw).map_err(|e| form(&e))?;
            bounded(items)?;
            serde_json::from_str(raw)
                .map(Prompts::Texts)
                .map_err(|e| form(&e))
        }
        (_, Some('[')) => {
            let items: Vec<&RawValue> = serde_json::from_str(raw).map_err(|e| form(&e))?;
            bounded(items)?;
            serde_json::from_str(raw)
                .map(Prompts::Tokens)
                .map_err(|e| form(&e))
        }
        (_, Some(_)) => {
            let ids: Vec<i64> = serde_json::from_str(raw).map_err(|e| form(&e))?;
            Ok(Prompts::Tokens(vec![ids]))
        }
        _ => Err(RequestError::bad_field(
            "prompt",
            "prompt must be a text, a list of texts, a list of token ids or a list of such lists",
        )),
    }
}

fn bounded<T>(prompts: Vec<T>) -> Result<Vec<T>, RequestError> {
    if prompts.len() > PROMPTS_MAX {
        let message = format!(
            "prompt holds {} prompts, at most {PROMPTS_MAX} are taken at once",
            prompts.len()
        );
        return Err(RequestError::bad_field("prompt", message));
    }
    Ok(prompts)
}

fn known_ids(name: &str, ids: &[i64], vocabulary: u32) -> Result<Vec<u32>, RequestError> {
    ids.iter()
        .map(|&id| {
            u32::try_from(id)
                .ok()
                .filter(|&id| id < vocabulary)
                .ok_or_else(|| {
                    let last = vocabulary.saturating_sub(1);
                    let message = format!(
                        "{name}: token id {id} is out of vocabulary; this model's ids are 0 to {last}"
                    );
                    RequestError::bad_field("prompt", message)
                })
        })
        .collect()
}

fn fitting(name: &str, tokens: Vec<u32>, model: &ServedModel) -> Result<Arc<[u32]>, RequestError> {
    let field = name.split('[').next().unwrap_or(name);
    if tokens.is_empty() {
        return Err(RequestError::bad_field(
            field,
            format!("{name} is empty; send at least one token"),
        ));
    }
    let context = model.description.context_tokens.0;
    if u64::from(context) <= tokens.len() as u64 {
        let message = format!(
            "This model's maximum context length is {context} tokens. However, your prompt contains {} input tokens, \
             which leaves no room for an answer. Please reduce the length of the input prompt.",
            tokens.len()
        );
        return Err(RequestError::bad_field(field, message).with_code("context_length_exceeded"));
    }
    Ok(tokens.into())
}

fn text_error(error: &TextError, name: &str) -> RequestError {
    let field = name.split('[').next().unwrap_or(name);
    match error {
        TextError::NoChatTemplate | TextError::Template(_) => {
            RequestError::bad_field(field, error.to_string())
        }
        TextError::Tokenizer(_) => {
            RequestError::new(ErrorKind::Internal, "the prompt could not be turned into tokens")
                .with_detail(error)
        }
    }
}
