//! The bytes behind each token of a byte-level tokenizer.

use std::collections::{HashMap, HashSet};
use tokenizers::{DecoderWrapper, Tokenizer};

/// Why a tokenizer's tokens have no bytes of their own.
#[derive(Debug, thiserror::Error)]
pub(super) enum TokenBytesError {
    /// The tokenizer joins tokens by other rules.
    #[error("its decoder is not byte-level, the only kind supported")]
    NotByteLevel,
}

/// What each token adds to a text: bytes, which need not be whole characters.
#[derive(Debug)]
pub(super) struct TokenBytes(Vec<Box<[u8]>>);

impl TokenBytes {
    /// Reads the vocabulary. `silent` tokens, such as those that end a turn, add nothing.
    pub(super) fn of(tokenizer: &Tokenizer, silent: &HashSet<u32>) -> Result<Self, TokenBytesError> {
        if !matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
            return Err(TokenBytesError::NotByteLevel);
        }
        let byte_of = byte_alphabet();
        let added = tokenizer.get_added_tokens_decoder();
        let vocabulary = tokenizer.get_vocab(true);
        let size = vocabulary.values().max().map_or(0, |last| *last as usize + 1);
        let mut tokens = vec![Box::default(); size];
        for (text, id) in vocabulary {
            let bytes = match (silent.contains(&id), added.contains_key(&id)) {
                (true, _) => Vec::new(),
                (false, true) => text.into_bytes(),
                (false, false) => decode(&text, &byte_of),
            };
            tokens[id as usize] = bytes.into_boxed_slice();
        }
        Ok(Self(tokens))
    }

    /// The bytes of a token; none for an id without one.
    pub(super) fn get(&self, token: u32) -> &[u8] {
        self.0.get(token as usize).map_or(&[], |bytes| bytes)
    }
}

/// A token's text in byte-level spelling, one character a byte; a character that spells no byte stands for itself.
fn decode(text: &str, byte_of: &HashMap<char, u8>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for c in text.chars() {
        match byte_of.get(&c) {
            Some(byte) => out.push(*byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out
}

/// GPT-2's alphabet: printable bytes spell themselves, the others are spelled by the characters from U+0100 on.
fn byte_alphabet() -> HashMap<char, u8> {
    let mut spare = 0x100u32..;
    (0..=u8::MAX)
        .filter_map(|byte| {
            let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
            let spelled = if printable {
                Some(char::from(byte))
            } else {
                spare.next().and_then(char::from_u32)
            };
            spelled.map(|c| (c, byte))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_spells_every_byte_once() {
        let alphabet = byte_alphabet();
        assert_eq!(alphabet.len(), 256);
        assert_eq!(alphabet[&'Ġ'], b' ');
        assert_eq!(alphabet[&'Ċ'], b'\n');
        assert_eq!(decode("Ġaä", &alphabet), [b' ', b'a', 0xE4]);
    }
}
