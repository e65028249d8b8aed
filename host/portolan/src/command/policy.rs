//! `portolan policy`: check and try a component here; push, list and activate on a running host.

mod bench;
mod call;
mod check;
mod push;
mod replay;
mod test;

pub use bench::BenchArgs;
pub use call::CallArgs;
pub use check::CheckArgs;
pub use push::{PullArgs, PushArgs};
pub use replay::ReplayArgs;
pub use test::TestArgs;

pub(super) use check::check;

use super::output::{Failure, json, line, tame};
use super::request::short;
use super::{PolicyCommand, ServerArgs, SlotArgs};
use crate::client::{Client, ClientError, segment};
use crate::lab::LabError;
use portolan_ports::{Finding, Severity};
use serde_json::Value;
use std::path::Path;

pub(super) fn run(command: PolicyCommand, as_json: bool) -> Result<(), Failure> {
    match command {
        PolicyCommand::New(args) => super::authoring::new(args, as_json),
        PolicyCommand::Build { dir } => super::authoring::build(&dir, as_json),
        PolicyCommand::Check(args) => check::run(&args, as_json),
        PolicyCommand::Call(args) => call::run(&args, as_json),
        PolicyCommand::Test(args) => test::run(&args, as_json),
        PolicyCommand::Replay(args) => replay::run(&args, as_json),
        PolicyCommand::Bench(args) => bench::run(&args, as_json),
        PolicyCommand::Componentize { file, output } => {
            componentize(&file, &output).map_err(|e| e.as_json(as_json))
        }
        PolicyCommand::Fix { file, output } => super::authoring::fix(&file, &output, as_json),
        PolicyCommand::Rollout(command) => super::rollout::run(command, as_json),
        PolicyCommand::Signing(command) => super::signing::run(command, as_json),
        PolicyCommand::Approval(command) => super::approval::run(command, as_json),
        PolicyCommand::Push(args) => push::push(args, as_json),
        PolicyCommand::Pull(args) => push::pull(&args, as_json),
        PolicyCommand::List { tenant, server } => {
            let listed = client(&server).get(&format!("/v1/portolan/tenants/{}/policies", segment(&tenant)));
            finish(listed.map_err(|e| refused(&e)), as_json, &said_of_list)
        }
        PolicyCommand::Unbind { slot, reason, server } => {
            let gone = client(&server).delete(&path(&slot), &[("reason", &*reason)]);
            finish(gone.map_err(|e| refused(&e)), as_json, &said_of_unbinding)
        }
        PolicyCommand::Remove {
            slot,
            version,
            reason,
            server,
        } => {
            let place = format!("{}/versions/{version}", path(&slot));
            let gone = client(&server).delete(&place, &[("reason", &*reason)]);
            finish(gone.map_err(|e| refused(&e)), as_json, &|_| {
                vec![format!("{version} is removed")]
            })
        }
        PolicyCommand::Audit(args) => super::usage::audit(&args, as_json),
        PolicyCommand::Activate {
            slot,
            version,
            config,
            reuse,
            reason,
            server,
        } => {
            let mut body = serde_json::json!({ "version": version, "reason": reason });
            if let Some(config) = config {
                let text = config_text(&config).map_err(|e| e.as_json(as_json))?;
                body["config"] = Value::String(text);
            }
            if let Some(reuse) = reuse {
                body["reuse"] = Value::from(reuse.as_str());
            }
            let activated = client(&server).post(&format!("{}/activate", path(&slot)), &body);
            finish(activated.map_err(|e| refused(&e)), as_json, &super::rollout::said)
        }
    }
}

fn componentize(file: &Path, output: &Path) -> Result<(), Failure> {
    let made = portolan_plugin::componentize(&read(file)?);
    let component = made.map_err(|e| Failure::new(format!("{}: {e}", file.display())))?;
    std::fs::write(output, component).map_err(|e| Failure::new(format!("{}: {e}", output.display())))
}

/// What kept a policy from being tried; a component that is refused comes with what the check found.
pub(super) fn lab_failure(error: &LabError, as_json: bool) -> Failure {
    let mut text = error.to_string();
    if let LabError::Refused { report, .. } = error {
        let errors = report.findings.iter().filter(|f| f.severity == Severity::Error);
        for said in errors.flat_map(said_of_finding) {
            text.push('\n');
            text.push_str(&said);
        }
    }
    Failure::new(text).as_json(as_json)
}

pub(super) fn said_of_finding(finding: &Finding) -> Vec<String> {
    let word = match finding.severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    let mut said = vec![format!("  {word} [{}] {}", finding.code, finding.message)];
    if !finding.help.is_empty() {
        said.push(format!("    → {}", finding.help));
    }
    said
}

fn said_of_upload(body: &Value) -> Vec<String> {
    let text = |key: &str| body[key].as_str().unwrap_or("?").to_owned();
    let state = match (body["generation"].as_u64(), body["proposal"]["id"].as_u64()) {
        (Some(generation), _) => format!("active, generation {generation}"),
        (None, Some(id)) => format!("kept; proposal {id} to make it active waits for a second operator"),
        (None, None) => "kept, not active".to_owned(),
    };
    let mut out = vec![format!(
        "{} {} ({})",
        text("name"),
        short(&text("version")),
        state
    )];
    let findings: Vec<Finding> = serde_json::from_value(body["findings"].clone()).unwrap_or_default();
    out.extend(findings.iter().flat_map(said_of_finding));
    out
}

fn said_of_unbinding(body: &Value) -> Vec<String> {
    let said = match body["proposal"]["id"].as_u64() {
        Some(id) => format!("proposal {id} waits for a second operator"),
        None => "unbound; the platform's policy or the built-in one answers".to_owned(),
    };
    vec![said]
}

fn said_of_list(body: &Value) -> Vec<String> {
    let mut out = Vec::new();
    for slot in body["policies"].as_array().into_iter().flatten() {
        let active = slot["binding"]["sha256"].as_str();
        let trial = &slot["rollout"]["trial"];
        let on_trial = trial["sha256"].as_str();
        out.push(slot["question"].as_str().unwrap_or("?").to_owned());
        out.extend(said_of_holds(&slot["rollout"]));
        for version in slot["versions"].as_array().into_iter().flatten() {
            let sha = version["sha256"].as_str().unwrap_or("?");
            let state = match () {
                () if Some(sha) == active => "active",
                () if Some(sha) == on_trial => trial["stage"].as_str().unwrap_or("on trial"),
                () => "",
            };
            let text = |key: &str| tame(version[key].as_str().unwrap_or("?"));
            let said = format!(
                "  {} {state:<7} {:<20} {} {:>9} bytes  by {}",
                short(sha),
                text("name"),
                super::usage::when(&version["at"]),
                version["bytes"],
                text("actor")
            );
            let reason = text("reason");
            let said = said + &signed_by(version);
            out.push(if reason.is_empty() {
                said
            } else {
                format!("{said}: {reason}")
            });
        }
        let findings = slot["signature_findings"].clone();
        let findings: Vec<Finding> = serde_json::from_value(findings).unwrap_or_default();
        out.extend(findings.iter().flat_map(said_of_finding));
    }
    if out.is_empty() {
        out.push("nothing is stored; the built-in policies answer".to_owned());
    }
    out
}

/// What holds a question beside its versions: nothing of them answers, or may be changed.
fn said_of_holds(rollout: &Value) -> Vec<String> {
    let hold = |word: &str, means: &str| {
        let held = rollout.get(word).filter(|held| !held.is_null())?;
        let text = |key: &str| tame(held[key].as_str().unwrap_or_default());
        let reason = match text("reason") {
            reason if reason.is_empty() => reason,
            reason => format!(": {reason}"),
        };
        let when = super::usage::when(&held["at"]);
        Some(format!("  {word} ({means}), by {} {when}{reason}", text("actor")))
    };
    [
        hold("disabled", "the fallback answers"),
        hold("pinned", "the binding may not be changed"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The keys that signed a version.
fn signed_by(version: &Value) -> String {
    let signatures = version["signatures"].as_array().into_iter().flatten();
    let keys: Vec<&str> = signatures.filter_map(|s| s["key_id"].as_str()).collect();
    match keys.is_empty() {
        true => String::new(),
        false => format!(", signed by {}", keys.join(", ")),
    }
}

pub(super) fn finish(
    reply: Result<crate::client::Reply, Failure>,
    as_json: bool,
    say: &dyn Fn(&Value) -> Vec<String>,
) -> Result<(), Failure> {
    let body = reply.map_err(|e| e.as_json(as_json))?.body;
    if as_json {
        return json(&body);
    }
    say(&body).iter().for_each(line);
    Ok(())
}

pub(super) fn refused(error: &ClientError) -> Failure {
    let mut text = error.to_string();
    if let ClientError::Refused { body, .. } = error {
        let findings: Vec<Finding> = serde_json::from_value(body["findings"].clone()).unwrap_or_default();
        for said in findings.iter().flat_map(said_of_finding) {
            text.push('\n');
            text.push_str(&said);
        }
    }
    Failure::new(text)
}

pub(super) fn client(server: &ServerArgs) -> Client {
    Client::new(&server.server, &server.key)
}

pub(super) fn path(slot: &SlotArgs) -> String {
    let tenant = segment(&slot.tenant);
    format!("/v1/portolan/tenants/{tenant}/policies/{}", slot.question)
}

/// A configuration as it was typed: itself, or `@` and the file it lies in.
pub(super) fn config_text(typed: &str) -> Result<String, Failure> {
    match typed.strip_prefix('@') {
        None => Ok(typed.to_owned()),
        Some(file) => std::fs::read_to_string(file).map_err(|e| {
            Failure::new(format!(
                "the configuration cannot be read from {file}: {e}; --config takes the text itself, or @FILE"
            ))
        }),
    }
}

/// A component's bytes.
pub(super) fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    if file.is_dir() {
        return Err(Failure::new(format!(
            "{} is a folder; name the component in it (`portolan policy build {}` makes one of a project)",
            file.display(),
            file.display()
        )));
    }
    std::fs::read(file).map_err(|e| {
        Failure::new(match e.kind() {
            std::io::ErrorKind::NotFound => format!("there is no file {}", file.display()),
            _ => format!("{} cannot be read: {e}", file.display()),
        })
    })
}

fn name_of(file: &Path) -> Result<String, Failure> {
    let stem = file.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
    let trouble = |e| {
        Failure::new(format!(
            "{}: {e}; give the policy a name with --name",
            file.display()
        ))
    };
    portolan_base::id::check_name(stem)
        .map(|()| stem.to_owned())
        .map_err(trouble)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Cli;
    use crate::host::component_loader;
    use crate::system::{OsRandom, SystemClock};
    use clap::Parser;
    use portolan_plugin::ArtefactKey;
    use portolan_ports::PolicyLoader;
    use std::sync::Arc;

    #[test]
    fn a_finding_without_help_is_one_line() {
        let mut finding = Finding {
            code: "start-fuel".to_owned(),
            severity: Severity::Note,
            message: "starting takes 7 fuel".to_owned(),
            help: String::new(),
        };
        let first = "  note [start-fuel] starting takes 7 fuel";
        assert_eq!(said_of_finding(&finding), [first]);
        finding.help = "do less".to_owned();
        assert_eq!(said_of_finding(&finding), [first, "    → do less"]);
    }

    #[test]
    fn a_list_says_what_is_disabled_and_what_is_pinned() {
        let hold = |reason: &str| serde_json::json!({"actor": "operator", "reason": reason, "at": 0});
        let slot = |rollout: Value| {
            let slot = serde_json::json!({"question": "cost", "versions": [], "rollout": rollout});
            said_of_list(&serde_json::json!({ "policies": [slot] })).join("\n")
        };
        let both = slot(serde_json::json!({"disabled": hold("it traps"), "pinned": hold("")}));
        assert!(
            both.contains("disabled (the fallback answers), by operator"),
            "{both}"
        );
        assert!(both.contains(": it traps"), "{both}");
        assert!(
            both.contains("pinned (the binding may not be changed), by operator"),
            "{both}"
        );
        assert_eq!(slot(serde_json::json!({})), "cost");
    }

    #[test]
    fn findings_advise_commands_that_exist() {
        let loader = component_loader(ArtefactKey::draw(&OsRandom), Arc::new(SystemClock::start())).unwrap();
        let mut advised = 0;
        for file in [b"".as_slice(), b"text", b"\0asm\x01\0\0\0"] {
            for finding in loader.check(None, file, None).findings {
                // Every second piece between backticks is quoted.
                let quoted = finding.help.split('`').skip(1).step_by(2);
                for command in quoted.filter(|quoted| quoted.starts_with("portolan ")) {
                    let parsed = Cli::try_parse_from(command.split(' '));
                    assert!(parsed.is_ok(), "{command}: {:?}", parsed.err());
                    advised += 1;
                }
            }
        }
        assert_eq!(advised, 5);
    }
}
