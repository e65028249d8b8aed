//! What the model thought of its tokens, in OpenAI's two shapes.

use crate::answer::{ToldLogprobs, ToldToken};
use crate::stage::accept::Endpoint;
use serde_json::{Map, Value, json};

/// What a probability of zero is told as: JSON has no infinity, and vLLM says this.
const NEVER: f32 = -9999.0;

/// How far the text of an answer has come, by its tokens. A character may take several.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    characters: usize,
    /// The beginning of one more.
    begun: Vec<u8>,
}

impl Written {
    /// Adds a token; returns the place in characters of the one that it begins or goes on with.
    fn add(&mut self, token: &[u8]) -> usize {
        let at = self.characters;
        self.begun.extend_from_slice(token);
        let whole = |text: &str| text.chars().count();
        let mut open = 0;
        for chunk in self.begun.utf8_chunks() {
            self.characters += whole(chunk.valid());
            open = match std::str::from_utf8(chunk.invalid()) {
                // What may still become a character waits.
                Err(error) if error.error_len().is_none() => chunk.invalid().len(),
                // What can be none becomes one that says so.
                Err(_) => {
                    self.characters += 1;
                    0
                }
                Ok(_) => 0,
            };
        }
        self.begun.drain(..self.begun.len() - open);
        at
    }
}

/// The logprobs of consecutive tokens. `before` is the answer up to the first of them, and grows.
pub(super) fn logprobs(endpoint: Endpoint, tokens: &[ToldLogprobs], before: &mut Written) -> Value {
    match endpoint {
        Endpoint::Chat => chat(tokens),
        Endpoint::Completion => completion(tokens, before),
    }
}

fn chat(tokens: &[ToldLogprobs]) -> Value {
    let one =
        |token: &ToldToken| json!({"token": text(token), "logprob": number(token), "bytes": token.bytes});
    let content = tokens.iter().map(|told| {
        let mut entry = one(&told.drawn);
        entry["top_logprobs"] = told.likeliest.iter().map(one).collect();
        entry
    });
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}

/// The likeliest hold the drawn one too, as in vLLM.
fn completion(tokens: &[ToldLogprobs], before: &mut Written) -> Value {
    let places = tokens.iter().map(|told| before.add(&told.drawn.bytes));
    let offsets: Vec<usize> = places.collect();
    let drawn = tokens.iter().map(|told| &told.drawn);
    let likeliest = tokens.iter().map(|told| {
        let mut map = Map::new();
        for token in told.likeliest.iter().chain([&told.drawn]) {
            map.insert(name(token), number(token));
        }
        Value::Object(map)
    });
    json!({
        "text_offset": offsets,
        "token_logprobs": drawn.clone().map(number).collect::<Vec<_>>(),
        "tokens": drawn.map(name).collect::<Vec<_>>(),
        "top_logprobs": likeliest.collect::<Vec<_>>(),
    })
}

fn text(token: &ToldToken) -> String {
    String::from_utf8_lossy(&token.bytes).into_owned()
}

/// A token as it is told apart from others: what is no text by itself is named by its bytes, as in OpenAI's API.
fn name(token: &ToldToken) -> String {
    match std::str::from_utf8(&token.bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let bytes = token.bytes.iter().map(|byte| format!("\\x{byte:02x}"));
            format!("bytes:{}", bytes.collect::<String>())
        }
    }
}

fn number(token: &ToldToken) -> Value {
    json!(if token.logprob.is_finite() {
        token.logprob
    } else {
        NEVER
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(bytes: &[u8], logprob: f32) -> ToldToken {
        ToldToken {
            bytes: bytes.to_vec(),
            logprob,
        }
    }

    #[test]
    fn both_shapes_are_openais() {
        let told = [
            ToldLogprobs {
                drawn: token(b"he", -0.5),
                likeliest: vec![token(b"ho", -0.25)],
            },
            ToldLogprobs {
                drawn: token(&[0xC3], f32::NEG_INFINITY),
                likeliest: Vec::new(),
            },
        ];
        let mut before = Written {
            characters: 3,
            begun: Vec::new(),
        };
        assert_eq!(
            logprobs(Endpoint::Chat, &told[..1], &mut before),
            json!({"content": [{"token": "he", "logprob": -0.5, "bytes": [104, 101],
                "top_logprobs": [{"token": "ho", "logprob": -0.25, "bytes": [104, 111]}]}], "refusal": null})
        );
        assert_eq!(
            logprobs(Endpoint::Completion, &told, &mut before),
            json!({"text_offset": [3, 5], "tokens": ["he", "bytes:\\xc3"], "token_logprobs": [-0.5, -9999.0],
                "top_logprobs": [{"ho": -0.25, "he": -0.5}, {"bytes:\\xc3": -9999.0}]})
        );
        assert_eq!((before.characters, before.begun.as_slice()), (5, &[0xC3][..]));
    }

    #[test]
    fn the_tokens_of_one_character_stand_at_its_place_and_are_told_apart() {
        let likeliest = || {
            vec![
                token(&[0xF0, 0x9F], -0.5),
                token(&[0xE2], -1.0),
                token(&[0xC3], -2.0),
            ]
        };
        // A wave in three tokens, a byte that begins no character, and letters around them.
        let drawn: [&[u8]; 7] = [b"a", &[0xF0, 0x9F], &[0x8C], &[0x8A], b"!", &[0xFF], b"b"];
        let told = drawn.map(|bytes| ToldLogprobs {
            drawn: token(bytes, -0.5),
            likeliest: likeliest(),
        });
        let places = [0, 1, 1, 1, 2, 3, 4];
        let whole = logprobs(Endpoint::Completion, &told, &mut Written::default());
        assert_eq!(whole["text_offset"], json!(places));
        assert_eq!(whole["tokens"][1], r"bytes:\xf0\x9f");
        let likely = json!({"a": -0.5, r"bytes:\xf0\x9f": -0.5, r"bytes:\xe2": -1.0, r"bytes:\xc3": -2.0});
        assert_eq!(whole["top_logprobs"][0], likely);
        let mut before = Written::default();
        for (told, place) in told.iter().zip(places) {
            let one = logprobs(Endpoint::Completion, std::slice::from_ref(told), &mut before);
            assert_eq!(one["text_offset"], json!([place]), "piece by piece too");
        }
    }
}
