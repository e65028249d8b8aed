//! Fields that would change what the answer means and that no engine here can honour. Ignoring one would give the
//! client something other than it asked for, so each is refused unless its value asks for nothing.

use super::fields::Fields;
use crate::error::RequestError;
use serde_json::Value;

/// The values that ask for nothing; null always does.
enum Nothing {
    /// `false`, 0 or an empty text, list or object.
    Empty,
    /// One number.
    Number(f64),
    /// `false`, 0, or one word.
    Word(&'static str),
    /// `{"type": "text"}`.
    TextFormat,
    /// `true`.
    True,
}

const REFUSED: [(&str, Nothing); 27] = [
    ("prompt_logprobs", Nothing::Empty),
    ("echo", Nothing::Empty),
    ("suffix", Nothing::Empty),
    ("tools", Nothing::Empty),
    ("functions", Nothing::Empty),
    ("tool_choice", Nothing::Word("none")),
    ("function_call", Nothing::Word("none")),
    ("response_format", Nothing::TextFormat),
    ("structured_outputs", Nothing::Empty),
    ("guided_json", Nothing::Empty),
    ("guided_regex", Nothing::Empty),
    ("guided_choice", Nothing::Empty),
    ("guided_grammar", Nothing::Empty),
    ("best_of", Nothing::Number(1.0)),
    ("length_penalty", Nothing::Number(1.0)),
    ("use_beam_search", Nothing::Empty),
    ("bad_words", Nothing::Empty),
    ("include_stop_str_in_output", Nothing::Empty),
    ("skip_special_tokens", Nothing::True),
    ("truncate_prompt_tokens", Nothing::Empty),
    ("prompt_embeds", Nothing::Empty),
    ("chat_template", Nothing::Empty),
    ("chat_template_kwargs", Nothing::Empty),
    ("add_generation_prompt", Nothing::True),
    ("continue_final_message", Nothing::Empty),
    ("audio", Nothing::Empty),
    ("web_search_options", Nothing::Empty),
];

/// Refuses the first field that asks for something no engine here can do.
pub(super) fn check(fields: &mut Fields<'_>) -> Result<(), RequestError> {
    for (name, nothing) in &REFUSED {
        let Some(value) = fields.take::<Value>(name)? else {
            continue;
        };
        if !nothing.holds(&value) {
            let message = format!("{name} is not supported here; leave it out{}", nothing.hint());
            return Err(RequestError::bad_field(name, message).with_code("unsupported_parameter"));
        }
    }
    Ok(())
}

impl Nothing {
    fn holds(&self, value: &Value) -> bool {
        match self {
            Self::Empty => is_empty(value),
            Self::Number(wanted) => value.as_f64().is_some_and(|n| n == *wanted),
            Self::Word(word) => value.as_str() == Some(word) || is_empty(value),
            Self::TextFormat => value.get("type").and_then(Value::as_str) == Some("text"),
            Self::True => value.as_bool() == Some(true),
        }
    }

    fn hint(&self) -> String {
        match self {
            Self::Empty => String::new(),
            Self::Number(number) => format!(" or send {number}"),
            Self::Word(word) => format!(" or send {word:?}"),
            Self::TextFormat => r#" or send {"type": "text"}"#.to_owned(),
            Self::True => " or send true".to_owned(),
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}
