//! `portolan kv quarantine`: sets that came damaged twice, with the evidence.

use crate::client::Client;
use crate::command::ServerArgs;
use crate::command::output::{Failure, json, line};
use serde_json::Value;

/// Lists the sets in quarantine.
pub(super) fn list(server: &ServerArgs, as_json: bool) -> Result<(), Failure> {
    let client = Client::new(&server.server, &server.key);
    let reply = client.get("/v1/portolan/kv/quarantine");
    let body = reply.map_err(|e| Failure::new(e).as_json(as_json))?.body;
    if as_json {
        return json(&body);
    }
    let sets = body
        .get("data")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    if sets.is_empty() {
        line("no KV set is in quarantine");
    }
    for set in sets {
        describe(set);
    }
    Ok(())
}

fn describe(set: &Value) {
    let text = |key| set.get(key).and_then(Value::as_str).unwrap_or("?").to_owned();
    let age = set.get("age_s").and_then(Value::as_u64).unwrap_or(0);
    line(format!(
        "{}  from {}/{}  tenant {}  model {}  failed last {age} s ago",
        text("set"),
        text("site"),
        text("instance"),
        text("tenant"),
        text("model")
    ));
    let evidence = set.get("evidence").and_then(Value::as_array);
    for found in evidence.into_iter().flatten() {
        let text = |key| found.get(key).and_then(Value::as_str).unwrap_or("–").to_owned();
        line(format!(
            "    request {}  {}  checksum {} instead of {}",
            text("request"),
            text("detail"),
            text("found_checksum"),
            text("expected_checksum")
        ));
    }
}
