//! `portolan policy check`: what an upload of a component would be told.

use super::call::read_names;
use super::{config_text, lab_failure, read, said_of_finding};
use crate::command::output::{Failure, json, line};
use crate::host::component_loader;
use crate::system::{OsRandom, SystemClock};
use clap::Args;
use portolan_plugin::ArtefactKey;
use portolan_policy::{NameTables, QuestionKind};
use portolan_ports::{Finding, PolicyLoader, PolicyReport, Rehearsal};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Options of `policy check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The component.
    pub file: PathBuf,
    /// The question it is to answer; told from the component when left out.
    #[arg(long)]
    pub question: Option<QuestionKind>,
    /// The configuration it will be bound with, or @FILE; defaults are tried when left out.
    #[arg(long, value_name = "TEXT|@FILE")]
    pub config: Option<String>,
    /// Name tables (JSON), or the body of `GET /v1/portolan/fleet`, for a configuration that speaks of sites or
    /// jurisdictions.
    #[arg(long, value_name = "NAMES.json")]
    pub names: Option<PathBuf>,
}

pub(super) fn run(args: &CheckArgs, as_json: bool) -> Result<(), Failure> {
    let config = args.config.as_deref().map(config_text).transpose();
    let config = config.map_err(|e| e.as_json(as_json))?;
    let names = args.names.as_deref().map(read_names).transpose();
    let names = names.map_err(|e| lab_failure(&e, as_json))?.map(Arc::new);
    let rehearsal = rehearsal(config.as_deref(), names.as_ref());
    check(&args.file, args.question, rehearsal, as_json)
}

/// Names alone go with an empty configuration.
fn rehearsal<'a>(config: Option<&'a str>, names: Option<&'a Arc<NameTables>>) -> Option<Rehearsal<'a>> {
    (config.is_some() || names.is_some()).then(|| Rehearsal {
        config: config.unwrap_or_default(),
        names,
        owner: None,
    })
}

/// Checks a component and prints what was found; a failure when it cannot be used.
pub(in crate::command) fn check(
    file: &Path,
    question: Option<QuestionKind>,
    rehearsal: Option<Rehearsal<'_>>,
    as_json: bool,
) -> Result<(), Failure> {
    let component = read(file).map_err(|e| e.as_json(as_json))?;
    let loader = component_loader(ArtefactKey::draw(&OsRandom), Arc::new(SystemClock::start()));
    let report = loader
        .map_err(|e| Failure::new(e).as_json(as_json))?
        .check(question, &component, rehearsal);
    if as_json {
        json(&Said::of(&report))?;
    } else {
        said_of_report(file, &report).iter().for_each(line);
    }
    match report.ok {
        true => Ok(()),
        false if as_json => Err(Failure::silent()),
        false => Err(Failure::new(format!("{} cannot be used", file.display()))),
    }
}

/// A report as scripts read it; its keys are a promise.
#[derive(serde::Serialize)]
struct Said<'a> {
    ok: bool,
    question: Option<QuestionKind>,
    findings: &'a [Finding],
    sha256: &'a str,
}

impl<'a> Said<'a> {
    fn of(report: &'a PolicyReport) -> Self {
        Self {
            ok: report.ok,
            question: report.question,
            findings: &report.findings,
            sha256: &report.sha256,
        }
    }
}

pub(super) fn said_of_report(file: &Path, report: &PolicyReport) -> Vec<String> {
    let question = report.question.map_or("no known question", QuestionKind::as_str);
    let mut out = vec![format!(
        "{}: {question}, {} bytes, sha256 {}",
        file.display(),
        report.bytes,
        report.sha256
    )];
    out.extend(report.findings.iter().flat_map(said_of_finding));
    if report.ok {
        out.push("it can be used".to_owned());
    }
    out
}
