//! `portolan site drain|evacuate|return`: takes a whole site out of service, and back.

use super::ServerArgs;
use super::output::{Failure, json, line};
use crate::client::Client;
use clap::{Args, Subcommand};
use serde_json::{Value, json as object};
use std::time::{Duration, Instant};

/// `site` commands.
#[derive(Debug, Subcommand)]
pub enum SiteCommand {
    /// Let the site take no more requests; it ends what it has.
    Drain(SiteArgs),
    /// The same, and wait until it has nothing left to do. Exits 1 when it has after --within.
    Evacuate {
        /// How long to wait, in seconds.
        #[arg(long, default_value_t = 60, value_name = "SECONDS")]
        within: u64,
        /// Why, and where.
        #[command(flatten)]
        site: SiteArgs,
    },
    /// Let it take requests again; its instances begin with a tenth of their share.
    Return(SiteArgs),
}

/// Why, and where.
#[derive(Debug, Args)]
pub struct SiteArgs {
    /// For the audit log.
    #[arg(long, default_value = "")]
    reason: String,
    /// The running host: the site itself.
    #[command(flatten)]
    server: ServerArgs,
}

/// How often it is looked whether a site is idle.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Does what was typed.
pub(super) fn run(command: &SiteCommand, as_json: bool) -> Result<(), Failure> {
    let done = match command {
        SiteCommand::Drain(args) => change("drain", args),
        SiteCommand::Return(args) => change("return", args),
        SiteCommand::Evacuate { within, site } => evacuate(site, Duration::from_secs(*within)),
    };
    let body = done.map_err(|failure| failure.as_json(as_json))?;
    if as_json {
        json(&body)?;
    } else {
        let number = |key: &str| body[key].as_u64().unwrap_or(0);
        line(format!(
            "{} is {}: {} requests in flight, {} prompts wait, {} answers run",
            body["site"].as_str().unwrap_or("-"),
            body["service"].as_str().unwrap_or("-"),
            number("in_flight"),
            number("prefill_queued_requests"),
            number("decode_running"),
        ));
    }
    let left = matches!(command, SiteCommand::Evacuate { .. }) && body["idle"] != true;
    if left { Err(Failure::silent()) } else { Ok(()) }
}

fn client(args: &SiteArgs) -> Client {
    Client::new(&args.server.server, &args.server.key)
}

fn change(verb: &str, args: &SiteArgs) -> Result<Value, Failure> {
    let order = object!({ "reason": args.reason });
    let reply = client(args).post(&format!("/v1/portolan/site/{verb}"), &order);
    Ok(reply.map_err(Failure::new)?.body)
}

/// The site as it is once it is idle, or after `within`.
fn evacuate(args: &SiteArgs, within: Duration) -> Result<Value, Failure> {
    let until = Instant::now() + within;
    let mut body = change("drain", args)?;
    while body["idle"] != true && Instant::now() < until {
        std::thread::sleep(LOOK_EVERY);
        body = client(args).get("/v1/portolan/site").map_err(Failure::new)?.body;
    }
    Ok(body)
}
