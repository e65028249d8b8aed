//! The messages of a chat, as the model's template takes them.

use super::fields::Fields;
use crate::error::RequestError;
use portolan_ports::ChatMessage;
use serde_json::{Map, Value};

/// Most messages of one chat: a template's cost grows with them, and no context here holds more turns.
const MESSAGES_MAX: usize = 4096;

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// The conversation, at least one message.
pub(super) fn take(fields: &mut Fields<'_>) -> Result<Vec<ChatMessage>, RequestError> {
    let Some(messages) = fields.take::<Vec<Map<String, Value>>>("messages")? else {
        return Err(RequestError::bad_field(
            "messages",
            "messages is missing; send at least one message",
        ));
    };
    if messages.is_empty() {
        return Err(RequestError::bad_field(
            "messages",
            "messages is empty; send at least one message",
        ));
    }
    if messages.len() > MESSAGES_MAX {
        let message = format!(
            "messages holds {} messages, at most {MESSAGES_MAX} are taken",
            messages.len()
        );
        return Err(RequestError::bad_field("messages", message));
    }
    messages
        .into_iter()
        .enumerate()
        .map(|(i, message)| one(i, message))
        .collect()
}

fn one(i: usize, mut message: Map<String, Value>) -> Result<ChatMessage, RequestError> {
    let role = match message.remove("role") {
        // Templates know the older word for the same thing.
        Some(Value::String(role)) if role == "developer" => "system".to_owned(),
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => role,
        Some(_) => return Err(bad(i, "role", &format!("must be one of {}", ROLES.join(", ")))),
        None => return Err(bad(i, "role", "is missing")),
    };
    let content = match message.remove("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => join(i, parts)?,
        // An assistant that only called a tool has no content.
        Some(Value::Null) | None if role == "assistant" => String::new(),
        Some(Value::Null) | None => return Err(bad(i, "content", "is missing")),
        Some(_) => return Err(bad(i, "content", "must be a text or a list of text parts")),
    };
    Ok(ChatMessage {
        role,
        content,
        rest: message,
    })
}

/// Text parts become one text, a line each, as vLLM joins them.
fn join(i: usize, parts: Vec<Value>) -> Result<String, RequestError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (j, part) in parts.into_iter().enumerate() {
        let name = format!("content[{j}]");
        let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
        match (kind, part.get("text")) {
            ("text", Some(Value::String(text))) => texts.push(text.clone()),
            ("text", _) => return Err(bad(i, &name, "is a text part without a text")),
            ("", _) => {
                return Err(bad(
                    i,
                    &name,
                    "has no type; send {\"type\": \"text\", \"text\": …}",
                ));
            }
            _ => return Err(bad(i, &name, "is not a text part; only text is supported here")),
        }
    }
    Ok(texts.join("\n"))
}

fn bad(i: usize, field: &str, fault: &str) -> RequestError {
    let path = format!("messages[{i}].{field}");
    RequestError::bad_field(&path, format!("{path} {fault}"))
}
