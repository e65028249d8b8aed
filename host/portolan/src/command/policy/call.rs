//! `portolan policy call`: asks a component once.

use super::super::output::{Failure, json, line};
use super::lab_failure;
use super::log::{described, said_here};
use crate::lab::LabError;
use crate::lab::component::Workshop;
use crate::lab::error::RELEASE;
use crate::lab::names;
use crate::lab::records;
use crate::lab::situation::{Situation, SituationText};
use crate::lab::told::{answer_as_json, ask};
use clap::Args;
use portolan_decide::PathRecord;
use portolan_policy::{NameTables, QuestionKind};
use serde_json::{Value, json as object};
use std::path::{Path, PathBuf};

/// Options of `policy call`.
#[derive(Debug, Args)]
pub struct CallArgs {
    /// The component.
    pub file: PathBuf,
    /// What it is asked about: a view (JSON), or the path record of a request; `-` reads it from standard input.
    #[arg(long, value_name = "VIEW.json")]
    pub input: PathBuf,
    /// The question; told from the component when left out.
    #[arg(long)]
    pub question: Option<QuestionKind>,
    /// Text for its `configure`; that of the view when left out.
    #[arg(long, value_name = "TEXT")]
    pub config: Option<String>,
    /// Name tables (JSON), or the body of `GET /v1/portolan/fleet`: for path records, which do not say where sites lie.
    #[arg(long, value_name = "NAMES.json")]
    pub names: Option<PathBuf>,
}

pub(super) fn run(args: &CallArgs, as_json: bool) -> Result<(), Failure> {
    let (said, answered) = call(args).map_err(|e| lab_failure(&e, as_json))?;
    if as_json {
        json(&said)?;
    } else {
        describe(&said).iter().for_each(line);
    }
    if answered { Ok(()) } else { Err(Failure::silent()) }
}

/// What came of the call, and whether it was an answer.
fn call(args: &CallArgs) -> Result<(Value, bool), LabError> {
    let tables = args.names.as_deref().map(read_names).transpose()?;
    let (situation, config) = read_input(&args.input, tables.as_ref())?;
    let workshop = Workshop::new()?;
    let file = workshop.open(&args.file, args.question)?;
    let config = args.config.clone().or(config).unwrap_or_default();
    let policy = workshop.load(&file, &config, &situation.names)?;
    let told = ask(policy.as_ref(), &situation, file.question, workshop.clock());
    let mut said = object!({ "question": file.question, "fuel": told.fuel, "micros": told.micros });
    let log = said_here(&workshop.loader().take_log_lines());
    if !log.is_empty() {
        said["log"] = Value::Array(log);
    }
    if let Some(lacks) = situation.lacks(file.question) {
        said["notes"] = object!([lacks]);
    }
    match &told.result {
        Ok(answer) => said["answer"] = answer_as_json(answer, &situation),
        Err(fault) => said["fault"] = object!({ "code": fault.word, "message": fault.detail }),
    }
    Ok((said, told.result.is_ok()))
}

fn read_input(path: &Path, names: Option<&NameTables>) -> Result<(Situation, Option<String>), LabError> {
    let text = read(path)?;
    let wrong = |detail: String| LabError::Parse {
        path: path.to_owned(),
        detail,
    };
    let document: Value = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    if records::is_record(&document) {
        let record: Result<PathRecord, _> = serde_json::from_str(&text);
        let record = record.map_err(|e| wrong(format!("{e}; {RELEASE}")))?;
        return Ok((Situation::recorded(&record, names), None));
    }
    if document.is_array() || document.get("data").is_some() {
        let problem = "a list; one call takes one view or record (`GET /v1/portolan/requests/ID`), and `policy replay` \
                       takes lists of records";
        return Err(wrong(problem.to_owned()));
    }
    if !document.is_object() {
        return Err(wrong(
            "a view is an object: {\"request\": {...}, \"routes\": [...]}".to_owned(),
        ));
    }
    let view: SituationText = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    let situation = Situation::of(&view, None).map_err(|e| wrong(e.to_string()))?;
    Ok((situation, view.config.map(|config| config.0)))
}

/// Name tables from a file.
pub(super) fn read_names(path: &Path) -> Result<NameTables, LabError> {
    let parse = |detail: String| LabError::Parse {
        path: path.to_owned(),
        detail,
    };
    let document = serde_json::from_str(&read(path)?).map_err(|e| parse(e.to_string()))?;
    names::from_document(document).map_err(|e| parse(e.to_string()))
}

fn read(path: &Path) -> Result<String, LabError> {
    let text = if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    text.map_err(|source| LabError::Read {
        path: path.to_owned(),
        source,
    })
}

fn describe(said: &Value) -> Vec<String> {
    let fuel = said["fuel"]
        .as_u64()
        .map_or_else(String::new, |fuel| format!(", {fuel} fuel"));
    let mut out = vec![format!(
        "{}: {} µs{fuel}",
        said["question"].as_str().unwrap_or("?"),
        said["micros"]
    )];
    match said["answer"].as_object() {
        Some(answer) => out.extend(answer.iter().map(|(key, value)| format!("  {key:<10} {value}"))),
        None => out.push(format!(
            "  {}: {}",
            said["fault"]["code"].as_str().unwrap_or("?"),
            said["fault"]["message"].as_str().unwrap_or("?")
        )),
    }
    out.extend(said["log"].as_array().into_iter().flatten().map(described));
    let notes = said["notes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    out.extend(notes.map(|note| format!("note: {note}")));
    out
}
