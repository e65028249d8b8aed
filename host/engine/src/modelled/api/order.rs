//! What a client asks of a modelled engine, read as vLLM reads it: fields it does not know are passed over.

mod limits;

use super::super::ModelledText;
use super::super::hand_over::Transfer;
use super::reply::Refusal;
use crate::splice::field;
use portolan_base::Moment;
use portolan_ports::{ChatMessage, TemplateValues};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Which of the two inference paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    Chat,
    Completion,
}

/// One request.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) door: Door,
    pub(super) prompts: Vec<Arc<[u32]>>,
    pub(super) choices: u32,
    pub(super) max_tokens: u32,
    pub(super) ignore_eos: bool,
    pub(super) stop: Vec<String>,
    pub(super) stream: bool,
    pub(super) usage: bool,
    pub(super) token_ids: bool,
    pub(super) salt: Option<String>,
    pub(super) transfer: Transfer,
    /// Drawn answers differ by seed and choice; greedy ones do not.
    seed: Option<u64>,
}

impl Order {
    pub(super) fn choice_seed(&self, choice: u32) -> u64 {
        match self.seed {
            None => 0,
            Some(seed) => seed.wrapping_mul(1_000_003).wrapping_add(u64::from(choice) + 1),
        }
    }
}

/// What a request is read against.
pub(super) struct Reading<'a> {
    pub(super) model: &'a str,
    pub(super) text: &'a ModelledText,
    pub(super) context: u32,
    /// The time that chat templates print.
    pub(super) at: Moment,
}

impl Reading<'_> {
    pub(super) fn order(&self, door: Door, body: &[u8]) -> Result<Order, Refusal> {
        let fields = self.fields(body)?;
        limits::check(&fields)?;
        let number = |name: &str| fields.get(name).and_then(Value::as_u64);
        let flag = |name: &str| fields.get(name).and_then(Value::as_bool).unwrap_or(false);
        let text = |name: &str| fields.get(name).and_then(Value::as_str);
        let prompts = match door {
            Door::Chat => vec![self.chat(&fields, body)?],
            Door::Completion => self.completion(&fields)?,
        };
        let longest = prompts.iter().map(|p| p.len() as u32).max().unwrap_or(0);
        let room = self.room(longest)?;
        let asked = number("max_completion_tokens").or_else(|| number("max_tokens"));
        let max_tokens = match (asked, door) {
            (Some(n), _) if n > u64::from(room) => {
                return Err(Refusal::field(
                    "max_tokens",
                    &format!(
                        "'max_tokens' is too large: {n}. This model's maximum context length is {} tokens and your \
                         request has {longest} input tokens.",
                        self.context
                    ),
                ));
            }
            (Some(n), _) => n as u32,
            (None, Door::Completion) => 16.min(room),
            (None, Door::Chat) => room,
        };
        let own = fields
            .get("kv_transfer_params")
            .filter(|params| !params.is_null());
        let among_extensions = fields
            .get("vllm_xargs")
            .and_then(|own| own.get("kv_transfer_params"));
        let transfer = match (own, among_extensions) {
            (Some(params), _) => Transfer::read(params).map_err(|_| Refusal::fatal())?,
            // Whatever may stand there is no object, and the engine it models looks into it as if it were.
            (None, Some(_)) => return Err(Refusal::fatal()),
            (None, None) => Transfer::None,
        };
        let greedy = fields.get("temperature").and_then(Value::as_f64) == Some(0.0);
        let options = fields.get("stream_options");
        Ok(Order {
            door,
            prompts,
            choices: number("n").unwrap_or(1).clamp(1, 64) as u32,
            max_tokens,
            ignore_eos: flag("ignore_eos"),
            stop: stops(fields.get("stop")),
            stream: flag("stream"),
            usage: options
                .and_then(|o| o.get("include_usage"))
                .and_then(Value::as_bool)
                .unwrap_or(false),
            token_ids: flag("return_token_ids"),
            salt: text("cache_salt").map(str::to_owned),
            transfer,
            seed: (!greedy).then(|| number("seed").unwrap_or(0)),
        })
    }

    pub(super) fn tokenize(&self, body: &[u8]) -> Result<Vec<u32>, Refusal> {
        let fields = self.fields(body)?;
        match fields.get("messages") {
            Some(_) => Ok(self.chat(&fields, body)?.to_vec()),
            None => Ok(self
                .completion(&fields)?
                .first()
                .map(|p| p.to_vec())
                .unwrap_or_default()),
        }
    }

    fn fields(&self, body: &[u8]) -> Result<Map<String, Value>, Refusal> {
        let fields: Map<String, Value> =
            serde_json::from_slice(body).map_err(|e| Refusal::bad(&format!("JSON decode error: {e}")))?;
        match fields.get("model").and_then(Value::as_str) {
            Some(asked) if asked != self.model => Err(Refusal::unknown_model(asked, self.model)),
            _ => Ok(fields),
        }
    }

    fn chat(&self, fields: &Map<String, Value>, body: &[u8]) -> Result<Arc<[u32]>, Refusal> {
        let raw = fields
            .get("messages")
            .and_then(Value::as_array)
            .filter(|m| !m.is_empty());
        let raw = raw.ok_or_else(|| Refusal::field("messages", "messages must hold at least one message"))?;
        let messages: Result<Vec<_>, _> = raw.iter().map(message).collect();
        let messages = messages.map_err(|problem| Refusal::field("messages", problem))?;
        let model = &self.text.text;
        let rendered = model
            .render_chat(&messages, &template_values(body), self.at)
            .map_err(|e| Refusal::field("messages", &e.to_string()))?;
        let tokens = model
            .encode(&rendered, false)
            .map_err(|e| Refusal::field("messages", &e.to_string()))?;
        Ok(tokens.into())
    }

    fn completion(&self, fields: &Map<String, Value>) -> Result<Vec<Arc<[u32]>>, Refusal> {
        let wrong = || {
            Refusal::field(
                "prompt",
                "prompt must be a text, texts, token ids or lists of them",
            )
        };
        let ids = |list: &[Value]| -> Result<Arc<[u32]>, Refusal> {
            let id = |id: &Value| {
                id.as_u64()
                    .and_then(|id| u32::try_from(id).ok())
                    .filter(|id| *id < self.text.vocabulary)
                    .ok_or_else(|| Refusal::field("prompt", "Token id out of vocabulary"))
            };
            list.iter().map(id).collect()
        };
        let text = |text: &str| -> Result<Arc<[u32]>, Refusal> {
            let tokens = self.text.text.encode(text, true);
            Ok(tokens
                .map_err(|e| Refusal::field("prompt", &e.to_string()))?
                .into())
        };
        let prompts = match fields.get("prompt") {
            Some(Value::String(one)) => vec![text(one)?],
            Some(Value::Array(list)) => match list.first() {
                Some(Value::String(_)) => {
                    let each = list.iter().map(|t| text(t.as_str().ok_or_else(wrong)?));
                    each.collect::<Result<_, _>>()?
                }
                Some(Value::Array(_)) => {
                    let each = list.iter().map(|l| ids(l.as_array().ok_or_else(wrong)?));
                    each.collect::<Result<_, _>>()?
                }
                Some(_) => vec![ids(list)?],
                None => return Err(wrong()),
            },
            _ => return Err(wrong()),
        };
        match prompts.iter().any(|p: &Arc<[u32]>| p.is_empty()) {
            true => Err(Refusal::field(
                "prompt",
                "Either prompt or prompt_embeds must be provided and non-empty.",
            )),
            false => Ok(prompts),
        }
    }

    fn room(&self, prompt: u32) -> Result<u32, Refusal> {
        let room = self.context.saturating_sub(prompt);
        if room > 0 {
            return Ok(room);
        }
        let message = format!(
            "This model's maximum context length is {} tokens. However, your prompt contains at least {prompt} input \
             tokens. Please reduce the length of the input prompt.",
            self.context
        );
        Err(Refusal::field("input_tokens", &message))
    }
}

fn message(value: &Value) -> Result<ChatMessage, &'static str> {
    let mut fields = value.as_object().ok_or("a message must be an object")?.clone();
    let role = match fields.remove("role") {
        Some(Value::String(role)) => role,
        _ => return Err("a message has no role"),
    };
    let content = match fields.remove("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => {
            let texts: Vec<&str> = parts
                .iter()
                .filter_map(|p| p.get("text").and_then(Value::as_str))
                .collect();
            texts.join("\n")
        }
        _ => String::new(),
    };
    Ok(ChatMessage {
        role,
        content,
        rest: fields,
    })
}

/// What a template looks at besides the messages, as it was written.
fn template_values(body: &[u8]) -> TemplateValues {
    let mut values = TemplateValues::new();
    for name in [
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
    ] {
        let raw = field(body, name).filter(|raw| *raw != "null");
        if let Some(Ok(raw)) = raw.map(|raw| RawValue::from_string(raw.to_owned())) {
            values.insert(name.to_owned(), raw);
        }
    }
    let own = field(body, "chat_template_kwargs").unwrap_or("{}");
    values.extend(serde_json::from_str::<TemplateValues>(own).unwrap_or_default());
    values
}

fn stops(stop: Option<&Value>) -> Vec<String> {
    match stop {
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(several)) => several
            .iter()
            .filter_map(|s| s.as_str().map(str::to_owned))
            .collect(),
        _ => Vec::new(),
    }
}
