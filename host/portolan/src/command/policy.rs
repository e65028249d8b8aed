//! `portolan policy`: check and try a component here; push, list and activate on a running host.

mod bench;
mod call;
mod check;
pub(super) mod history;
mod list;
mod log;
mod push;
mod replay;
mod test;

pub use bench::BenchArgs;
pub use call::CallArgs;
pub use check::CheckArgs;
pub use log::LogArgs;
pub use push::{PullArgs, PushArgs};
pub use replay::ReplayArgs;
pub use test::TestArgs;

pub(super) use check::check;

use super::output::{Failure, json, line};
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
            finish(listed.map_err(|e| refused(&e)), as_json, &list::said)
        }
        PolicyCommand::History { slot, server } => {
            let slot = client(&server).get(&path(&slot));
            finish(slot.map_err(|e| refused(&e)), as_json, &history::said)
        }
        PolicyCommand::Log(args) => {
            let lines = client(&args.server).get(&args.path());
            finish(lines.map_err(|e| refused(&e)), as_json, &log::said)
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
            let place = format!("{}/versions/{}", path(&slot), segment(&version));
            let gone = client(&server).delete(&place, &[("reason", &*reason)]);
            finish(gone.map_err(|e| refused(&e)), as_json, &|_| {
                vec![format!("{version} is removed")]
            })
        }
        PolicyCommand::Audit(args) => super::audit::run(&args, as_json),
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
    let config = body["config"].as_str().unwrap_or_default();
    let was_given = !config.is_empty() && findings.iter().all(|found| found.code != "configuration-kept");
    if body["generation"].is_u64() {
        out.push(format!("  with {}", history::configuration(config)));
    } else if was_given && body["proposal"].is_null() {
        out.push(format!(
            "  checked with {}; that is not kept: give it again to shadow, canary or activate",
            history::configuration(config)
        ));
    }
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
    let findings: Vec<Finding> = match error {
        ClientError::Refused { body, .. } => {
            serde_json::from_value(body["findings"].clone()).unwrap_or_default()
        }
        _ => Vec::new(),
    };
    for said in findings.iter().flat_map(said_of_finding) {
        text.push('\n');
        text.push_str(&said);
    }
    Failure::new(text).with_findings(findings)
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
    fn an_upload_says_which_configuration_is_in_force_and_which_was_only_tried() {
        let mut body = serde_json::json!({"name": "mine", "version": "ab".repeat(32), "config": "{}"});
        let stored = "mine abababababab (kept, not active)";
        assert_eq!(
            said_of_upload(&body),
            [
                stored,
                "  checked with configuration 44136fa355b3678a: {}; that is not kept: give it again to shadow, canary or \
                 activate"
            ]
        );
        let kept = "configuration-kept";
        body["findings"] =
            serde_json::json!([{"code": kept, "severity": "note", "message": "kept", "help": ""}]);
        assert_eq!(
            said_of_upload(&body),
            [stored, "  note [configuration-kept] kept"]
        );
        body["findings"] = Value::Null;
        body["generation"] = 2.into();
        assert_eq!(
            said_of_upload(&body),
            [
                "mine abababababab (active, generation 2)",
                "  with configuration 44136fa355b3678a: {}"
            ]
        );
    }

    #[test]
    fn a_refusal_in_json_has_the_findings_as_the_host_has_them() {
        let findings = serde_json::json!([
            {"code": "not-wasm", "severity": "error", "message": "it is text", "help": "build it"},
        ]);
        let error = ClientError::Refused {
            status: 422,
            message: "no".to_owned(),
            body: serde_json::json!({ "findings": findings }),
        };
        assert_eq!(refused(&error).in_json("no")["findings"], findings);
        let plain = Failure::new("no").in_json("no");
        assert_eq!(plain, serde_json::json!({"error": {"message": "no"}}));
    }

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
