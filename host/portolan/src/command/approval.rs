//! `portolan policy proposals`, `approve` and `reject`: what waits for a second operator.

use super::ServerArgs;
use super::output::{Failure, tame};
use super::policy::{client, finish, refused};
use super::request::short;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

/// What can be done about proposals of a running host.
#[derive(Debug, Subcommand)]
pub enum ApprovalCommand {
    /// List the changes of platform policies that wait, or waited, for a second operator.
    Proposals {
        /// The running host.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Approve another operator's proposal: it is carried out.
    Approve(VerdictArgs),
    /// Reject a proposal, another's or one's own.
    Reject(VerdictArgs),
}

/// What a verdict takes.
#[derive(Debug, Args)]
pub struct VerdictArgs {
    /// The proposal's number.
    id: u64,
    /// Why, for the audit log.
    #[arg(long, default_value = "")]
    reason: String,
    /// The running host.
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn run(command: ApprovalCommand, as_json: bool) -> Result<(), Failure> {
    let (word, verdict) = match command {
        ApprovalCommand::Proposals { server } => {
            let listed = client(&server).get("/v1/portolan/proposals");
            return finish(listed.map_err(|e| refused(&e)), as_json, &said_of_list);
        }
        ApprovalCommand::Approve(verdict) => ("approve", verdict),
        ApprovalCommand::Reject(verdict) => ("reject", verdict),
    };
    let path = format!("/v1/portolan/proposals/{}/{word}", verdict.id);
    let decided = client(&verdict.server).post(&path, &json!({ "reason": verdict.reason }));
    finish(decided.map_err(|e| refused(&e)), as_json, &|body| {
        let verdict = &body["proposal"]["verdict"];
        let kind = verdict["kind"].as_str().unwrap_or("?");
        vec![format!("{kind}: {}", said(&body["proposal"]))]
    })
}

/// What to say when a change was not made but proposed.
pub(super) fn waiting(body: &Value) -> Option<Vec<String>> {
    let proposal = body.get("proposal")?;
    Some(vec![
        format!("waits for a second operator: {}", said(proposal)),
        format!(
            "another operator: portolan policy approve {} --reason WHY",
            proposal["id"]
        ),
    ])
}

fn said_of_list(body: &Value) -> Vec<String> {
    let proposals = body["data"].as_array().into_iter().flatten();
    let mut out: Vec<String> = proposals
        .map(|proposal| {
            let state = proposal["state"].as_str().unwrap_or("?");
            format!("{state:<9} {}", said(proposal))
        })
        .collect();
    if out.is_empty() {
        out.push("nothing was proposed".to_owned());
    }
    out
}

/// A proposal in a line.
fn said(proposal: &Value) -> String {
    // Whoever approves has to see what the other wrote, as it is.
    let text = |key: &str| tame(proposal[key].as_str().unwrap_or_default());
    let stage = match proposal["percent"].as_u64() {
        Some(percent) => format!("canary {percent} %"),
        None => text("stage"),
    };
    let what = match text("change").as_str() {
        "try" => stage,
        change => change.to_owned(),
    };
    let parts = [
        format!("{}", proposal["id"]),
        text("question"),
        what,
        short(&text("sha256")).to_owned(),
        text("config"),
        format!("by {}", text("actor")),
        text("reason"),
    ];
    let parts = parts.iter().filter(|part| !part.is_empty());
    parts.cloned().collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Cli;
    use clap::Parser;

    #[test]
    fn proposals_and_verdicts_can_be_typed() {
        for line in [
            "portolan policy proposals",
            "portolan policy approve 3 --reason why --key k",
            "portolan policy reject 3",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
        assert!(Cli::try_parse_from("portolan policy approve p3".split(' ')).is_err());
    }

    #[test]
    fn a_proposal_is_a_line_and_names_the_next_step() {
        let body = json!({ "proposal": {
            "id": 3, "question": "routing", "change": "try", "stage": "canary", "percent": 5,
            "sha256": "0123456789abcdef", "actor": "operator alice", "reason": "why",
        }});
        let said = waiting(&body).unwrap();
        assert!(said[0].contains("3  routing  canary 5 %  0123"), "{said:?}");
        assert!(said[1].contains("policy approve 3"), "{said:?}");
        assert_eq!(waiting(&json!({ "generation": 1 })), None);
    }

    #[test]
    fn a_proposal_hides_nothing_of_itself_from_who_approves() {
        let body = json!({ "proposal": {
            "id": 3, "question": "cost", "change": "activate", "sha256": "0123456789abcdef", "actor": "operator alice",
            "config": "{\"allow\":\u{1b}[2K\r 1}", "reason": "why",
        }});
        let said = waiting(&body).unwrap();
        assert!(said[0].contains("{\"allow\":\\u{1b}[2K\\r 1}"), "{said:?}");
    }
}
