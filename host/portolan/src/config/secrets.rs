//! What is never shown: keys, and what addresses hold of them.

use super::tree::{element, matches, under};
use serde_json::Value;

/// What stands for a secret.
pub(super) const HIDDEN: &str = "***";

/// Places of secrets.
const SECRETS: &[&str] = &["operator_keys", "tenants.*.keys", "scaling.webhook"];

/// Within a place of secrets, what is none.
const SHOWN: &[&str] = &["operator_keys.*.name"];

/// Last parts of keys that hold a secret wherever they stand.
const WORDS: &[&str] = &[
    "password",
    "secret",
    "token",
    "seed",
    "secret_key",
    "access_key",
    "api_key",
];

/// Whether what stands at a place is not to be shown.
pub(super) fn is_secret(place: &str) -> bool {
    let of = |patterns: &[&str]| patterns.iter().any(|pattern| matches(pattern, place));
    let last = place.rsplit('.').next().unwrap_or_default();
    WORDS.contains(&last) || (of(SECRETS) && !of(SHOWN))
}

/// Puts [`HIDDEN`] in the place of every secret.
pub fn mask(value: &mut Value) {
    hide(value, "");
}

fn hide(value: &mut Value, place: &str) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                hide(value, &under(place, key));
            }
        }
        Value::Array(list) => {
            for (position, value) in list.iter_mut().enumerate() {
                let place = under(place, &element(value, position));
                hide(value, &place);
            }
        }
        Value::Null => {}
        value if is_secret(place) => *value = Value::from(HIDDEN),
        Value::String(text) => {
            if let Some(masked) = without_credentials(text) {
                *text = masked;
            }
        }
        _ => {}
    }
}

/// An address that names credentials, wherever it stands, without them; none where the text names none:
/// `https://key:secret@host` is `https://***@host`.
pub fn without_credentials(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // A password may hold an `@` that nobody escaped.
    let (named, _) = authority.rsplit_once('@')?;
    let host = &rest[named.len()..];
    Some(format!("{scheme}://{HIDDEN}{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_in_an_address_are_hidden_wherever_it_stands() {
        for (text, shown) in [
            (
                "https://key:secret@s3.example:9000/x",
                "https://***@s3.example:9000/x",
            ),
            ("nats://user@host", "nats://***@host"),
            ("http://a:p@ss@host/x@y", "http://***@host/x@y"),
        ] {
            let mut value = serde_json::json!({"recovery": {"endpoint": text, "list": [text]}});
            mask(&mut value);
            assert_eq!(value["recovery"]["endpoint"], shown);
            assert_eq!(value["recovery"]["list"][0], shown);
        }
        for plain in [
            "https://s3.example/a@b",
            "s3://bucket/prefix",
            "ops@example.com",
            "plain",
        ] {
            assert_eq!(without_credentials(plain), None, "{plain}");
        }
    }
}
