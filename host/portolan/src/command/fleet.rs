//! `portolan fleet`: sites, instances and links as a site knows them.

use super::ServerArgs;
use super::output::{Failure, text};
use super::policy::{client, finish, refused};
use serde_json::Value;

pub(super) fn run(server: &ServerArgs, as_json: bool) -> Result<(), Failure> {
    let fleet = client(server).get("/v1/portolan/fleet");
    finish(fleet.map_err(|e| refused(&e)), as_json, &said_of_fleet)
}

fn said_of_fleet(body: &Value) -> Vec<String> {
    let list = |key: &str| body[key].as_array().cloned().unwrap_or_default();
    let mut out = Vec::new();
    for site in list("sites") {
        out.push(format!(
            "site      {:<16} {} {} {}{}",
            text(&site, "name"),
            text(&site, "jurisdiction"),
            text(&site, "region"),
            text(&site, "state"),
            age(&site["heard_ms_ago"])
        ));
    }
    for instance in list("instances") {
        out.push(format!(
            "instance  {:<24} {:<8} {:<24} {}, {} waiting, {} decoding, KV {} ‰ used{}",
            format!("{}/{}", text(&instance, "site"), text(&instance, "name")),
            text(&instance, "role"),
            text(&instance, "model"),
            text(&instance, "standing").replace('_', " "),
            instance["prefill_queued_requests"],
            instance["decode_running"],
            instance["kv_used_permille"],
            age(&instance["load_age_ms"])
        ));
    }
    for link in list("links") {
        out.push(format!(
            "link      {} → {}  {}, {} µs there and back, {} ‰ busy",
            text(&link, "from"),
            text(&link, "to"),
            if link["up"] == true { "up" } else { "down" },
            link["rtt_us"],
            link["busy_permille"]
        ));
    }
    out
}

/// How old a fact of another site is; nothing for this site's own, which are as they are.
fn age(ms: &Value) -> String {
    match ms.as_u64() {
        Some(ms) if ms > 0 => format!(", {ms} ms ago"),
        _ => String::new(),
    }
}
