//! `portolan policy test`: a component against a table of cases.

use super::super::output::{Failure, json, line};
use super::lab_failure;
use super::log::{described, said_here};
use crate::lab::LabError;
use crate::lab::cases::{CaseTable, case_name};
use crate::lab::component::{ComponentFile, Workshop};
use crate::lab::judge::{Difference, judge};
use crate::lab::situation::{Situation, SituationText};
use crate::lab::told::ask;
use clap::Args;
use portolan_policy::QuestionKind;
use serde::Serialize;
use serde_json::Value;
use std::path::PathBuf;

/// Options of `policy test`.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// The component.
    pub file: PathBuf,
    /// The table; the component's name with the ending `.cases.yaml` when left out.
    #[arg(long, value_name = "CASES.yaml")]
    pub cases: Option<PathBuf>,
    /// The question; told from the component when left out.
    #[arg(long)]
    pub question: Option<QuestionKind>,
}

/// What came of a case.
#[derive(Debug, Serialize)]
struct Verdict {
    name: String,
    ok: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    differences: Vec<Difference>,
    fuel: Option<u64>,
    micros: u64,
    /// What the component wrote.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    log: Vec<Value>,
}

pub(super) fn run(args: &TestArgs, as_json: bool) -> Result<(), Failure> {
    let (question, verdicts) = test(args).map_err(|e| lab_failure(&e, as_json))?;
    let failed = verdicts.iter().filter(|verdict| !verdict.ok).count();
    if as_json {
        json(&serde_json::json!({ "ok": failed == 0, "question": question, "cases": verdicts }))?;
    } else {
        verdicts.iter().flat_map(describe).for_each(line);
        if failed == 0 {
            line(format!("every case holds ({})", verdicts.len()));
        }
    }
    match failed {
        0 => Ok(()),
        _ if as_json => Err(Failure::silent()),
        _ => Err(Failure::new(format!(
            "{failed} of {} cases failed",
            verdicts.len()
        ))),
    }
}

fn test(args: &TestArgs) -> Result<(QuestionKind, Vec<Verdict>), LabError> {
    let path = args
        .cases
        .clone()
        .unwrap_or_else(|| CaseTable::beside(&args.file));
    let workshop = Workshop::unhurried()?;
    let file = workshop.open(&args.file, args.question)?;
    let table = CaseTable::read(&path)?;
    let mut verdicts = Vec::new();
    for (i, case) in table.cases.iter().enumerate() {
        let name = case_name(case, i);
        let verdict = try_case(&workshop, &file, (&table, case), &name);
        verdicts.push(verdict.map_err(|e| match e {
            LabError::Value { key, problem } => LabError::Parse {
                path: path.clone(),
                detail: format!("{name}: {key}: {problem}"),
            },
            other => other,
        })?);
    }
    Ok((file.question, verdicts))
}

fn try_case(
    workshop: &Workshop,
    file: &ComponentFile,
    (table, case): (&CaseTable, &SituationText),
    name: &str,
) -> Result<Verdict, LabError> {
    let expect = case.expect.clone().unwrap_or_default();
    if let Some(key) = expect.out_of_place(file.question) {
        let problem = format!("no answer to the {} question has it", file.question);
        return Err(LabError::value(format!("expect.{key}"), problem));
    }
    let situation = Situation::of(case, table.names.as_ref())?;
    let config = case.config.as_ref().unwrap_or(&table.config);
    let policy = workshop.load(file, &config.0, &situation.names)?;
    let told = ask(policy.as_ref(), &situation, file.question, workshop.clock());
    let differences = match &told.result {
        Ok(answer) => judge(&expect, answer, &situation)?,
        Err(fault) => vec![Difference {
            key: "answer".to_owned(),
            expected: "an answer".to_owned(),
            got: format!("{}: {}", fault.word, fault.detail),
        }],
    };
    Ok(Verdict {
        name: name.to_owned(),
        ok: differences.is_empty(),
        differences,
        fuel: told.fuel,
        micros: told.micros,
        log: said_here(&workshop.loader().take_log_lines()),
    })
}

fn describe(verdict: &Verdict) -> Vec<String> {
    let mut out = vec![format!(
        "{} {}",
        if verdict.ok { "ok    " } else { "FAILED" },
        verdict.name
    )];
    for difference in &verdict.differences {
        out.push(format!("         {}", difference.key));
        out.push(format!("       - {}", difference.expected));
        out.push(format!("       + {}", difference.got));
    }
    out.extend(verdict.log.iter().map(|line| format!("     {}", described(line))));
    out
}
