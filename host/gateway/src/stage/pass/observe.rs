//! What an answer says of itself, read from a copy: token counts, text where there are none.

use serde::Deserialize;
use std::borrow::Cow;

/// Longest event or answer that is looked into. Longer ones pass all the same, and are counted by their pieces.
const LOOKED_AT: usize = 4 << 20;

/// Reads along.
pub(super) struct Observer {
    streamed: bool,
    pending: Vec<u8>,
    seen: Seen,
}

/// What was seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) prompt_tokens: Option<u32>,
    pub(super) completion_tokens: Option<u32>,
    pub(super) cached_tokens: Option<u32>,
    pub(super) text: String,
    /// Pieces that held text.
    pub(super) pieces: u32,
}

#[derive(Deserialize)]
struct Chunk<'c> {
    usage: Option<Usage>,
    #[serde(borrow, default)]
    choices: Vec<Choice<'c>>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct Choice<'c> {
    #[serde(borrow)]
    text: Option<Cow<'c, str>>,
    #[serde(borrow)]
    delta: Option<Message<'c>>,
    #[serde(borrow)]
    message: Option<Message<'c>>,
}

#[derive(Deserialize)]
struct Message<'c> {
    #[serde(borrow)]
    content: Option<Cow<'c, str>>,
    #[serde(borrow)]
    reasoning: Option<Cow<'c, str>>,
    #[serde(borrow)]
    reasoning_content: Option<Cow<'c, str>>,
}

impl Observer {
    pub(super) fn new(streamed: bool) -> Self {
        Self {
            streamed,
            pending: Vec::new(),
            seen: Seen::default(),
        }
    }

    /// Takes bytes as they come, cut anywhere.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        if self.pending.len() + bytes.len() > LOOKED_AT {
            self.pending.clear();
            self.seen.pieces += 1;
            return;
        }
        self.pending.extend_from_slice(bytes);
        if !self.streamed {
            return;
        }
        let Some(end) = self.pending.iter().rposition(|byte| *byte == b'\n') else {
            return;
        };
        let rest = self.pending.split_off(end + 1);
        let lines = std::mem::replace(&mut self.pending, rest);
        lines
            .split(|byte| *byte == b'\n')
            .for_each(|line| self.seen.line(line));
    }

    /// Everything that was seen.
    pub(super) fn end(mut self) -> Seen {
        match self.streamed {
            true => self.seen.line(&self.pending),
            false => self.seen.chunk(&self.pending),
        }
        self.seen
    }
}

impl Seen {
    fn line(&mut self, line: &[u8]) {
        if let Some(data) = line.strip_prefix(b"data:") {
            self.chunk(data.trim_ascii());
        }
    }

    fn chunk(&mut self, json: &[u8]) {
        let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(json) else {
            return;
        };
        if let Some(usage) = chunk.usage {
            self.prompt_tokens = usage.prompt_tokens.or(self.prompt_tokens);
            self.completion_tokens = usage.completion_tokens.or(self.completion_tokens);
            let cached = usage
                .prompt_tokens_details
                .and_then(|details| details.cached_tokens);
            self.cached_tokens = cached.or(self.cached_tokens);
        }
        for choice in chunk.choices {
            let messages = [choice.delta, choice.message].into_iter().flatten();
            let words = messages.flat_map(|m| [m.reasoning.or(m.reasoning_content), m.content]);
            let before = self.text.len();
            words
                .chain([choice.text])
                .flatten()
                .for_each(|words| self.text.push_str(&words));
            self.pieces += u32::from(self.text.len() > before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"h\\u00e9\"}}]}\r\n\r\n: a comment\n\n\
        data:{\"choices\":[{\"delta\":{\"content\":\"llo\"}}],\"usage\":null}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n\
        data: [DONE]\n\n";

    #[test]
    fn a_stream_cut_anywhere_says_the_same() {
        for size in 1..40 {
            let mut observer = Observer::new(true);
            STREAM
                .as_bytes()
                .chunks(size)
                .for_each(|bytes| observer.take(bytes));
            let expected = Seen {
                prompt_tokens: Some(5),
                completion_tokens: Some(3),
                cached_tokens: Some(4),
                text: "héllo".to_owned(),
                pieces: 2,
            };
            assert_eq!(observer.end(), expected, "{size}");
        }
    }

    #[test]
    fn an_answer_in_one_piece_and_one_that_is_no_json() {
        let mut observer = Observer::new(false);
        observer.take(br#"{"choices":[{"text":"a"},{"message":{"content":null}}],"#);
        observer.take(br#""usage":{"prompt_tokens":1,"completion_tokens":2,"prompt_tokens_details":null}}"#);
        let seen = observer.end();
        assert_eq!(
            (seen.completion_tokens, seen.cached_tokens, seen.text.as_str()),
            (Some(2), None, "a")
        );
        let mut observer = Observer::new(false);
        observer.take(b"<html>");
        assert_eq!(observer.end(), Seen::default());
    }
}
