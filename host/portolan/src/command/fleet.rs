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
    out.push(match body["offload_threshold_tokens"].as_u64() {
        None | Some(NOTHING_GAINS) => "offload   no prompt gains by prefill at another site".to_owned(),
        Some(tokens) => {
            format!("offload   prompts of {tokens} uncached tokens and more gain by prefill at another site")
        }
    });
    if nobody_is_heard(&list("sites")) {
        out.push(
            "no other site is heard: this one's own connection to NATS may be cut (portolan_bus_connected in /metrics, and \
             the log)"
                .to_owned(),
        );
    }
    out
}

/// The threshold where none was found.
const NOTHING_GAINS: u64 = u32::MAX as u64;

/// Whether there are sites in other processes, and all of them are silent.
fn nobody_is_heard(sites: &[Value]) -> bool {
    let mut others = sites
        .iter()
        .filter(|site| text(site, "state") != "here")
        .peekable();
    others.peek().is_some() && others.all(|site| matches!(text(site, "state").as_str(), "silent" | "unheard"))
}

/// How old a fact of another site is; nothing for this site's own, which are as they are.
fn age(ms: &Value) -> String {
    match ms.as_u64() {
        Some(ms) if ms > 0 => format!(", {ms} ms ago"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_fleet_that_nobody_is_heard_of_is_told_from_one_with_a_lost_site() {
        let fleet = |states: [&str; 3], threshold: u64| {
            let sites = states.map(|state| json!({"name": "s", "state": state}));
            said_of_fleet(&json!({"sites": sites, "offload_threshold_tokens": threshold}))
        };
        let cut = fleet(["here", "silent", "unheard"], u64::from(u32::MAX));
        assert_eq!(cut.len(), 5, "{cut:?}");
        assert!(
            cut[3].ends_with("no prompt gains by prefill at another site"),
            "{cut:?}"
        );
        assert!(cut[4].contains("portolan_bus_connected"), "{cut:?}");
        let lost = fleet(["here", "silent", "up"], 1900);
        assert_eq!(lost.len(), 4, "{lost:?}");
        assert!(lost[3].contains("prompts of 1900 uncached tokens"), "{lost:?}");
        assert_eq!(fleet(["here", "here", "here"], 0).len(), 4, "one process");
    }
}
