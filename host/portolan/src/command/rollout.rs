//! `portolan policy`, the life of a version after its upload: shadow, canary, promotion, roll-back, pin, disable.

use super::output::Failure;
use super::policy::history::{configuration, said_of_who};
use super::policy::{client, config_text, finish, path, refused};
use super::request::short;
use super::{ServerArgs, SlotArgs};
use clap::{Args, Subcommand};
use portolan_ports::Reuse;
use serde_json::{Map, Value, json};

/// What can be done to a slot of a running host.
#[derive(Debug, Subcommand)]
pub enum RolloutCommand {
    /// Ask a stored version after each request, and obey the active one.
    Shadow {
        /// The version.
        #[command(flatten)]
        trial: TrialArgs,
        /// The change.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Let a stored version answer a share of the sessions.
    Canary {
        /// Of how many, 1 to 100.
        #[arg(long, value_parser = clap::value_parser!(u8).range(1..=100))]
        percent: u8,
        /// The version.
        #[command(flatten)]
        trial: TrialArgs,
        /// The change.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Make the version on trial the active one.
    Promote(ChangeArgs),
    /// End the trial.
    Withdraw(ChangeArgs),
    /// Bring back an earlier version with its configuration.
    Rollback {
        /// SHA-256 of the version, or its unique beginning; the one before the active one when left out.
        #[arg(long, value_name = "VERSION")]
        to: Option<String>,
        /// The change.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Refuse every change of the active version.
    Pin(ChangeArgs),
    /// Allow changes again.
    Unpin(ChangeArgs),
    /// Let the question's fallback answer in place of every version.
    Disable(ChangeArgs),
    /// Let the versions answer again.
    Enable(ChangeArgs),
}

/// A version to be tried.
#[derive(Debug, Args)]
pub struct TrialArgs {
    /// SHA-256 of the version, or its unique beginning; the one on trial when left out.
    version: Option<String>,
    /// Text for its `configure`, or @FILE; that of its trial or last binding, or the one in force, when left out.
    #[arg(long, value_name = "TEXT|@FILE")]
    config: Option<String>,
    /// fresh: an instance for each call; warm: kept from call to call; by-class: fresh when compact. As on its trial or in
    /// its last binding when left out.
    #[arg(long, value_name = "HOW")]
    reuse: Option<Reuse>,
    /// Over how many of its latest calls the budget is counted.
    #[arg(long, value_name = "CALLS")]
    window: Option<u32>,
    /// Faults a thousand calls that it may have, timeouts among them.
    #[arg(long, value_name = "N")]
    max_fault_permille: Option<u32>,
    /// Bound of the 99th percentile of a call's time.
    #[arg(long, value_name = "MICROS")]
    max_micros_p99: Option<u64>,
}

/// What every change takes.
#[derive(Debug, Args)]
pub struct ChangeArgs {
    /// Where.
    #[command(flatten)]
    slot: SlotArgs,
    /// Why, for the audit log.
    #[arg(long, default_value = "")]
    reason: String,
    /// The running host.
    #[command(flatten)]
    server: ServerArgs,
}

impl TrialArgs {
    fn into_body(self) -> Result<Value, Failure> {
        let given = |pairs: Vec<(&str, Option<Value>)>| -> Map<String, Value> {
            let given = pairs
                .into_iter()
                .filter_map(|(key, value)| Some((key.to_owned(), value?)));
            given.collect()
        };
        let budget = given(vec![
            ("window", self.window.map(Value::from)),
            ("max_fault_permille", self.max_fault_permille.map(Value::from)),
            ("max_micros_p99", self.max_micros_p99.map(Value::from)),
        ]);
        let budget = (!budget.is_empty()).then_some(Value::Object(budget));
        let config = self.config.as_deref().map(config_text).transpose()?;
        Ok(Value::Object(given(vec![
            ("version", self.version.map(Value::from)),
            ("config", config.map(Value::from)),
            ("budget", budget),
            ("reuse", self.reuse.map(|reuse| json!(reuse))),
        ])))
    }
}

pub(super) fn run(command: RolloutCommand, as_json: bool) -> Result<(), Failure> {
    let body = |trial: TrialArgs| trial.into_body().map_err(|e| e.as_json(as_json));
    let (word, mut body, change) = match command {
        RolloutCommand::Shadow { trial, change } => ("shadow", body(trial)?, change),
        RolloutCommand::Canary {
            percent,
            trial,
            change,
        } => {
            let mut body = body(trial)?;
            body["percent"] = json!(percent);
            ("canary", body, change)
        }
        RolloutCommand::Promote(change) => ("promote", json!({}), change),
        RolloutCommand::Withdraw(change) => ("withdraw", json!({}), change),
        RolloutCommand::Rollback { to, change } => {
            let body = to.map_or(json!({}), |version| json!({ "version": version }));
            ("rollback", body, change)
        }
        RolloutCommand::Pin(change) => ("pin", json!({}), change),
        RolloutCommand::Unpin(change) => ("unpin", json!({}), change),
        RolloutCommand::Disable(change) => ("disable", json!({}), change),
        RolloutCommand::Enable(change) => ("enable", json!({}), change),
    };
    body["reason"] = Value::String(change.reason);
    let done = client(&change.server).post(&format!("{}/{word}", path(&change.slot)), &body);
    finish(done.map_err(|e| refused(&e)), as_json, &said)
}

/// The answer is a binding, or what holds beside one.
pub(super) fn said(body: &Value) -> Vec<String> {
    if let Some(waiting) = super::approval::waiting(body) {
        return waiting;
    }
    let version = |of: &Value| {
        let text = |key: &str| of[key].as_str().unwrap_or("?").to_owned();
        format!("{} {}", text("name"), short(&text("sha256")))
    };
    let with = |of: &Value| {
        format!(
            "  with {}",
            configuration(of["config"].as_str().unwrap_or_default())
        )
    };
    if body["generation"].is_u64() {
        let active = format!("active: {}, generation {}", version(body), body["generation"]);
        return vec![active, with(body)];
    }
    let mut out = Vec::new();
    if let Some(trial) = body.get("trial") {
        let percent = trial["percent"].as_u64().map(|n| format!(" {n} %"));
        let stage = trial["stage"].as_str().unwrap_or("?");
        out.push(format!(
            "{stage}{}: {}",
            percent.unwrap_or_default(),
            version(trial)
        ));
        out.push(with(trial));
    }
    for hold in ["pinned", "disabled"] {
        if let Some(by) = body.get(hold) {
            let text = |key: &str| by[key].as_str().unwrap_or("?");
            out.push(format!(
                "{hold} by {}",
                said_of_who(text("actor"), text("reason"))
            ));
        }
    }
    if out.is_empty() {
        out.push("nothing is on trial, pinned or disabled".to_owned());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Cli, Command, PolicyCommand};
    use clap::Parser;

    fn parse(line: &str) -> Result<RolloutCommand, clap::Error> {
        let cli = Cli::try_parse_from(line.split(' '))?;
        match cli.command {
            Command::Policy(PolicyCommand::Rollout(command)) => Ok(command),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_canary_says_only_what_was_typed() {
        let line = "portolan policy canary --tenant acme --question routing 3fa9c1 --percent 5 --window 50";
        let RolloutCommand::Canary { percent, trial, .. } = parse(line).unwrap() else {
            panic!()
        };
        assert_eq!(percent, 5);
        let body = json!({ "version": "3fa9c1", "budget": { "window": 50 } });
        assert_eq!(trial.into_body().unwrap(), body);
        assert!(parse(&line.replace("percent 5", "percent 0")).is_err());
        assert!(parse(&line.replace("percent 5", "percent 101")).is_err());
    }

    #[test]
    fn every_change_can_be_typed() {
        for word in [
            "promote", "withdraw", "rollback", "pin", "unpin", "disable", "enable", "shadow",
        ] {
            let line = format!("portolan policy {word} --tenant acme --question cost --reason why");
            assert!(parse(&line).is_ok(), "{word}");
        }
    }

    #[test]
    fn what_holds_is_said_in_a_line_each() {
        let body = json!({
            "trial": { "name": "mine", "sha256": "0123456789abcdef", "stage": "canary", "percent": 5 },
            "pinned": { "actor": "operator", "reason": "audit" },
        });
        let said = said(&body);
        assert!(said[0].starts_with("canary 5 %: mine 0123"), "{said:?}");
        assert_eq!(said[1], "  with no configuration");
        assert_eq!(said[2], "pinned by operator: audit");
    }
}
