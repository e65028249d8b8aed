//! What vLLM refuses of a request's numbers and texts, in its words.

use super::super::reply::Refusal;
use serde_json::{Map, Value};

/// Refuses what vLLM would.
pub(super) fn check(fields: &Map<String, Value>) -> Result<(), Refusal> {
    let whole = |name: &str| fields.get(name).and_then(Value::as_i64);
    let wrong = |name: &str, said: String| Err(Refusal::field(name, &said));
    for name in ["n", "max_tokens", "max_completion_tokens"] {
        if let Some(number) = whole(name).filter(|number| *number < 1) {
            return wrong(name, format!("{name} must be at least 1, got {number}."));
        }
    }
    let heat = fields.get("temperature").and_then(Value::as_f64).unwrap_or(0.0);
    if heat < 0.0 {
        return wrong(
            "temperature",
            format!("temperature must be non-negative, got {heat:?}."),
        );
    }
    if heat > 2.0 {
        return wrong(
            "temperature",
            format!("temperature must be in [0, 2], got {heat:?}."),
        );
    }
    let most = whole("max_completion_tokens").or_else(|| whole("max_tokens"));
    if let (Some(least), Some(most)) = (whole("min_tokens"), most)
        && least > most
    {
        let said = format!("min_tokens must be less than or equal to max_tokens={most}, got {least}.");
        return wrong("min_tokens", said);
    }
    if super::stops(fields.get("stop")).iter().any(String::is_empty) {
        return wrong("stop", "stop cannot contain an empty string.".to_owned());
    }
    let asked = |name: &str| {
        fields
            .get(name)
            .is_some_and(|value| !matches!(value, Value::Null | Value::Bool(false)))
    };
    if asked("stream_options") && !asked("stream") {
        let said = "Stream options can only be defined when `stream=True`.";
        return wrong("stream_options", said.to_owned());
    }
    Ok(())
}
