//! Text in and out of a model: its own tokenizer and chat template.

use portolan_base::{Moment, TenantName};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// One message of a chat, as the template sees it. Unknown fields of the client's message are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// Who speaks.
    pub role: String,
    /// What is said.
    pub content: String,
    /// Everything else the client wrote.
    #[serde(flatten)]
    pub rest: serde_json::Map<String, serde_json::Value>,
}

/// What a chat template looks at besides the messages, by name: JSON texts as the client wrote them, since the order of
/// keys is in the prompt where a template prints them.
pub type TemplateValues = BTreeMap<String, Box<RawValue>>;

/// Why text could not be turned into tokens or back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The model ships no chat template.
    #[error("the model has no chat template; send a prompt to /v1/completions instead")]
    NoChatTemplate,
    /// The template refused the messages or failed.
    #[error("the chat template failed: {0}")]
    Template(String),
    /// The tokenizer failed.
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),
}

/// Turns text into a model's tokens and back.
pub trait TextModel: Send + Sync {
    /// The tokens of `text`. `special` adds the model's begin-of-text token where it has one, as for a raw prompt;
    /// a rendered chat already holds its own.
    fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, TextError>;

    /// The tokens of a rendered chat: those of `encode` without `special`. What was cut for the same tenant before, an earlier
    /// turn of the conversation, may be remembered.
    fn encode_chat(&self, rendered: &str, _whose: &TenantName) -> Result<Vec<u32>, TextError> {
        self.encode(rendered, false)
    }

    /// Renders messages with the model's chat template, ready for an answer. `more` is what else the template may look at
    /// (tools, documents, arguments of the client's own), by the names it knows them by; `at` is the time that templates
    /// which print the date take it from.
    fn render_chat(
        &self,
        messages: &[ChatMessage],
        more: &TemplateValues,
        at: Moment,
    ) -> Result<String, TextError>;

    /// Decodes an answer token by token.
    fn stream(&self) -> Box<dyn TextStream>;

    /// The bytes that a token stands for; they need not be whole characters.
    fn token_bytes(&self, token: u32) -> Vec<u8> {
        let mut stream = self.stream();
        let mut text = stream.push(token).unwrap_or_default();
        text.push_str(&stream.finish().unwrap_or_default());
        text.into_bytes()
    }

    /// Bytes of the longest token: a text of `n` tokens has at most `n` times as many.
    fn longest_token_bytes(&self) -> usize;

    /// Tokens that end an answer.
    fn stop_ids(&self) -> &[u32];
}

/// Incremental decoding of one answer. Incomplete UTF-8 is withheld until it is complete.
pub trait TextStream: Send {
    /// Text that one more token completes; may be empty.
    fn push(&mut self, token: u32) -> Result<String, TextError>;

    /// What was withheld, with U+FFFD for what never became complete.
    fn finish(&mut self) -> Result<String, TextError>;
}
