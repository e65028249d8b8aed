//! Incremental decoding: bytes of tokens become text as soon as they are whole characters.

use super::bytes::TokenBytes;
use portolan_ports::{TextError, TextStream};
use std::sync::Arc;

/// One answer being decoded. At most three bytes are withheld: the beginning of a character.
#[derive(Debug)]
pub(super) struct ByteStream {
    tokens: Arc<TokenBytes>,
    withheld: Vec<u8>,
}

impl ByteStream {
    pub(super) fn new(tokens: Arc<TokenBytes>) -> Self {
        Self {
            tokens,
            withheld: Vec::new(),
        }
    }
}

impl TextStream for ByteStream {
    fn push(&mut self, token: u32) -> Result<String, TextError> {
        self.withheld.extend_from_slice(self.tokens.get(token));
        Ok(take_whole(&mut self.withheld))
    }

    fn finish(&mut self) -> Result<String, TextError> {
        let rest = std::mem::take(&mut self.withheld);
        Ok(String::from_utf8_lossy(&rest).into_owned())
    }
}

/// Takes all whole characters off the front; what can become no character is replaced by U+FFFD, what still can
/// stays.
fn take_whole(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut taken = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        taken += chunk.valid().len();
        let invalid = chunk.invalid();
        let at_end = taken + invalid.len() == bytes.len();
        if invalid.is_empty() || (at_end && may_continue(invalid)) {
            break;
        }
        text.push(char::REPLACEMENT_CHARACTER);
        taken += invalid.len();
    }
    bytes.drain(..taken);
    text
}

/// Whether these bytes begin a character that ends beyond them.
fn may_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_come_out_whole_whatever_the_cut() {
        let text = "aé€😀\u{FFFD}z";
        let mut withheld = Vec::new();
        let mut out = String::new();
        for byte in text.bytes() {
            withheld.push(byte);
            out.push_str(&take_whole(&mut withheld));
            assert!(withheld.len() <= 3);
        }
        assert_eq!(out, text);
    }

    #[test]
    fn what_cannot_become_a_character_is_replaced_as_the_whole_text_would_be() {
        let bytes = b"a\xFFb\xE2\x82c\xF0\x9F\xE2\x82";
        let mut withheld = Vec::new();
        let mut out = String::new();
        for byte in bytes {
            withheld.push(*byte);
            out.push_str(&take_whole(&mut withheld));
        }
        out.push_str(&String::from_utf8_lossy(&withheld));
        assert_eq!(out, String::from_utf8_lossy(bytes));
    }
}
