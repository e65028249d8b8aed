//! `portolan kv decisions`: what invalidation policies were asked and said lately.

use super::pool::{data, get, number};
use crate::command::ServerArgs;
use crate::command::output::{Failure, json, line, text};
use serde_json::{Map, Value};

/// Lists them, the latest first.
pub(super) fn list(server: &ServerArgs, as_json: bool) -> Result<(), Failure> {
    let body = get(server, "/v1/portolan/kv/decisions", as_json)?;
    if as_json {
        return json(&body);
    }
    data(&body).iter().map(told).for_each(line);
    Ok(())
}

/// One decision on a line.
fn told(of: &Value) -> String {
    let policy = &of["policy"];
    let answer = match text(policy, "outcome").as_str() {
        "ok" => format!(
            "{}: {} blocks, {:.1} MiB",
            text(policy, "answer"),
            number(of, "blocks"),
            number(of, "bytes") as f64 / f64::from(1 << 20),
        ),
        fault => format!("{fault}, so the host's own rule held: {}", text(policy, "detail")),
    };
    format!(
        "{} {} of {}, {}{}: {answer}",
        number(of, "at_ms"),
        text(policy, "name"),
        text(of, "whose"),
        event(&of["event"]),
        place(&of["place"]),
    )
}

/// What happened, in a few words.
fn event(event: &Value) -> String {
    if let Some(pressure) = event.get("capacity-pressure") {
        let (used, limit) = (number(pressure, "used_mib"), number(pressure, "limit_mib"));
        return format!("asked for room, {used} of {limit} MiB used");
    }
    let word = event.as_str().map(str::to_owned);
    let key = || event.as_object().and_then(first_key);
    format!("asked on {}", word.or_else(key).unwrap_or_else(|| "–".to_owned()))
}

fn first_key(of: &Map<String, Value>) -> Option<String> {
    of.keys().next().cloned()
}

fn place(place: &Value) -> String {
    match (place.get("tier"), place.get("instance").and_then(Value::as_str)) {
        (Some(_), Some(instance)) => format!(" in the pool of {instance}"),
        (Some(_), None) => format!(" in the {} tier", text(place, "tier")),
        (None, _) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_decision_is_a_line() {
        let mut decision = json!({
            "at_ms": 1_767_225_600_000_u64, "site": "paris", "whose": "acme",
            "event": {"capacity-pressure": {"site": 0, "used_mib": 96, "limit_mib": 100}},
            "place": {"tier": "engine", "instance": "p1"},
            "policy": {"name": "idle", "outcome": "ok", "answer": "1 directives"}, "blocks": 3, "bytes": 3 << 20,
        });
        assert_eq!(
            told(&decision),
            "1767225600000 idle of acme, asked for room, 96 of 100 MiB used in the pool of p1: 1 directives: 3 blocks, \
             3.0 MiB"
        );
        decision["event"] = json!("tenant-removed");
        decision["place"] = Value::Null;
        decision["policy"] = json!({"name": "idle", "outcome": "trap", "detail": "it trapped"});
        assert_eq!(
            told(&decision),
            "1767225600000 idle of acme, asked on tenant-removed: trap, so the host's own rule held: it trapped"
        );
    }
}
