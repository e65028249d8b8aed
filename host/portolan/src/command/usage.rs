//! `portolan tenant usage`, `portolan policy audit`, `portolan fleet` and `portolan request list`: what a running host knows.

use super::output::{Failure, tame};
use super::policy::{client, finish, refused};
use super::request::short;
use super::times::{duration, when};
use super::{ServerArgs, TenantCommand};
use crate::client::segment;
use clap::Args;
use serde_json::Value;
use std::time::Duration;

/// Audit lines asked for when none are named by `--limit`: as many as the host gives.
const LINES_MAX: usize = 1000;

/// Options of `policy audit`.
#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Only lines about this tenant; `_platform` for the platform.
    #[arg(long)]
    tenant: Option<String>,
    /// Only the last so much time: `90s`, `30m`, `1h`, `2d`, `1w`, `1h30m`.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    since: Option<Duration>,
    /// At most so many lines.
    #[arg(long, default_value_t = LINES_MAX)]
    limit: usize,
    /// The running host.
    #[command(flatten)]
    server: ServerArgs,
}

/// Options of `request list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// At most so many lines; a host gives no more than 1000 at once.
    #[arg(long, default_value_t = 20)]
    limit: usize,
    /// Only requests of this tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// Only requests that are so: running, ok, refused, cancelled or failed.
    #[arg(long)]
    status: Option<String>,
    /// Only requests whose prompt was computed, or whose answer was generated, at this site.
    #[arg(long)]
    site: Option<String>,
    /// Only what follows a list before: the number in its last line.
    #[arg(long, value_name = "N")]
    before: Option<u64>,
    /// The running host.
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn tenant(command: TenantCommand, as_json: bool) -> Result<(), Failure> {
    let TenantCommand::Usage { tenant, server } = command;
    let path = tenant.map_or_else(
        || "/v1/portolan/usage".to_owned(),
        |tenant| format!("/v1/portolan/tenants/{}/usage", segment(&tenant)),
    );
    let used = client(&server).get(&path);
    finish(used.map_err(|e| refused(&e)), as_json, &said_of_usages)
}

pub(super) fn audit(args: &AuditArgs, as_json: bool) -> Result<(), Failure> {
    let mut path = format!("/v1/portolan/audit?limit={}", args.limit);
    if let Some(tenant) = &args.tenant {
        path.push_str(&format!("&tenant={}", segment(tenant)));
    }
    if let Some(since) = args.since {
        path.push_str(&format!("&since_s={}", since.as_secs()));
    }
    let lines = client(&args.server).get(&path);
    finish(lines.map_err(|e| refused(&e)), as_json, &said_of_audit)
}

pub(super) fn fleet(server: &ServerArgs, as_json: bool) -> Result<(), Failure> {
    let fleet = client(server).get("/v1/portolan/fleet");
    finish(fleet.map_err(|e| refused(&e)), as_json, &said_of_fleet)
}

pub(super) fn requests(args: &ListArgs, as_json: bool) -> Result<(), Failure> {
    let mut path = format!("/v1/portolan/requests?limit={}", args.limit);
    for (key, value) in [
        ("tenant", &args.tenant),
        ("status", &args.status),
        ("site", &args.site),
    ] {
        if let Some(value) = value {
            path.push_str(&format!("&{key}={}", segment(value)));
        }
    }
    if let Some(before) = args.before {
        path.push_str(&format!("&before={before}"));
    }
    let listed = client(&args.server).get(&path);
    finish(listed.map_err(|e| refused(&e)), as_json, &said_of_requests)
}

/// Much of it is what tenants wrote.
fn text(of: &Value, key: &str) -> String {
    tame(of[key].as_str().unwrap_or("–"))
}

/// One tenant's usage, or each of a list under the tenant's name.
fn said_of_usages(body: &Value) -> Vec<String> {
    let Some(listed) = body["data"].as_array() else {
        return said_of_usage(body);
    };
    let mut out = Vec::new();
    for usage in listed {
        out.push(text(usage, "tenant"));
        out.extend(said_of_usage(usage).into_iter().map(|line| format!("  {line}")));
    }
    out
}

fn said_of_usage(body: &Value) -> Vec<String> {
    let mut out = Vec::new();
    for (key, word) in [
        ("uploads_last_hour", "uploads, last hour"),
        ("stored_versions", "versions kept"),
        ("stored_bytes", "bytes kept"),
        ("state_keys", "state keys"),
        ("state_bytes", "state bytes"),
    ] {
        let limit = body[key]["limit"].as_u64();
        let limit = limit.map_or("no limit".to_owned(), |limit| format!("of {limit}"));
        out.push(format!("{word:<20} {:>12} {limit}", body[key]["used"]));
    }
    if body.get("log_lines").is_some() {
        let lines = &body["log_lines"];
        out.push(format!(
            "{:<20} {:>12} written, {} dropped",
            "log lines", lines["written"], lines["dropped"]
        ));
    }
    for policy in body["policies"].as_array().into_iter().flatten() {
        out.push(format!(
            "policy {:<10} {:<20} {} calls, {} faults, {} as a shadow, {} fuel, {} µs",
            text(policy, "question"),
            text(policy, "name"),
            policy["calls"],
            policy["faults"],
            policy["shadow_calls"],
            policy["fuel"],
            policy["micros"]
        ));
    }
    out
}

fn said_of_audit(body: &Value) -> Vec<String> {
    let mut out = Vec::new();
    for line in body["data"].as_array().into_iter().flatten() {
        let said = format!(
            "{:>6}  {}  {:<18} {}  by {}",
            line["sequence"],
            when(&line["at"]),
            text(line, "action"),
            text(line, "subject"),
            text(line, "actor")
        );
        let reason = text(line, "reason");
        out.push(if reason.is_empty() {
            said
        } else {
            format!("{said}: {reason}")
        });
        if let Some(change) = line.get("change") {
            let version = |key: &str| change[key].as_str().map_or("nothing", short);
            let config = change["config"].as_str().filter(|config| !config.is_empty());
            let config = config.map_or(String::new(), |config| format!("  {}", tame(config)));
            out.push(format!(
                "        {} → {}{config}",
                version("previous"),
                version("next")
            ));
        }
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

fn said_of_requests(body: &Value) -> Vec<String> {
    let requests = body["data"].as_array().into_iter().flatten();
    let next = body["next"].as_u64();
    let next = next.map(|next| format!("there are older ones: --before {next}"));
    requests
        .map(|request| {
            let ttft = request["ttft_ms"].as_f64();
            format!(
                "{}  {:<9} {:<16} {:<24} {} + {} tokens, first after {}",
                text(request, "request_id"),
                text(request, "status"),
                text(request, "tenant"),
                text(request, "model"),
                request["prompt_tokens"],
                request["completion_tokens"],
                ttft.map_or("–".to_owned(), |ms| format!("{ms:.0} ms"))
            )
        })
        .chain(next)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_audit_line_says_what_changed_to_what() {
        let sha = "0123456789abcdef";
        let said = said_of_audit(&json!({"data": [
            {"sequence": 7, "at": 0, "actor": "operator", "action": "policy.activate", "subject": "acme", "reason": "why",
             "change": {"next": sha, "config": "{\"a\": 1}"}},
            {"sequence": 6, "at": 0, "actor": "operator", "action": "tenant.put", "subject": "acme", "reason": ""},
        ]}));
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(said[0].ends_with("acme  by operator: why"), "{said:?}");
        assert_eq!(said[1], "        nothing → 0123456789ab  {\"a\": 1}");
        assert!(said[2].ends_with("acme  by operator"), "{said:?}");
    }

    #[test]
    fn a_configuration_forges_no_line_of_the_audit_log() {
        let said = said_of_audit(&json!({"data": [
            {"sequence": 7, "at": 0, "actor": "tenant acme", "action": "policy.activate", "subject": "acme", "reason": "",
             "change": {"next": "0123456789abcdef", "config": "\u{1b}[31m\n     9  tenant.put"}},
        ]}));
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said[1].ends_with("  \\u{1b}[31m\\n     9  tenant.put"),
            "{said:?}"
        );
    }

    #[test]
    fn a_list_of_requests_says_how_to_go_on() {
        let request = json!({"request_id": "r", "status": "ok", "prompt_tokens": 1, "completion_tokens": 2});
        let last = said_of_requests(&json!({"data": [request]}));
        assert_eq!(last.len(), 1, "{last:?}");
        let more = said_of_requests(&json!({"data": [request], "next": 7}));
        assert_eq!(more[1], "there are older ones: --before 7");
    }

    #[test]
    fn usages_of_a_list_stand_under_their_tenants() {
        let said = said_of_usages(&json!({"data": [{"tenant": "acme"}, {"tenant": "globex"}]}));
        assert_eq!(said.len(), 12, "{said:?}");
        assert_eq!((&*said[0], &*said[6]), ("acme", "globex"));
        assert!(said[1].starts_with("  uploads"), "{said:?}");
    }

    #[test]
    fn usage_names_every_quantity_with_its_limit() {
        let share = json!({"used": 3, "limit": 5});
        let said = said_of_usage(&json!({
            "uploads_last_hour": share, "stored_versions": share, "stored_bytes": {"used": 3}, "state_keys": share,
            "state_bytes": share, "log_lines": {"written": 7, "dropped": 2}, "policies": [{"question": "cost", "name": "mine", "calls": 1, "faults": 0,
            "shadow_calls": 0, "fuel": 9, "micros": 2}],
        }));
        assert_eq!(said.len(), 7);
        assert!(said[5].ends_with(" 7 written, 2 dropped"), "{said:?}");
        assert!(
            said[0].ends_with(" 3 of 5") && said[2].ends_with(" 3 no limit"),
            "{said:?}"
        );
    }
}
