//! The case study that ships with the program, and the figures its source prints.

use super::error::PlanError;
use super::profile::ProfileText;
use super::study::{Judged, Study};
use super::workload::{Workload, WorkloadText};
use std::path::Path;

const PROFILE: &str = include_str!("../../../../examples/06-planner/prfaas-profile.yaml");
const WORKLOAD: &str = include_str!("../../../../examples/06-planner/prfaas-workload.yaml");

/// Where the printed figures are from.
pub const SOURCE: &str = "arXiv 2604.15039, table 6";

/// A figure as the source prints it, and as it is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// What it is.
    pub name: &'static str,
    /// As printed.
    pub printed: f64,
    /// Digits behind the point as printed.
    pub digits: usize,
    /// As computed.
    pub computed: f64,
}

/// The case study of Prefill-as-a-Service.
pub fn prfaas() -> Result<(ProfileText, Workload), PlanError> {
    let workload = WorkloadText::parse(WORKLOAD)?.workload(Path::new("."))?;
    Ok((ProfileText::parse(PROFILE)?, workload))
}

/// The figures that the source prints of it.
pub fn compared(study: &Study) -> Vec<Compared> {
    let row = |name, printed, digits, computed| Compared {
        name,
        printed,
        digits,
        computed,
    };
    let best = &study.best.plan;
    let mut rows = vec![
        row("threshold, tokens", 19_400.0, 0, f64::from(best.threshold.0)),
        row("prefill instances", 3.0, 0, f64::from(best.split.prefill)),
        row("decode instances", 5.0, 0, f64::from(best.split.decode)),
        row("remote prefill, req/s", 1.61, 2, best.remote_rate),
        row("local prefill, req/s", 1.64, 2, best.local_rate),
        row("decode, req/s", 3.91, 2, best.decode_rate),
        row("throughput, req/s", 3.24, 2, best.lambda_max),
        row("offloaded, %", 49.6, 1, best.offloaded_share * 100.0),
        row(
            "offloaded mean, K tokens",
            44.0,
            0,
            best.offloaded_mean_tokens / 1024.0,
        ),
        row("egress, Gbit/s", 13.0, 0, best.egress.0 as f64 / 1e9),
        row("TTFT mean, s", 2.22, 2, ttft(&study.best)),
        row("TTFT P90, s", 3.51, 2, study.best.ttft_p90_s),
    ];
    if let Some(homogeneous) = &study.homogeneous {
        let plan = &homogeneous.plan;
        rows.extend([
            row("homogeneous: prefill, req/s", 2.11, 2, plan.local_rate),
            row("homogeneous: decode, req/s", 2.35, 2, plan.decode_rate),
            row("homogeneous: throughput, req/s", 2.11, 2, plan.lambda_max),
            row("homogeneous: TTFT mean, s", 4.44, 2, ttft(homogeneous)),
            row("homogeneous: TTFT P90, s", 9.73, 2, homogeneous.ttft_p90_s),
            row(
                "throughput / homogeneous",
                1.54,
                2,
                best.lambda_max / plan.lambda_max,
            ),
            row(
                "naive / homogeneous",
                1.16,
                2,
                study.naive.plan.lambda_max / plan.lambda_max,
            ),
        ]);
    }
    let naive = &study.naive;
    rows.extend([
        row("naive: prefill, req/s", 2.45, 2, naive.plan.remote_rate),
        row("naive: decode, req/s", 6.25, 2, naive.plan.decode_rate),
        row("naive: throughput, req/s", 2.45, 2, naive.plan.lambda_max),
        row("naive: TTFT mean, s", 1.74, 2, ttft(naive)),
        row("naive: TTFT P90, s", 3.51, 2, naive.ttft_p90_s),
    ]);
    rows
}

fn ttft(judged: &Judged) -> f64 {
    judged.plan.unloaded_ttft.as_secs_f64()
}
