//! The fake beside [`TextModel`]: a token is a byte, so that a test can read tokens and count them by eye.

use crate::{ChatMessage, TemplateValues, TextError, TextModel, TextStream};
use portolan_base::Moment;

/// The token that ends an answer.
pub const FAKE_END: u32 = 256;

/// Token ids of the fake are below this.
pub const FAKE_VOCABULARY: u32 = 257;

/// A [`TextModel`] over bytes: ids 0 to 255 are bytes, [`FAKE_END`] ends an answer.
///
/// A chat is rendered as `role: content` lines and `assistant: ` at the end; like a real template it refuses a
/// conversation that the assistant begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct FakeText {
    chat: ChatSupport,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChatSupport {
    #[default]
    Lines,
    NoTemplate,
}

impl FakeText {
    /// With a chat template.
    pub fn new() -> Self {
        Self::default()
    }

    /// A base model, which ships no chat template.
    pub fn without_template() -> Self {
        Self {
            chat: ChatSupport::NoTemplate,
        }
    }
}

impl TextModel for FakeText {
    fn encode(&self, text: &str, _special: bool) -> Result<Vec<u32>, TextError> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn render_chat(
        &self,
        messages: &[ChatMessage],
        _: &TemplateValues,
        _: Moment,
    ) -> Result<String, TextError> {
        if self.chat == ChatSupport::NoTemplate {
            return Err(TextError::NoChatTemplate);
        }
        if messages.first().is_some_and(|first| first.role == "assistant") {
            return Err(TextError::Template(
                "a conversation must not begin with the assistant".into(),
            ));
        }
        let lines = messages.iter().map(|m| format!("{}: {}\n", m.role, m.content));
        Ok(lines.chain(["assistant: ".to_owned()]).collect())
    }

    fn stream(&self) -> Box<dyn TextStream> {
        Box::new(ByteStream(Vec::new()))
    }

    fn longest_token_bytes(&self) -> usize {
        1
    }

    fn stop_ids(&self) -> &[u32] {
        &[FAKE_END]
    }
}

/// Bytes of a character that is not complete.
struct ByteStream(Vec<u8>);

impl TextStream for ByteStream {
    fn push(&mut self, token: u32) -> Result<String, TextError> {
        match u8::try_from(token) {
            Ok(byte) => self.0.push(byte),
            Err(_) if token == FAKE_END => {}
            Err(_) => {
                return Err(TextError::Tokenizer(format!(
                    "token {token} is out of the vocabulary"
                )));
            }
        }
        let complete = match std::str::from_utf8(&self.0) {
            Ok(text) => text.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => self.0.len(),
        };
        let rest = self.0.split_off(complete);
        let done = std::mem::replace(&mut self.0, rest);
        Ok(String::from_utf8_lossy(&done).into_owned())
    }

    fn finish(&mut self) -> Result<String, TextError> {
        Ok(String::from_utf8_lossy(&std::mem::take(&mut self.0)).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_is_withheld_until_it_is_complete() {
        let text = FakeText::new();
        let mut stream = text.stream();
        let pieces: Vec<String> = text
            .encode("aé", true)
            .unwrap()
            .into_iter()
            .map(|token| stream.push(token).unwrap())
            .collect();
        assert_eq!(pieces, ["a", "", "é"]);
        assert_eq!(stream.push(0xe2).unwrap(), "");
        assert_eq!(stream.finish().unwrap(), "\u{fffd}");
    }
}
