//! `portolan simulate`: traffic played through the production decisions on a virtual clock.

use super::output::{Failure, line};
use crate::chart::{Chart, ChartError, write_svg};
use crate::lab::LabError;
use crate::lab::component::Workshop;
use crate::lab::rehearsal::read_trace;
use crate::simulation::curves::curves;
use crate::simulation::{prfaas, regions, scenario, speed};
use clap::{ArgGroup, Args, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;

/// Options of `simulate`.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).args(["example", "scenario", "bench"])))]
pub struct SimulateArgs {
    /// Play what the source material works through.
    #[arg(long)]
    pub example: Option<Example>,
    /// Play a scenario: fleet, traffic and what happens, in YAML.
    #[arg(long, value_name = "FILE")]
    pub scenario: Option<PathBuf>,
    /// Measure how fast this machine simulates.
    #[arg(long)]
    pub bench: bool,
    /// A built-in policy, or a component's file; again for each to compare. With `prfaas` also static-threshold,
    /// homogeneous and naive.
    #[arg(long = "policy", value_name = "NAME|FILE.wasm")]
    pub policies: Vec<String>,
    /// `prfaas`: arrivals as a share of what the fleet serves at most [default: 0.8].
    #[arg(long, value_parser = load)]
    pub load: Option<f64>,
    /// `prfaas`: whether instances change between prefill and decode.
    #[arg(long, value_enum)]
    pub roles: Option<prfaas::Roles>,
    /// Seed of every choice; a scenario file has its own.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// `multi-region`: the trace, Mooncake's JSON lines or Azure's CSV.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Draw times by percentile, a line for each policy, as SVG: a folder, or the beginning of the files' names with .svg at
    /// its end.
    #[arg(long, value_name = "PATH")]
    pub svg: Option<PathBuf>,
    /// `--bench`: requests for the small fleet [default: 200000].
    #[arg(long, value_name = "N")]
    pub requests: Option<usize>,
    /// `--bench`: folder of the shipped components, to measure those too.
    #[arg(long, env = "PORTOLAN_PLUGINS", value_name = "DIR")]
    pub plugins: Option<PathBuf>,
}

/// What the source material works through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Example {
    /// The case study of Prefill-as-a-Service.
    Prfaas,
    /// Three regions and a trace of chat traffic.
    MultiRegion,
}

/// `--load` when nothing is said.
const LOAD: f64 = 0.8;

/// `--requests` when nothing is said.
const BENCH_REQUESTS: usize = 200_000;

/// What every scenario is played with when nothing is named.
const COMPARED: [&str; 4] = ["lowest-cost", "offload", "least-loaded", "round-robin"];

fn load(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(load) if load > 0.0 && load < 1.0 => Ok(load),
        _ => Err("a share between 0 and 1, such as 0.8".to_owned()),
    }
}

pub(super) fn run(args: &SimulateArgs, as_json: bool) -> Result<(), Failure> {
    play(args, as_json).map_err(|wrong| match wrong {
        Wrong::Lab(wrong) => super::policy::lab_failure(&wrong, as_json),
        Wrong::Said(failure) => failure.as_json(as_json),
    })
}

enum Wrong {
    Lab(LabError),
    Said(Failure),
}

impl From<LabError> for Wrong {
    fn from(wrong: LabError) -> Self {
        Self::Lab(wrong)
    }
}

impl From<ChartError> for Wrong {
    fn from(wrong: ChartError) -> Self {
        Self::Said(Failure::new(wrong))
    }
}

impl From<Failure> for Wrong {
    fn from(failure: Failure) -> Self {
        Self::Said(failure)
    }
}

fn play(args: &SimulateArgs, as_json: bool) -> Result<(), Wrong> {
    args.refuse_unused()?;
    let workshop = Workshop::unhurried()?;
    let told = match (&args.scenario, args.example) {
        (Some(file), _) => {
            let stage = scenario::Stage::read(file, args.seed)?;
            let played = stage.play(&args.named(&COMPARED), &workshop)?;
            let spreads = played.iter().map(|o| (o.policy.as_str(), &o.report.spread));
            Told::of(&played, scenario::describe(&played))?.drawn(curves(&spreads))
        }
        (None, Some(Example::Prfaas)) => prfaas(args, &workshop)?,
        (None, Some(Example::MultiRegion)) => multi_region(args, &workshop)?,
        (None, None) => {
            let measured = speed::measure(
                args.requests.unwrap_or(BENCH_REQUESTS),
                args.plugins.as_deref(),
                &workshop,
            )?;
            Told::of(&measured, speed::describe(&measured))?
        }
    };
    let written = match &args.svg {
        Some(path) => write_svg(path, &told.charts)?,
        None => Vec::new(),
    };
    if as_json {
        line(told.json);
        return Ok(());
    }
    told.lines.iter().for_each(line);
    for path in written {
        line(format!("written: {}", path.display()));
    }
    Ok(())
}

impl SimulateArgs {
    /// Refuses an option that what is played does not look at: whoever typed it takes it for heeded.
    fn refuse_unused(&self) -> Result<(), Failure> {
        let (what, heeded): (_, &[&str]) = match (&self.scenario, self.example) {
            (Some(_), _) => ("--scenario", &["--policy", "--seed", "--svg"]),
            (None, Some(Example::Prfaas)) => (
                "--example prfaas",
                &["--policy", "--seed", "--svg", "--load", "--roles"],
            ),
            (None, Some(Example::MultiRegion)) => (
                "--example multi-region",
                &["--policy", "--seed", "--svg", "--trace"],
            ),
            (None, None) => ("--bench", &["--requests"]),
        };
        let typed = [
            ("--policy", !self.policies.is_empty()),
            ("--seed", self.seed.is_some()),
            ("--svg", self.svg.is_some()),
            ("--load", self.load.is_some()),
            ("--roles", self.roles.is_some()),
            ("--trace", self.trace.is_some()),
            ("--requests", self.requests.is_some()),
        ];
        let unused = typed
            .into_iter()
            .find(|(option, is_typed)| *is_typed && !heeded.contains(option));
        match unused {
            None => Ok(()),
            Some((option, _)) => Err(Failure::new(format!(
                "{what} does not look at {option}; it takes {}",
                heeded.join(", ")
            ))),
        }
    }

    fn named(&self, otherwise: &[&str]) -> Vec<String> {
        if self.policies.is_empty() {
            otherwise.iter().map(|name| (*name).to_owned()).collect()
        } else {
            self.policies.clone()
        }
    }
}

/// What a run has to say, both ways.
struct Told {
    json: String,
    lines: Vec<String>,
    charts: Vec<Chart>,
}

impl Told {
    fn of(value: &impl Serialize, lines: Vec<String>) -> Result<Self, Failure> {
        let json = serde_json::to_string(value)
            .map_err(|wrong| Failure::new(format!("the result is not JSON: {wrong}")))?;
        Ok(Self {
            json,
            lines,
            charts: Vec::new(),
        })
    }

    /// With these charts.
    fn drawn(mut self, charts: Vec<Chart>) -> Self {
        self.charts = charts;
        self
    }
}

#[derive(Serialize)]
struct Named<'a> {
    policy: &'a str,
    #[serde(flatten)]
    outcome: &'a prfaas::Outcome,
}

fn prfaas(args: &SimulateArgs, workshop: &Workshop) -> Result<Told, Wrong> {
    let setup = prfaas::Setup {
        load: args.load.unwrap_or(LOAD),
        roles: args.roles.unwrap_or_default(),
        seed: args.seed.unwrap_or(1),
    };
    let policies = args.named(&["static-threshold", "offload", "homogeneous", "naive"]);
    let mut played = Vec::new();
    for policy in policies {
        let outcome = prfaas::play(&policy, setup, workshop)?;
        played.push((policy, outcome));
    }
    let lines = prfaas::describe(&played, setup);
    let charts = curves(&played.iter().map(|(policy, o)| (policy.as_str(), &o.spread)));
    let told = match &played[..] {
        [(_, outcome)] if args.policies.len() == 1 => Told::of(outcome, lines)?,
        several => {
            let named = several.iter().map(|(policy, outcome)| Named { policy, outcome });
            Told::of(&named.collect::<Vec<_>>(), lines)?
        }
    };
    Ok(told.drawn(charts))
}

fn multi_region(args: &SimulateArgs, workshop: &Workshop) -> Result<Told, Wrong> {
    let trace = args.trace.as_ref().ok_or_else(|| {
        Failure::new(
            "--example multi-region plays a trace; name one with --trace, such as Mooncake's conversation_trace.jsonl",
        )
    })?;
    let trace = read_trace(trace)?;
    let played = regions::play(
        &args.named(&regions::COMPARED),
        &trace,
        args.seed.unwrap_or(1),
        workshop,
    )?;
    let lines = regions::describe(&played);
    let charts = curves(&played.iter().map(|o| (o.policy.as_str(), &o.spread)));
    Ok(Told::of(&played, lines)?.drawn(charts))
}

#[cfg(test)]
mod tests {
    use crate::command::{Cli, Command};
    use clap::Parser;

    /// The words of a refusal; none: every option is looked at.
    fn refused(typed: &str) -> Option<String> {
        let cli = Cli::try_parse_from(typed.split(' ')).unwrap();
        let Command::Simulate(args) = cli.command else {
            unreachable!("it is simulate")
        };
        let refused = args.refuse_unused().err()?;
        Some(format!("{refused:?}"))
    }

    #[test]
    fn an_option_is_looked_at_or_refused() {
        const OPTIONS: [(&str, &str); 7] = [
            ("--policy", "offload"),
            ("--seed", "7"),
            ("--svg", "out"),
            ("--load", "0.5"),
            ("--roles", "fixed"),
            ("--trace", "t.jsonl"),
            ("--requests", "9"),
        ];
        for (what, heeded) in [
            ("--scenario s.yaml", "--policy --seed --svg"),
            ("--example prfaas", "--policy --seed --svg --load --roles"),
            ("--example multi-region", "--policy --seed --svg --trace"),
            ("--bench", "--requests"),
        ] {
            for (option, value) in OPTIONS {
                let said = refused(&format!("portolan simulate {what} {option} {value}"));
                let is_heeded = heeded.split(' ').any(|word| word == option);
                assert_eq!(said.is_none(), is_heeded, "{what} {option}: {said:?}");
                let named = what.trim_end_matches(" s.yaml");
                assert!(said.is_none_or(|said| said.contains(option) && said.contains(named)));
            }
        }
    }
}
