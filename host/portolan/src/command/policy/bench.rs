//! `portolan policy bench`: what a component costs, beside the built-in policy.

use super::super::output::{Failure, json, line};
use super::lab_failure;
use crate::lab::LabError;
use crate::lab::bench::{Effort, Measured, TIMED, measure, native_name};
use crate::lab::component::{ComponentFile, Workshop};
use clap::Args;
use portolan_base::Bytes;
use portolan_decide::MAX_ROUTES;
use portolan_policy::RouteColumn;
use std::path::PathBuf;

/// Options of `policy bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The component; the three shipped default policies as one decision when left out.
    pub file: Option<PathBuf>,
    /// Candidate routes of each request.
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub routes: usize,
    /// Decisions that are timed.
    #[arg(long, default_value_t = TIMED, value_name = "N")]
    pub decisions: usize,
    /// Text for its `configure`.
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub config: String,
    /// Folder of the shipped policy components.
    #[arg(
        long,
        env = "PORTOLAN_PLUGINS",
        default_value = "plugins/dist",
        value_name = "DIR"
    )]
    pub plugins: PathBuf,
}

/// The shipped default policies in the order in which a request meets them; residency is asked for the platform and
/// for the tenant.
const DEFAULTS: [&str; 4] = ["jurisdiction", "jurisdiction", "ttft", "lowest-cost"];

pub(super) fn run(args: &BenchArgs, as_json: bool) -> Result<(), Failure> {
    let (files, measured) = bench(args).map_err(|e| lab_failure(&e, as_json))?;
    if as_json {
        return json(&measured);
    }
    describe(&files, &measured).iter().for_each(line);
    Ok(())
}

fn bench(args: &BenchArgs) -> Result<(Vec<ComponentFile>, Measured), LabError> {
    if args.routes > MAX_ROUTES || args.decisions == 0 {
        let problem = format!("--routes is at most {MAX_ROUTES}, --decisions at least 1");
        return Err(LabError::value("bench", problem));
    }
    let workshop = Workshop::new()?;
    let paths = match &args.file {
        Some(file) => vec![file.clone()],
        None => DEFAULTS
            .map(|name| args.plugins.join(format!("{name}.wasm")))
            .to_vec(),
    };
    let mut files: Vec<ComponentFile> = Vec::new();
    for path in paths {
        let known = files.iter().find(|file| file.path == path).cloned();
        files.push(known.map_or_else(|| workshop.open(&path, None), Ok)?);
    }
    let effort = Effort {
        routes: args.routes,
        decisions: args.decisions,
    };
    let measured = measure(&workshop, &files, &args.config, effort)?;
    Ok((files, measured))
}

fn describe(files: &[ComponentFile], measured: &Measured) -> Vec<String> {
    let names = |of: fn(&ComponentFile) -> &str| files.iter().map(of).collect::<Vec<_>>().join(", ");
    let row = |what: &str, cells: [String; 3]| {
        let [ahead, warm, native] = cells;
        format!("  {what:<26}{ahead:>16}{warm:>16}{native:>16}")
    };
    let micros = |us: f64| format!("{us:.2} µs");
    let ratio = |us: f64| format!("{:.1} ×", us / measured.native_median_us.max(0.001));
    let rate = |per_second: f64| format!("{per_second:.0}/s");
    let memory = |bytes: u64| Bytes(bytes).to_string();
    let none = String::new;
    let mut out = vec![
        format!(
            "{} (built in: {}), {} routes × {} columns, {} decisions of {}",
            names(|file| &file.name),
            names(|file| native_name(file)),
            measured.routes,
            RouteColumn::COUNT,
            measured.decisions,
            match measured.calls {
                1 => "one call".to_owned(),
                calls => format!("{calls} calls"),
            }
        ),
        row("", ["made ahead".into(), "warm".into(), "built in".into()]),
        row(
            "decision, median",
            [
                micros(measured.median_us),
                micros(measured.warm_median_us),
                micros(measured.native_median_us),
            ],
        ),
        row(
            "decision, P99",
            [micros(measured.p99_us), micros(measured.warm_p99_us), none()],
        ),
        row(
            "of the built-in's median",
            [
                ratio(measured.median_us),
                ratio(measured.warm_median_us),
                ratio(measured.native_median_us),
            ],
        ),
        row(
            "one thread, instances too",
            [rate(measured.per_second), rate(measured.warm_per_second), none()],
        ),
        row(
            "memory of an instance",
            [
                memory(measured.memory_bytes),
                memory(measured.warm_memory_bytes),
                none(),
            ],
        ),
        format!(
            "  a decision uses {:.0} fuel (median); making an instance takes {:.2} µs, compiling {:.1} ms",
            measured.fuel_median,
            measured.instance_us,
            measured.compile_us / 1e3
        ),
    ];
    if !measured.optimised {
        out.push(
            "  note: this build has debug assertions; build with --release for figures that mean something"
                .into(),
        );
    }
    out
}
