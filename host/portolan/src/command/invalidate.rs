//! `portolan invalidate model|dependency|prefix|tenant`: cached KV is used no more, at any site.

use super::ServerArgs;
use super::output::{Failure, json, line};
use crate::client::Client;
use clap::{Args, Subcommand};
use serde_json::{Value, json as object};

/// `invalidate` commands.
#[derive(Debug, Subcommand)]
pub enum InvalidateCommand {
    /// Everything that a model computed: its version rises.
    Model {
        /// The model.
        model: String,
        /// How it is done.
        #[command(flatten)]
        how: HowArgs,
    },
    /// What depends on a thing at another version than it has from now on.
    Dependency {
        /// Its kind, such as `document`.
        kind: String,
        /// Its name.
        name: String,
        /// The version it has.
        version: String,
        /// How it is done.
        #[command(flatten)]
        how: HowArgs,
    },
    /// A block, by its id as `kv ls` shows it, and what was computed on top of it.
    Prefix {
        /// The block's id: 32 hexadecimal digits.
        block: String,
        /// How it is done.
        #[command(flatten)]
        how: HowArgs,
    },
    /// All KV of a tenant; `_public` for public prefixes.
    Tenant {
        /// The tenant.
        tenant: String,
        /// How it is done.
        #[command(flatten)]
        how: HowArgs,
    },
}

/// How it is done.
#[derive(Debug, Args)]
pub struct HowArgs {
    /// Say how much would go, and where; change nothing.
    #[arg(long, conflicts_with_all = ["wait", "abort_running"])]
    dry_run: bool,
    /// Return when no site begins on it any more: all have said so, or may not use anything cached.
    #[arg(long)]
    wait: bool,
    /// End the requests that run on it, with an error.
    #[arg(long)]
    abort_running: bool,
    /// For the audit log.
    #[arg(long, default_value = "")]
    reason: String,
    /// The running host.
    #[command(flatten)]
    server: ServerArgs,
}

/// Does what was typed.
pub(super) fn run(command: &InvalidateCommand, as_json: bool) -> Result<(), Failure> {
    let (mut order, how) = match command {
        InvalidateCommand::Model { model, how } => (object!({ "model": model }), how),
        InvalidateCommand::Dependency {
            kind,
            name,
            version,
            how,
        } => {
            let dependency = object!({ "kind": kind, "name": name, "version": version });
            (object!({ "dependency": dependency }), how)
        }
        InvalidateCommand::Prefix { block, how } => (object!({ "prefix": block }), how),
        InvalidateCommand::Tenant { tenant, how } => (object!({ "tenant": tenant }), how),
    };
    order["dry_run"] = how.dry_run.into();
    order["wait"] = how.wait.into();
    order["abort_running"] = how.abort_running.into();
    order["reason"] = how.reason.as_str().into();
    let client = Client::new(&how.server.server, &how.server.key);
    let reply = client.post("/v1/portolan/invalidate", &order);
    let body = reply.map_err(|e| Failure::new(e).as_json(as_json))?.body;
    if as_json {
        return json(&body);
    }
    said(&body, how).iter().for_each(line);
    Ok(())
}

/// The answer in lines.
fn said(body: &Value, how: &HowArgs) -> Vec<String> {
    let number = |of: &Value, key: &str| of.get(key).and_then(Value::as_u64).unwrap_or(0);
    let mib = |of: &Value| number(of, "bytes") as f64 / f64::from(1 << 20);
    let sites = body
        .get("sites")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    let name = |site: &Value| site.get("site").and_then(Value::as_str).unwrap_or("-").to_owned();
    let blocks = number(body, "blocks");
    if how.dry_run {
        let mut lines = vec![format!("{blocks} blocks, {:.1} MiB, would go", mib(body))];
        lines.extend(sites.iter().map(|site| {
            format!(
                "  {:<16} {:>8} blocks {:>10.1} MiB",
                name(site),
                number(site, "blocks"),
                mib(site)
            )
        }));
        return lines;
    }
    let id = number(body, "id");
    if !how.wait {
        return vec![format!(
            "invalidation {id} is acknowledged and cannot be lost; sites apply it as it comes"
        )];
    }
    let mut lines = vec![format!(
        "invalidation {id} holds everywhere: {blocks} blocks, {:.1} MiB, went",
        mib(body)
    )];
    lines.extend(sites.iter().map(|site| match site.get("applied_ms").and_then(Value::as_f64) {
        Some(ms) => format!("  {:<16} applied after {ms:.1} ms", name(site)),
        None => format!("  {:<16} said nothing; its lease is over, and it uses nothing cached until it has caught up", name(site)),
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct How {
        /// How it is done.
        #[command(flatten)]
        how: HowArgs,
    }

    fn how(args: &[&str]) -> HowArgs {
        How::parse_from(std::iter::once(&"how").chain(args)).how
    }

    #[test]
    fn says_what_went_and_who_said_nothing() {
        let body = object!({"id": 7, "blocks": 3, "bytes": 3 << 20, "sites": [
            {"site": "paris", "applied_ms": 1.26}, {"site": "tokyo", "applied_ms": null},
        ]});
        let lines = said(&body, &how(&["--wait"]));
        assert_eq!(
            lines[0],
            "invalidation 7 holds everywhere: 3 blocks, 3.0 MiB, went"
        );
        assert_eq!(lines[1], "  paris            applied after 1.3 ms");
        assert!(
            lines[2].starts_with("  tokyo            said nothing"),
            "{lines:?}"
        );
        assert_eq!(said(&body, &how(&[])).len(), 1);
        let would = object!({"blocks": 2, "bytes": 1 << 20, "sites": [{"site": "paris", "blocks": 2, "bytes": 1 << 20}]});
        assert_eq!(
            said(&would, &how(&["--dry-run"])),
            [
                "2 blocks, 1.0 MiB, would go",
                "  paris                   2 blocks        1.0 MiB"
            ]
        );
    }
}
