//! `portolan plan`: how many instances, which threshold, what bandwidth; without a server.

mod regions;
mod told;

use super::output::{Failure, json, line};
use crate::chart::write_svg;
use crate::plan::PlanError;
use crate::plan::example::{compared, prfaas};
use crate::plan::profile::{ProfileText, gbps};
use crate::plan::study::Study;
use crate::plan::workload::{Workload, WorkloadText};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Options of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// What the fleet is and how fast (YAML); see examples/06-planner.
    #[arg(long, value_name = "FILE", requires = "workload", required_unless_present_any = ["example", "regions"])]
    pub profile: Option<PathBuf>,
    /// What is asked of it (YAML).
    #[arg(long, value_name = "FILE", requires = "profile")]
    pub workload: Option<PathBuf>,
    /// A case study that ships with the program, beside the figures its source prints.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["profile", "workload"])]
    pub example: Option<PlanExample>,
    /// Design a set-up of several regions instead: who serves whom, caches, failover, instances, the bill (YAML).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["profile", "workload", "example", "bandwidth_gbps", "svg"])]
    pub regions: Option<PathBuf>,
    /// Plan for another bandwidth than the profile's.
    #[arg(long, value_name = "GBPS")]
    pub bandwidth_gbps: Option<f64>,
    /// Write the curves as SVG: a folder, or the beginning of their names with .svg at its end.
    #[arg(long, value_name = "PATH")]
    pub svg: Option<PathBuf>,
}

/// Case studies that ship with the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlanExample {
    /// Prefill-as-a-Service, arXiv 2604.15039.
    Prfaas,
}

pub(super) fn run(args: &PlanArgs, as_json: bool) -> Result<(), Failure> {
    plan(args, as_json)
        .map_err(Failure::new)
        .and_then(|done| done)
        .map_err(|e| e.as_json(as_json))
}

fn plan(args: &PlanArgs, as_json: bool) -> Result<Result<(), Failure>, PlanError> {
    if let Some(file) = &args.regions {
        return regions::run(file, as_json);
    }
    let (profile, workload) = read(args)?;
    let bandwidth = args
        .bandwidth_gbps
        .map(|value| gbps("--bandwidth-gbps", value))
        .transpose()?;
    let study = Study::new(&profile, &workload, bandwidth)?;
    let written = match &args.svg {
        Some(path) => write_svg(path, &study.charts)?,
        None => Vec::new(),
    };
    if as_json {
        return Ok(json(&study.report()));
    }
    told::study(&study).iter().for_each(line);
    if args.example.is_some() && bandwidth.is_none() {
        told::beside_the_source(&compared(&study)).iter().for_each(line);
    }
    for path in written {
        line(format!("written: {}", path.display()));
    }
    Ok(Ok(()))
}

fn read(args: &PlanArgs) -> Result<(ProfileText, Workload), PlanError> {
    match (&args.profile, &args.workload) {
        (Some(profile), Some(workload)) => Ok((ProfileText::read(profile)?, WorkloadText::read(workload)?)),
        _ => prfaas(),
    }
}
