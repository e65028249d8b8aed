//! What an answer says of itself, read from a copy: token counts, text where there are none.

use serde::Deserialize;
use std::borrow::Cow;

/// Longest event or answer that is looked into. Longer ones pass all the same; without a usage at the end they are counted
/// by their pieces.
const LOOKED_AT: usize = 4 << 20;

/// What is kept of an answer that is longer: how many tokens it was stands at its end.
const END: usize = 64 << 10;

/// Reads along.
pub(super) struct Observer {
    streamed: bool,
    pending: Vec<u8>,
    /// Whether `pending` is only the end of an answer.
    cut: bool,
    seen: Seen,
}

/// What was seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) prompt_tokens: Option<u32>,
    pub(super) completion_tokens: Option<u32>,
    pub(super) cached_tokens: Option<u32>,
    /// What it says, tool calls included.
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
    #[serde(borrow)]
    tool_calls: Option<Vec<ToolCall<'c>>>,
}

#[derive(Deserialize)]
struct ToolCall<'c> {
    #[serde(borrow)]
    function: Option<Function<'c>>,
}

#[derive(Deserialize)]
struct Function<'c> {
    #[serde(borrow)]
    name: Option<Cow<'c, str>>,
    #[serde(borrow)]
    arguments: Option<Cow<'c, str>>,
}

impl<'c> Message<'c> {
    fn words(self) -> impl Iterator<Item = Cow<'c, str>> {
        let said = [self.reasoning.or(self.reasoning_content), self.content];
        let calls = self.tool_calls.unwrap_or_default().into_iter();
        let called = calls.filter_map(|call| call.function);
        let called = called.flat_map(|function| [function.name, function.arguments]);
        said.into_iter().chain(called).flatten()
    }
}

impl Observer {
    pub(super) fn new(streamed: bool) -> Self {
        Self {
            streamed,
            pending: Vec::new(),
            cut: false,
            seen: Seen::default(),
        }
    }

    /// Takes bytes as they come, cut anywhere.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        if self.pending.len() + bytes.len() > LOOKED_AT {
            self.seen.pieces += 1;
            self.pending.extend_from_slice(bytes);
            let kept = if self.streamed { 0 } else { END };
            self.pending.drain(..self.pending.len().saturating_sub(kept));
            self.cut = true;
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
        match (self.streamed, self.cut) {
            (true, _) => self.seen.line(&self.pending),
            (false, true) => self.seen.end(&self.pending),
            (false, false) => self.seen.chunk(&self.pending),
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
            self.usage(usage);
        }
        for choice in chunk.choices {
            let messages = [choice.delta, choice.message].into_iter().flatten();
            let before = self.text.len();
            messages
                .flat_map(Message::words)
                .chain(choice.text)
                .for_each(|words| self.text.push_str(&words));
            self.pieces += u32::from(self.text.len() > before);
        }
    }

    fn usage(&mut self, usage: Usage) {
        self.prompt_tokens = usage.prompt_tokens.or(self.prompt_tokens);
        self.completion_tokens = usage.completion_tokens.or(self.completion_tokens);
        let cached = usage
            .prompt_tokens_details
            .and_then(|details| details.cached_tokens);
        self.cached_tokens = cached.or(self.cached_tokens);
    }

    /// The end of an answer whose beginning was let go. Quotes within a text are written otherwise: what looks like the
    /// field is the field.
    fn end(&mut self, json: &[u8]) {
        const FIELD: &[u8] = b"\"usage\":";
        let Some(at) = json.windows(FIELD.len()).rposition(|piece| piece == FIELD) else {
            return;
        };
        let value = serde_json::Deserializer::from_slice(&json[at + FIELD.len()..]);
        if let Some(Ok(usage)) = value.into_iter::<Usage>().next() {
            self.usage(usage);
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
        let called = br#"{"choices":[{"message":{"content":null,"tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1}"}}]}}]}"#;
        let mut observer = Observer::new(false);
        observer.take(called);
        assert_eq!(observer.end().text, "f{\"a\":1}");
        let mut observer = Observer::new(false);
        observer.take(b"<html>");
        assert_eq!(observer.end(), Seen::default());
    }

    #[test]
    fn a_call_of_a_tool_is_what_the_answer_says_also_in_a_stream_without_usage() {
        let mut observer = Observer::new(true);
        for arguments in ["", "{\\\"place\\\":", "\\\"Oslo\\\"}"] {
            let call = format!("{{\"index\":0,\"function\":{{\"arguments\":\"{arguments}\"}}}}");
            observer.take(
                format!("data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{call}]}}}}]}}\n\n").as_bytes(),
            );
        }
        let seen = observer.end();
        assert_eq!((seen.text.as_str(), seen.pieces), ("{\"place\":\"Oslo\"}", 2));
    }

    #[test]
    fn an_answer_longer_than_is_looked_into_says_at_its_end_how_long_it_is() {
        let mut observer = Observer::new(false);
        observer.take(b"{\"choices\":[{\"text\":\"");
        let piece = [b'x'; 60 << 10];
        (0..200).for_each(|_| observer.take(&piece));
        // What the model wrote itself is not the field.
        observer.take(br#"\"usage\":{\"completion_tokens\":1}"}],"#);
        observer.take(
            br#""usage":{"prompt_tokens":5,"completion_tokens":3000,"prompt_tokens_details":null},"id":1}"#,
        );
        let seen = observer.end();
        assert_eq!(
            (seen.prompt_tokens, seen.completion_tokens),
            (Some(5), Some(3000))
        );
    }
}
