//! `portolan policy audit`: who changed what.

use super::ServerArgs;
use super::output::{Failure, tame, text};
use super::policy::{client, finish, refused};
use super::request::short;
use super::times::{duration, when};
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

pub(super) fn run(args: &AuditArgs, as_json: bool) -> Result<(), Failure> {
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
}
