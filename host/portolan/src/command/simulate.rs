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
    /// `prfaas`: arrivals as a share of what the fleet serves at most.
    #[arg(long, default_value_t = 0.8, value_parser = load)]
    pub load: f64,
    /// `prfaas`: whether instances change between prefill and decode.
    #[arg(long, value_enum, default_value_t)]
    pub roles: prfaas::Roles,
    /// Seed of every choice; a scenario file has its own.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// `multi-region`: the trace, Mooncake's JSON lines or Azure's CSV.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Draw times by percentile, a line for each policy, as SVG: a folder, or the beginning of the files' names with .svg at
    /// its end.
    #[arg(long, value_name = "PATH", conflicts_with = "bench")]
    pub svg: Option<PathBuf>,
    /// `--bench`: requests for the small fleet.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    pub requests: usize,
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
            let measured = speed::measure(args.requests, args.plugins.as_deref(), &workshop)?;
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
        load: args.load,
        roles: args.roles,
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
