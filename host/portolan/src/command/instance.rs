//! `portolan instance drain|resume`: takes an instance out of service, and back.

use super::ServerArgs;
use super::output::{Failure, json, line};
use crate::client::Client;
use clap::{Args, Subcommand};
use portolan_base::InstanceName;
use serde_json::{Value, json as object};

/// `instance` commands.
#[derive(Debug, Subcommand)]
pub enum InstanceCommand {
    /// Give an instance no more work; it finishes what it has.
    Drain(ServiceArgs),
    /// Give it work again.
    Resume(ServiceArgs),
}

/// Which instance, and why.
#[derive(Debug, Args)]
pub struct ServiceArgs {
    /// An instance of the site that is reached.
    name: InstanceName,
    /// For the audit log.
    #[arg(long, default_value = "")]
    reason: String,
    /// The running host.
    #[command(flatten)]
    server: ServerArgs,
}

/// Does what was typed.
pub(super) fn run(command: &InstanceCommand, as_json: bool) -> Result<(), Failure> {
    match command {
        InstanceCommand::Drain(args) => change("drain", args, as_json),
        InstanceCommand::Resume(args) => change("resume", args, as_json),
    }
}

fn change(verb: &str, args: &ServiceArgs, as_json: bool) -> Result<(), Failure> {
    let fail = |e: &dyn std::fmt::Display| Failure::new(e).as_json(as_json);
    let client = Client::new(&args.server.server, &args.server.key);
    let path = format!("/v1/portolan/instances/{}/{verb}", args.name);
    let order = object!({ "reason": args.reason });
    let body = client.post(&path, &order).map_err(|e| fail(&e))?.body;
    if as_json {
        return json(&body);
    }
    let text = |key| body.get(key).and_then(Value::as_str).unwrap_or("-");
    let number = |key| body.get(key).and_then(Value::as_u64).unwrap_or(0);
    line(format!(
        "{}/{} is {}: {} prompts wait, {} answers run",
        text("site"),
        text("instance"),
        text("standing"),
        number("prefill_queued_requests"),
        number("decode_running"),
    ));
    Ok(())
}
