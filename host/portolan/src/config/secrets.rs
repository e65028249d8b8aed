//! What is never shown: keys, and addresses that may hold one.

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
        _ => {}
    }
}
