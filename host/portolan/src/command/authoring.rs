//! `portolan policy new` and `policy build`: from nothing to a component that an upload would take.

use super::output::{Failure, json, line};
use crate::authoring::{self, Language, Scaffold};
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
    line(format!(
        "{} is a {} policy in {}",
        source.display(),
        args.question,
        args.lang.title()
    ));
    line("next:");
    line(format!("  cd {}", dir.display()));
    line(format!("  {}", args.lang.install()));
    line("  portolan policy build");
    Ok(())
}

/// Builds, then checks as an upload would. The check says whether the component can be used.
pub(super) fn build(dir: &Path, as_json: bool) -> Result<(), Failure> {
    let built = authoring::build(dir).map_err(|e| Failure::new(e).as_json(as_json))?;
    super::policy::check(&built.component, Some(built.question), as_json)
}
