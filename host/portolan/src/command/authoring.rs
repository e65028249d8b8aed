//! `portolan policy new`, `policy build` and `policy fix`: to a component that an upload would take.

use super::output::{Failure, json, line};
use crate::authoring::{self, Deed, Language, Scaffold, Stubbed};
use clap::Args;
use portolan_policy::QuestionKind;
use std::path::{Path, PathBuf};

/// Options of `policy new`.
#[derive(Debug, Args)]
pub struct NewArgs {
    /// The policy's name: lower-case letters, digits, `-` and `_`.
    pub name: String,
    /// The language.
    #[arg(long, value_enum)]
    pub lang: Language,
    /// residency, cost, routing or invalidation.
    #[arg(long)]
    pub question: QuestionKind,
    /// Folder of the project; the name when left out.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

pub(super) fn new(args: NewArgs, as_json: bool) -> Result<(), Failure> {
    let dir = args.dir.unwrap_or_else(|| PathBuf::from(&args.name));
    let source = Scaffold::new(&args.name, args.question, args.lang)
        .and_then(|scaffold| scaffold.write(&dir))
        .map_err(|e| Failure::new(e).as_json(as_json))?;
    if as_json {
        return json(&serde_json::json!({ "dir": dir, "source": source }));
    }
    let article = match args.question {
        QuestionKind::Invalidation => "an",
        QuestionKind::Residency | QuestionKind::Cost | QuestionKind::Routing => "a",
    };
    line(format!(
        "{} is {article} {} policy in {}",
        source.display(),
        args.question,
        args.lang.title()
    ));
    line("next:");
    line(format!("  cd {}", dir.display()));
    let install = authoring::to_install(args.lang, &dir).unwrap_or_default();
    install.lines().for_each(|command| line(format!("  {command}")));
    line("  portolan policy build");
    Ok(())
}

/// Builds, then checks as an upload would. The check says whether the component can be used.
pub(super) fn build(dir: &Path, as_json: bool) -> Result<(), Failure> {
    let built = authoring::build(dir).map_err(|e| Failure::new(e).as_json(as_json))?;
    super::policy::check(&built.component, Some(built.question), None, as_json)
}

/// Stubs a foreign component's WASI imports, then checks as an upload would.
pub(super) fn fix(file: &Path, output: &Path, as_json: bool) -> Result<(), Failure> {
    let fixed = super::policy::read(file).and_then(|component| {
        let fixed =
            authoring::fix(&component).map_err(|e| Failure::new(format!("{}: {e}", file.display())))?;
        std::fs::write(output, &fixed.component)
            .map_err(|e| Failure::new(format!("{} cannot be written: {e}", output.display())))?;
        Ok(fixed)
    });
    let fixed = fixed.map_err(|e| e.as_json(as_json))?;
    if !as_json {
        line(format!("{} functions of WASI are stubbed:", fixed.stubs.len()));
        fixed.stubs.iter().map(said_of_stub).for_each(line);
    }
    super::policy::check(output, None, None, as_json)
}

fn said_of_stub(stub: &Stubbed) -> String {
    let does = match stub.does {
        Deed::Traps => "traps",
        Deed::AnswersNothing => "answers that there is nothing",
    };
    format!("  {} {does}", stub.name)
}
