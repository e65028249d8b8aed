//! `portolan policy replay`: requests decided again, from records or by playing a trace.

mod recorded;
mod said;
mod trace;

use super::super::ServerArgs;
use super::super::output::{Failure, json, line, tame};
use super::super::times::duration;
use super::lab_failure;
use crate::lab::LabError;
use crate::lab::comparison::Comparison;
use crate::lab::component::{ComponentFile, Workshop};
use clap::{ArgGroup, Args};
use portolan_policy::{NameTables, Policy, QuestionKind};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Options of `policy replay`.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("requests").required(true).multiple(true).args(["records", "tenant", "trace"])))]
pub struct ReplayArgs {
    /// The component.
    pub file: PathBuf,
    /// Path records: JSON, JSON lines, bodies of `GET /v1/portolan/requests`, folders of them, or `-`.
    #[arg(
        long,
        num_args = 1..,
        value_name = "PATHS",
        conflicts_with = "trace"
    )]
    pub records: Vec<PathBuf>,
    /// Only this tenant's records; taken from the running host when no `--records` are given.
    #[arg(long, conflicts_with = "trace")]
    pub tenant: Option<String>,
    /// Only requests accepted so long ago at most: `90s`, `30m`, `1h`, `2d`, `1w`, `1h30m`.
    #[arg(long, value_parser = duration, value_name = "TIME", conflicts_with = "trace")]
    pub since: Option<Duration>,
    /// A request trace, played through the simulator: Mooncake's JSON lines, or Azure's CSV.
    #[arg(long, value_name = "TRACE.jsonl")]
    pub trace: Option<PathBuf>,
    /// The fleet that the trace is played on; the two sites of the demo when left out.
    #[arg(long, value_name = "FLEET.yaml", requires = "trace", conflicts_with_all = ["records", "tenant"])]
    pub fleet: Option<PathBuf>,
    /// What a trace is compared with: a built-in policy's name, or a component; what decides when nothing is bound
    /// when left out.
    #[arg(long, value_name = "NAME|FILE", requires = "trace", conflicts_with_all = ["records", "tenant"])]
    pub against: Option<String>,
    /// Text for the `configure` of `--against`.
    #[arg(long, value_name = "TEXT", requires = "against")]
    pub against_config: Option<String>,
    /// The question; told from the component when left out.
    #[arg(long)]
    pub question: Option<QuestionKind>,
    /// Text for its `configure`.
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub config: String,
    /// The router that follows a cost or residency component; the built-in `lowest-cost` when left out.
    #[arg(long, value_name = "FILE")]
    pub with: Option<PathBuf>,
    /// Name tables (JSON), or the body of `GET /v1/portolan/fleet`: records do not say where sites lie.
    #[arg(long, value_name = "NAMES.json", conflicts_with = "trace")]
    pub names: Option<PathBuf>,
    /// The running host.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// What there is to say.
struct Told {
    comparison: Comparison,
    /// What a reader must know to read the figures aright.
    notes: Vec<String>,
    /// What the two ways are called.
    ways: (&'static str, &'static str),
    /// Further keys for JSON.
    more: Value,
}

pub(super) fn run(args: &ReplayArgs, as_json: bool) -> Result<(), Failure> {
    let told = if args.trace.is_some() {
        trace::replay(args).map_err(|e| lab_failure(&e, as_json))?
    } else {
        recorded::replay(args).map_err(|e| e.into_failure(as_json))?
    };
    let failure = faulted(&told.comparison, as_json);
    if as_json {
        let mut said = serde_json::to_value(&told.comparison).map_err(Failure::new)?;
        said["notes"] = serde_json::json!(told.notes);
        if let (Some(said), Value::Object(more)) = (said.as_object_mut(), told.more) {
            said.extend(more);
        }
        json(&said)?;
    } else {
        said::describe(&told.comparison, told.ways).iter().for_each(line);
        told.notes.iter().for_each(|note| line(format!("note: {note}")));
    }
    failure.map_or(Ok(()), Err)
}

/// A policy that faults is none to be activated by a script that looks at the status.
fn faulted(found: &Comparison, as_json: bool) -> Option<Failure> {
    let why = found.first_fault.as_deref()?;
    if as_json {
        return Some(Failure::silent());
    }
    Some(Failure::new(format!(
        "{} calls in {} decisions ended in a fault; the first: {}",
        found.faults,
        found.decided,
        tame(why)
    )))
}

/// The components of a replay: the one that is tried, and the router that follows it.
struct Tried {
    file: ComponentFile,
    router: Option<ComponentFile>,
}

impl Tried {
    fn open(args: &ReplayArgs, workshop: &Workshop) -> Result<Self, LabError> {
        let file = workshop.open(&args.file, args.question)?;
        if file.question == QuestionKind::Invalidation {
            return Err(LabError::value(
                "question",
                "an invalidation component is asked about events, which neither records nor traces hold; residency, \
                 cost and routing can be replayed",
            ));
        }
        if file.question == QuestionKind::Routing && args.with.is_some() {
            return Err(LabError::value(
                "--with",
                "it names the router that follows a cost or residency component, and this component routes itself",
            ));
        }
        let router = args
            .with
            .as_ref()
            .map(|path| workshop.open(path, Some(QuestionKind::Routing)));
        Ok(Self {
            file,
            router: router.transpose()?,
        })
    }

    fn load(
        &self,
        args: &ReplayArgs,
        workshop: &Workshop,
        names: &NameTables,
    ) -> Result<Arc<dyn Policy>, LabError> {
        workshop.load(&self.file, &args.config, names)
    }

    fn load_router(
        &self,
        workshop: &Workshop,
        names: &NameTables,
    ) -> Result<Option<Arc<dyn Policy>>, LabError> {
        let load = |router| workshop.load(router, "", names);
        self.router.as_ref().map(load).transpose()
    }

    /// Who routes, where that is not the component itself.
    fn routed_by(&self) -> Option<String> {
        let by = |router: &ComponentFile| router.path.display().to_string();
        let router = self
            .router
            .as_ref()
            .map_or("the built-in lowest-cost".to_owned(), by);
        (self.file.question != QuestionKind::Routing).then_some(router)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Cli;
    use clap::Parser;

    #[test]
    fn a_replay_with_faults_fails_and_says_which() {
        let mut found = Comparison {
            decided: 100,
            ..Comparison::default()
        };
        assert!(faulted(&found, false).is_none());
        found.faults = 3;
        found.first_fault = Some("the policy trapped: unreachable in mine::decide".to_owned());
        let failure = format!("{:?}", faulted(&found, false).unwrap());
        assert!(
            failure.contains("3 calls in 100 decisions ended in a fault; the first: the policy trapped"),
            "{failure}"
        );
        assert!(faulted(&found, true).is_some());
    }

    #[test]
    fn sources_that_exclude_each_other_are_refused() {
        let parse = |rest: &str| {
            let words = ["portolan", "policy", "replay", "mine.wasm"].into_iter();
            Cli::try_parse_from(words.chain(rest.split_whitespace())).map(|_| ())
        };
        for good in [
            "--records a.jsonl b",
            "--tenant acme --since 1h",
            "--records a --tenant acme",
            "--trace t.jsonl --fleet f.yaml --against ttft",
        ] {
            assert!(parse(good).is_ok(), "{good}: {}", parse(good).unwrap_err());
        }
        for bad in [
            "",
            "--since 1h",
            "--trace t --records a",
            "--trace t --tenant acme",
            "--trace t --since 1h",
            "--records a --fleet f",
            "--records a --against ttft",
            "--trace t --against-config {}",
            "--records a --since yesterday",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
