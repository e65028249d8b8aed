//! Optimum, baselines, bound and curves of a fleet and its workload.

use super::error::PlanError;
use super::profile::ProfileText;
use super::workload::Workload;
use crate::chart::{Axis, Chart, Line};
use portolan_base::{BitsPerSecond, Tokens};
use portolan_planner::{
    AtBandwidth, Averaging, Fleet, NOTHING_OFFLOADED, Plan, Setting, UpperBound, unloaded_ttft_quantile,
};
use serde::Serialize;

/// Bandwidths that the plan is tried at, as shares of the profile's own.
const BANDWIDTHS: [f64; 15] = [
    0.01, 0.02, 0.03, 0.05, 0.065, 0.08, 0.10, 0.12, 0.13, 0.15, 0.20, 0.30, 0.40, 0.60, 1.0,
];

/// Points of the curve over thresholds: as many as the widest terminal shows, and more.
const POINTS: u32 = 200;

/// A plan and what it gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// The plan, with times averaged as the profile says.
    pub plan: Plan,
    /// Requests a second that its queues reach, E\[T(L)\].
    pub capacity_rps: f64,
    /// Time to first token that nine of ten requests stay within on an idle fleet, in seconds.
    pub ttft_p90_s: f64,
}

/// Everything that is said of a fleet and its workload.
#[derive(Clone, Debug)]
pub struct Study {
    /// The best threshold and split.
    pub best: Judged,
    /// The best fleet without a remote pool; none when it has fewer than two instances.
    pub homogeneous: Option<Judged>,
    /// The remote pool prefills everything.
    pub naive: Judged,
    /// What no policy exceeds, at any split.
    pub bound: UpperBound,
    /// The plan at other bandwidths: best there, and as it is best at the profile's own.
    pub bandwidths: Vec<AtBandwidth>,
    /// Throughput against threshold, split and bandwidth.
    pub charts: Vec<Chart>,
}

/// What `--json` prints of a plan.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Longer uncached prompts are offloaded; null when none is.
    pub threshold_tokens: Option<u32>,
    /// Local instances that prefill.
    pub prefill_instances: u32,
    /// Local instances that decode.
    pub decode_instances: u32,
    /// Λ_max.
    pub throughput_rps: f64,
    /// Share of the requests that is offloaded, 0 to 1.
    pub offloaded_share: f64,
    /// Their mean length.
    pub mean_offloaded_tokens: f64,
    /// What the link carries at Λ_max.
    pub egress_gbps: f64,
    /// What holds Λ_max down.
    pub bottleneck: portolan_planner::Bottleneck,
    /// Requests a second that the queues of this plan reach.
    pub capacity_rps: f64,
    /// Time to first token on an idle fleet.
    pub unloaded_ttft: UnloadedTtft,
}

/// Time to first token on an idle fleet, in seconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct UnloadedTtft {
    /// Mean.
    pub mean_s: f64,
    /// Nine of ten requests stay within it.
    pub p90_s: f64,
}

/// What `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The best plan.
    #[serde(flatten)]
    pub best: Figures,
    /// What no policy exceeds, at any split.
    pub lp_bound_rps: f64,
    /// Simpler fleets.
    pub baselines: Baselines,
}

/// Simpler fleets.
#[derive(Clone, Debug, Serialize)]
pub struct Baselines {
    /// Local instances alone; null when there are fewer than two.
    pub homogeneous: Option<Figures>,
    /// The remote pool prefills everything.
    pub naive: Figures,
}

impl Study {
    /// Plans; at another bandwidth than the profile's where `bandwidth` says so.
    pub fn new(
        profile: &ProfileText,
        workload: &Workload,
        bandwidth: Option<BitsPerSecond>,
    ) -> Result<Self, PlanError> {
        let own = Setting {
            fleet: profile.fleet(workload.output_tokens)?,
            local_instances: profile.local.instances,
            homogeneous_instances: profile.homogeneous(),
            lengths: workload.lengths.as_ref(),
            grid: workload.grid,
        };
        let fleet = Fleet {
            egress: bandwidth.unwrap_or(own.fleet.egress),
            ..own.fleet
        };
        let setting = Setting { fleet, ..own };
        let best = setting.best().ok_or(PlanError::TooSmall)?;
        let kept = if bandwidth.is_some() {
            own.best()
        } else {
            Some(best)
        };
        let mut bandwidths: Vec<_> = BANDWIDTHS
            .map(|share| BitsPerSecond((own.fleet.egress.0 as f64 * share) as u64))
            .into_iter()
            .chain([fleet.egress])
            .filter(|bandwidth| bandwidth.0 > 0)
            .collect();
        bandwidths.sort_unstable();
        bandwidths.dedup();
        let bandwidths = own.by_bandwidth(&kept.unwrap_or(best), &bandwidths);
        Ok(Self {
            best: judge(&setting, best),
            homogeneous: setting.homogeneous().map(|plan| judge(&setting, plan)),
            naive: judge(&setting, setting.naive()),
            bound: setting.bound().ok_or(PlanError::TooSmall)?,
            charts: vec![
                by_threshold(&setting, &best),
                by_split(&setting, &best),
                by_bandwidth(&bandwidths),
            ],
            bandwidths,
        })
    }

    /// What `--json` prints.
    pub fn report(&self) -> Report {
        Report {
            best: self.best.figures(),
            lp_bound_rps: self.bound.lambda_max,
            baselines: Baselines {
                homogeneous: self.homogeneous.as_ref().map(Judged::figures),
                naive: self.naive.figures(),
            },
        }
    }
}

impl Judged {
    fn figures(&self) -> Figures {
        let plan = &self.plan;
        Figures {
            threshold_tokens: (plan.offloaded_share > 0.0).then_some(plan.threshold.0),
            prefill_instances: plan.split.prefill,
            decode_instances: plan.split.decode,
            throughput_rps: plan.lambda_max,
            offloaded_share: plan.offloaded_share,
            mean_offloaded_tokens: plan.offloaded_mean_tokens,
            egress_gbps: plan.egress.0 as f64 / 1e9,
            bottleneck: plan.bottleneck,
            capacity_rps: self.capacity_rps,
            unloaded_ttft: UnloadedTtft {
                mean_s: plan.unloaded_ttft.as_secs_f64(),
                p90_s: self.ttft_p90_s,
            },
        }
    }
}

fn judge(setting: &Setting<'_>, plan: Plan) -> Judged {
    let fleet = Fleet {
        averaging: Averaging::MeanOfTimes,
        ..setting.fleet
    };
    let queued = Setting { fleet, ..*setting };
    Judged {
        plan,
        capacity_rps: queued.plan(plan.threshold, plan.split).lambda_max,
        ttft_p90_s: unloaded_ttft_quantile(&fleet, setting.lengths, &plan, 0.9).as_secs_f64(),
    }
}

const THROUGHPUT: &str = "requests a second";

fn by_threshold(setting: &Setting<'_>, best: &Plan) -> Chart {
    let curve = |split| {
        let plans = setting.by_threshold(split, POINTS);
        plans
            .map(|plan| (f64::from(plan.threshold.0), plan.lambda_max))
            .collect::<Vec<_>>()
    };
    // The best of all splits, threshold by threshold.
    let mut envelope = curve(best.split);
    for plan in setting.by_split(best.threshold) {
        for (point, other) in envelope.iter_mut().zip(curve(plan.split)) {
            point.1 = point.1.max(other.1);
        }
    }
    let fixed = format!("{} prefill, {} decode", best.split.prefill, best.split.decode);
    Chart {
        name: "throughput-by-threshold",
        title: "Throughput against the threshold".to_owned(),
        across: Axis::linear("threshold, tokens"),
        up: THROUGHPUT.to_owned(),
        lines: vec![
            line(fixed, curve(best.split)),
            line("the best split of each threshold", envelope),
        ],
    }
}

fn by_split(setting: &Setting<'_>, best: &Plan) -> Chart {
    let prefill = |plan: &Plan| f64::from(plan.split.prefill);
    let at_best = setting.by_split(best.threshold);
    let at_best = at_best.map(|plan| (prefill(&plan), plan.lambda_max)).collect();
    let decode = setting.by_split(best.threshold);
    let decode = decode.map(|plan| (prefill(&plan), plan.decode_rate)).collect();
    let threshold = match best.threshold {
        NOTHING_OFFLOADED => "nothing offloaded".to_owned(),
        Tokens(threshold) => format!("threshold {threshold}"),
    };
    Chart {
        name: "throughput-by-split",
        title: "Throughput against the split".to_owned(),
        across: Axis::linear(format!("prefill instances of {}", setting.local_instances)),
        up: THROUGHPUT.to_owned(),
        lines: vec![line(threshold, at_best), line("what decode takes", decode)],
    }
}

fn by_bandwidth(bandwidths: &[AtBandwidth]) -> Chart {
    let curve = |plan: fn(&AtBandwidth) -> &Plan| {
        let points = bandwidths.iter();
        points
            .map(move |at| (at.egress.0 as f64 / 1e9, plan(at).lambda_max))
            .collect()
    };
    Chart {
        name: "throughput-by-bandwidth",
        title: "Throughput against the bandwidth".to_owned(),
        across: Axis::logarithmic("Gbit/s"),
        up: THROUGHPUT.to_owned(),
        lines: vec![
            line("adapted", curve(|at| &at.adapted)),
            line("threshold and split kept", curve(|at| &at.kept)),
        ],
    }
}

fn line(label: impl Into<String>, points: Vec<(f64, f64)>) -> Line {
    Line {
        label: label.into(),
        points,
    }
}

#[cfg(test)]
mod tests;
