//! What the model thought of its tokens, in OpenAI's two shapes.

use crate::answer::{ToldLogprobs, ToldToken};
use crate::stage::accept::Endpoint;
use serde_json::{Map, Value, json};

/// What a probability of zero is told as: JSON has no infinity, and vLLM says this.
const NEVER: f32 = -9999.0;

/// The logprobs of consecutive tokens. `before` is the length in characters of the answer up to the first of them, and
/// grows.
pub(super) fn logprobs(endpoint: Endpoint, tokens: &[ToldLogprobs], before: &mut usize) -> Value {
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
fn completion(tokens: &[ToldLogprobs], before: &mut usize) -> Value {
    let mut offsets = Vec::with_capacity(tokens.len());
    for told in tokens {
        offsets.push(*before);
        *before += text(&told.drawn).chars().count();
    }
    let drawn = tokens.iter().map(|told| &told.drawn);
    let likeliest = tokens.iter().map(|told| {
        let mut map = Map::new();
        for token in told.likeliest.iter().chain([&told.drawn]) {
            map.insert(text(token), number(token));
        }
        Value::Object(map)
    });
    json!({
        "text_offset": offsets,
        "token_logprobs": drawn.clone().map(number).collect::<Vec<_>>(),
        "tokens": drawn.map(text).collect::<Vec<_>>(),
        "top_logprobs": likeliest.collect::<Vec<_>>(),
    })
}

fn text(token: &ToldToken) -> String {
    String::from_utf8_lossy(&token.bytes).into_owned()
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
        let mut before = 3;
        assert_eq!(
            logprobs(Endpoint::Chat, &told[..1], &mut before),
            json!({"content": [{"token": "he", "logprob": -0.5, "bytes": [104, 101],
                "top_logprobs": [{"token": "ho", "logprob": -0.25, "bytes": [104, 111]}]}], "refusal": null})
        );
        assert_eq!(
            logprobs(Endpoint::Completion, &told, &mut before),
            json!({"text_offset": [3, 5], "tokens": ["he", "\u{FFFD}"], "token_logprobs": [-0.5, -9999.0],
                "top_logprobs": [{"ho": -0.25, "he": -0.5}, {"\u{FFFD}": -9999.0}]})
        );
        assert_eq!(before, 6);
    }
}
