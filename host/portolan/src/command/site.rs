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
    /// The same; hand the prefixes it is asked for over to other sites, and wait until it has nothing left to do. Exits 1
    /// when it has after --within.
    Evacuate {
        /// How long to hand over and to wait, in seconds.
        #[arg(long, default_value_t = 60, value_name = "SECONDS")]
        within: u64,
        /// How much KV to hand over at most, in MiB; 0: none.
        #[arg(long, default_value_t = 4096, value_name = "MIB")]
        mib: u64,
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
        SiteCommand::Evacuate { within, mib, site } => {
            let told = |progress: &str| {
                if !as_json {
                    line(progress);
                }
            };
            evacuate(site, (Duration::from_secs(*within), *mib), told)
        }
    };
    let body = done.map_err(|failure| failure.as_json(as_json))?;
    if as_json {
        json(&body)?;
    } else {
        not_moved(&body["evacuation"]).iter().for_each(line);
        line(format!(
            "{} is {}: {} requests in flight, {} prompts wait, {} answers run",
            text(&body, "site"),
            text(&body, "service"),
            number(&body, "in_flight"),
            number(&body, "prefill_queued_requests"),
            number(&body, "decode_running"),
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

/// The site as it is once it is idle and has handed over what it could, or after `within`.
fn evacuate(args: &SiteArgs, (within, mib): (Duration, u64), told: impl Fn(&str)) -> Result<Value, Failure> {
    let until = Instant::now() + within;
    let order = object!({ "reason": args.reason, "within_s": within.as_secs().max(1), "mib": mib });
    let reply = client(args).post("/v1/portolan/site/evacuate", &order);
    let mut body = reply.map_err(Failure::new)?.body;
    let mut last = String::new();
    loop {
        let now = progress(&body["evacuation"]);
        if now != last {
            told(&now);
            last = now;
        }
        let is_over = body["idle"] == true && body["evacuation"]["ended"] == true;
        if is_over || Instant::now() >= until {
            return Ok(body);
        }
        std::thread::sleep(LOOK_EVERY);
        body = client(args).get("/v1/portolan/site").map_err(Failure::new)?.body;
    }
}

/// How far handing over came.
fn progress(of: &Value) -> String {
    let not_moved = of["not_moved"].as_array().map_or(0, Vec::len) as u64;
    let done = number(of, "moved") + number(of, "there_already") + number(of, "gone") + not_moved;
    format!(
        "{done} of {} prefixes: {} moved ({} tokens, {:.1} MiB), {} there already, {} gone here, {not_moved} not moved",
        number(of, "prefixes"),
        number(of, "moved"),
        number(of, "tokens"),
        number(of, "bytes") as f64 / f64::from(1 << 20),
        number(of, "there_already"),
        number(of, "gone"),
    )
}

/// What could not be moved, a line each.
fn not_moved(of: &Value) -> Vec<String> {
    let prefixes = of["not_moved"].as_array().into_iter().flatten();
    let line = |one: &Value| {
        format!(
            "not moved: {} tokens of {} up to block {}, asked for {} times: {}",
            number(one, "tokens"),
            text(one, "tenant"),
            text(one, "block"),
            number(one, "asks"),
            text(one, "why"),
        )
    };
    prefixes.map(line).collect()
}

fn number(of: &Value, key: &str) -> u64 {
    of[key].as_u64().unwrap_or(0)
}

fn text<'v>(of: &'v Value, key: &str) -> &'v str {
    of[key].as_str().unwrap_or("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_a_line_and_what_was_not_moved_is_named() {
        let told = object!({
            "prefixes": 5, "moved": 2, "there_already": 1, "gone": 0, "tokens": 1920, "bytes": 3 << 20, "ended": true,
            "not_moved": [{"tenant": "clinic", "block": "9f", "tokens": 960, "asks": 4, "why": "the time was over"}],
        });
        assert_eq!(
            progress(&told),
            "4 of 5 prefixes: 2 moved (1920 tokens, 3.0 MiB), 1 there already, 0 gone here, 1 not moved"
        );
        assert_eq!(
            not_moved(&told),
            ["not moved: 960 tokens of clinic up to block 9f, asked for 4 times: the time was over"]
        );
    }
}
