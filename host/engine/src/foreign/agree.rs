//! Whether an engine cuts text into the tokens that the host cuts it into. Where it does not, every look into the prefix
//! index misses, and nothing but speed shows it: so it is asked at the start.

use super::{Make, Shared};
use bytes::Bytes;
use portolan_ports::{ChatMessage, TemplateValues};
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long one text may take.
const ASK: Duration = Duration::from_secs(5);

/// Texts in which tokenizers differ: joined and split words, digits, spaces, scripts, accents apart, code, and what
/// looks like a token that steers.
const TEXTS: [&str; 8] = [
    "Hello, world! The cat sat on the mat and",
    "  two  spaces\tand\ttabs\n\n\nthree lines  ",
    "1234567890 3.14159 1,000,000 0x1F",
    "请用一句话介绍一下你自己。 日本語 한국어",
    "cafe\u{301} naïve Ünïcödé 👩‍👩‍👧‍👦 🇪🇺",
    "fn main() { println!(\"{}\", a[0] != b); } // don't",
    "<|im_start|>system <s> </s> [INST] <|endoftext|>",
    "https://example.com/a_b?c=d&e=%20f#g",
];

/// Asks, and counts and names what differs.
pub(super) async fn check(shared: &Shared) {
    let name = &shared.description.instance;
    let mut compared = 0;
    for text in TEXTS {
        match shared.their_tokens_of_text(text).await {
            Ok(Some(theirs)) => {
                compared += 1;
                let ours = shared.text.encode(text, true).unwrap_or_default();
                shared.note_difference("text", text, &ours, &theirs);
            }
            Ok(None) => break,
            Err(reason) => {
                tracing::warn!(instance = %name, reason, "could not be asked for tokens");
                break;
            }
        }
    }
    for (what, messages, tools) in chats() {
        let mut more = TemplateValues::new();
        if let Some(Ok(tools)) = tools.as_ref().map(to_raw_value) {
            more.insert("tools".to_owned(), tools);
        }
        let Ok(rendered) = shared.text.render_chat(&messages, &more, shared.clock.now()) else {
            continue;
        };
        if let Ok(Some(theirs)) = shared.their_tokens_of_chat(&messages, tools).await {
            compared += 1;
            let ours = shared.text.encode(&rendered, false).unwrap_or_default();
            shared.note_difference("chat", what, &ours, &theirs);
        }
    }
    match compared {
        0 => tracing::warn!(instance = %name, "it was not checked whether it cuts text as the host does"),
        n => tracing::debug!(instance = %name, compared = n, "tokens were compared"),
    }
}

fn chats() -> Vec<(&'static str, Vec<ChatMessage>, Option<Value>)> {
    let message = |role: &str, content: &str| ChatMessage {
        role: role.to_owned(),
        content: content.to_owned(),
        rest: Map::new(),
    };
    let turns = vec![
        message("system", "You are a cat."),
        message("user", "请用一句话介绍一下你自己。"),
        message("assistant", "Miau. "),
        message("user", "  Again?\n"),
    ];
    let tool = json!([{"type": "function", "function": {
        "name": "weather",
        "description": "the weather at a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    }}]);
    vec![
        ("one question", vec![message("user", "Hello")], None),
        ("several turns", turns.clone(), None),
        ("tools", turns, Some(tool)),
    ]
}

impl Shared {
    fn note_difference(&self, kind: &'static str, what: &str, ours: &[u32], theirs: &[u32]) {
        if ours == theirs {
            return;
        }
        self.counts.token_mismatches.fetch_add(1, Ordering::Relaxed);
        let same = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
        tracing::warn!(instance = %self.description.instance, kind, what, ours = ours.len(), theirs = theirs.len(),
            same_from_the_beginning = same,
            "it cuts this into other tokens than the host does; prefixes of such prompts are never found. \
             Are `models.path` and the engine's model the same?");
    }

    /// None where it does not say.
    pub(super) async fn their_tokens_of_text(&self, text: &str) -> Result<Option<Vec<u32>>, String> {
        match self.make {
            Make::Vllm | Make::Sglang => {
                self.tokens(json!({"model": self.model_name(), "prompt": text}))
                    .await
            }
            Make::LlamaCpp => {
                self.tokens(json!({"content": text, "add_special": true, "parse_special": true}))
                    .await
            }
        }
    }

    async fn their_tokens_of_chat(
        &self,
        messages: &[ChatMessage],
        tools: Option<Value>,
    ) -> Result<Option<Vec<u32>>, String> {
        let mut ask =
            json!({"model": self.model_name(), "messages": messages, "add_generation_prompt": true});
        if let Some(tools) = tools {
            ask["tools"] = tools;
        }
        match self.make {
            Make::Vllm => return self.tokens(ask).await,
            // Cuts prompts only.
            Make::Sglang => return Ok(None),
            Make::LlamaCpp => {}
        }
        let Some(rendered) = self.said("/apply-template", ask).await? else {
            return Ok(None);
        };
        match rendered["prompt"].as_str() {
            Some(prompt) => {
                self.tokens(json!({"content": prompt, "add_special": false, "parse_special": true}))
                    .await
            }
            None => Ok(None),
        }
    }

    async fn tokens(&self, ask: Value) -> Result<Option<Vec<u32>>, String> {
        let Some(said) = self.said("/tokenize", ask).await? else {
            return Ok(None);
        };
        Ok(serde_json::from_value(said["tokens"].clone()).ok())
    }

    async fn said(&self, path: &str, ask: Value) -> Result<Option<Value>, String> {
        let answer = self.upstream.ask(path, Bytes::from(ask.to_string()), ASK).await;
        let (status, body) = answer.map_err(|e| e.to_string())?;
        Ok(match status.is_success() {
            true => serde_json::from_slice(&body).ok(),
            false => None,
        })
    }
}
