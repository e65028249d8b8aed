//! The case study of Prefill-as-a-Service, played with any policy.

use super::cast::Player;
use super::table::Table;
use crate::lab::LabError;
use crate::lab::component::Workshop;
use portolan_base::Tokens;
use portolan_sim::case_study::{
    Arrangement, SERVICE, SLOW_LOOP, STATIC_THRESHOLD, capacity, names, scenario, traffic,
};
use portolan_sim::{Report, Scenario, Spread, ThresholdSource, VirtualClock, simulate_on};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// Requests whose times are measured: enough that at 80 % load the mean of five seeds is known to a percent.
const MEASURED: usize = 30_000;

/// Requests on offer at once for the capacity.
const BACKLOG: usize = 40_000;

/// What is played.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// Arrivals as a share of the arrangement's capacity: for everything on the service's machines that of the static
    /// threshold, 3.161 requests a second.
    pub load: f64,
    /// Whether instances may change between prefill and decode.
    pub roles: Roles,
    /// Seed of the arrivals.
    pub seed: u64,
}

/// Whether instances may change between prefill and decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Roles {
    /// Three prefill and five decode.
    #[default]
    Fixed,
    /// The slow loop divides them anew every two minutes.
    Adaptive,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Requests answered a second.
    pub throughput_rps: f64,
    /// Requests a second that prefill gets through with more than enough on offer, instances as they are divided at the
    /// beginning.
    pub capacity_rps: f64,
    /// Time to first token.
    pub ttft: Ttft,
    /// Share of the requests that were prefilled at the other site.
    pub offloaded_share: f64,
    /// Traffic between the sites.
    pub egress_gbps: f64,
    /// The capacity as a share of the most that any assignment of the same requests to the two pools lets through.
    pub lp_bound_share: f64,
    /// Times by percentile, for curves.
    #[serde(skip)]
    pub spread: Spread,
}

/// A distribution of times, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ttft {
    /// Mean.
    pub mean_s: f64,
    /// Median.
    pub p50_s: f64,
    /// Nine of ten are at most this.
    pub p90_s: f64,
    /// 99 of 100 are at most this.
    pub p99_s: f64,
}

/// Arrangements with a name of their own, and what they serve at most.
fn arranged(policy: &str) -> (Arrangement, f64) {
    match policy {
        "homogeneous" => (Arrangement::Homogeneous, 2.026),
        "naive" => (Arrangement::Naive, 2.367),
        _ => (SERVICE, 3.161),
    }
}

/// Names that mean something here besides policies: the paper's static threshold, and its two baselines.
pub const NAMED: [&str; 3] = ["static-threshold", "homogeneous", "naive"];

/// Plays the case study with a policy.
pub fn play(policy: &str, setup: Setup, workshop: &Workshop) -> Result<Outcome, LabError> {
    let (arrangement, full) = arranged(policy);
    let rate = setup.load * full;
    let timed = Scenario {
        warm_up: Duration::from_secs_f64(MEASURED as f64 * 0.1 / rate),
        slow_loop: (setup.roles == Roles::Adaptive && !NAMED.contains(&policy)).then_some(SLOW_LOOP),
        ..scenario(arrangement, Default::default(), threshold(policy))
    };
    let player = match policy {
        named if NAMED.contains(&named) => Player::find("offload", workshop)?,
        policy => Player::find(policy, workshop)?,
    };
    let on_stage = |clock: &Arc<VirtualClock>| {
        let policies = player.load(workshop, &names(), clock)?;
        Ok::<_, LabError>(Scenario {
            policies,
            ..timed.clone()
        })
    };
    let clock = Arc::new(VirtualClock::default());
    let report = simulate_on(&on_stage(&clock)?, &traffic(rate, MEASURED, setup.seed), &clock)?;
    let clock = Arc::new(VirtualClock::default());
    let (capacity_rps, lp_bound_share) =
        capacity(&on_stage(&clock)?, arrangement, (BACKLOG, setup.seed), &clock)?;
    Ok(outcome(&report, capacity_rps, lp_bound_share))
}

fn threshold(policy: &str) -> ThresholdSource {
    match policy {
        "naive" => ThresholdSource::Static(Tokens(1)),
        "static-threshold" | "homogeneous" => ThresholdSource::Static(STATIC_THRESHOLD),
        _ => ThresholdSource::Adaptive,
    }
}

fn outcome(report: &Report, capacity_rps: f64, lp_bound_share: f64) -> Outcome {
    let ttft = report.ttft;
    Outcome {
        throughput_rps: report.throughput_rps,
        capacity_rps,
        ttft: Ttft {
            mean_s: ttft.mean,
            p50_s: ttft.p50,
            p90_s: ttft.p90,
            p99_s: ttft.p99,
        },
        offloaded_share: report.offloaded_share,
        egress_gbps: report.cross_site_gbps,
        lp_bound_share,
        spread: report.spread.clone(),
    }
}

/// What the paper's derivation says of an arrangement at a load: capacity, then mean, P90 and P99 of the time to first
/// token, where it has been computed.
fn source(policy: &str, load: f64) -> Option<[f64; 4]> {
    let (capacity, rows) = match policy {
        "static-threshold" => (
            3.161,
            [
                [2.39, 3.94, 7.01],
                [2.81, 4.90, 8.12],
                [3.40, 6.19, 10.84],
                [5.24, 10.47, 20.0],
            ],
        ),
        "homogeneous" => (
            2.026,
            [
                [4.49, 9.84, 19.46],
                [4.83, 10.34, 19.91],
                [5.46, 11.49, 20.81],
                [7.90, 16.5, 27.1],
            ],
        ),
        "naive" => (
            2.367,
            [
                [1.87, 3.75, 6.95],
                [2.24, 4.49, 7.66],
                [2.78, 5.60, 9.55],
                [4.67, 9.75, 17.1],
            ],
        ),
        _ => return None,
    };
    let loads = [0.5, 0.7, 0.8, 0.9];
    let row = rows[loads.iter().position(|known| (known - load).abs() < 1e-9)?];
    Some([capacity, row[0], row[1], row[2]])
}

/// The outcomes in columns, each beside the source's figures where it has some.
pub fn describe(played: &[(String, Outcome)], setup: Setup) -> Vec<String> {
    let mut table = Table::new(&[
        "policy",
        "capacity",
        "of bound",
        "rps",
        "TTFT mean",
        "P50",
        "P90",
        "P99",
        "offloaded",
        "Gbit/s",
    ]);
    for (policy, outcome) in played {
        let Ttft {
            mean_s,
            p50_s,
            p90_s,
            p99_s,
        } = outcome.ttft;
        table.row([
            policy.clone(),
            format!("{:.3}", outcome.capacity_rps),
            format!("{:.2} %", outcome.lp_bound_share * 100.0),
            format!("{:.3}", outcome.throughput_rps),
            format!("{mean_s:.2}"),
            format!("{p50_s:.2}"),
            format!("{p90_s:.2}"),
            format!("{p99_s:.2}"),
            format!("{:.1} %", outcome.offloaded_share * 100.0),
            format!("{:.1}", outcome.egress_gbps),
        ]);
        if let Some([capacity, mean, p90, p99]) = source(policy, setup.load) {
            let blank = String::new;
            table.row([
                "  the source".to_owned(),
                format!("{capacity:.3}"),
                blank(),
                blank(),
                format!("{mean:.2}"),
                blank(),
                format!("{p90:.2}"),
                format!("{p99:.2}"),
                blank(),
                blank(),
            ]);
        }
    }
    let mut lines = table.lines();
    lines.push(String::new());
    lines.push(format!(
        "{MEASURED} requests at {:.0} % load, seed {}; times in seconds. Printed without load: 2.22 / 3.51 (static \
         threshold), 4.44 / 9.73 (homogeneous), 1.74 / 3.51 (naive), mean / P90.",
        setup.load * 100.0,
        setup.seed
    ));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETUP: Setup = Setup {
        load: 0.8,
        roles: Roles::Fixed,
        seed: 1,
    };

    #[test]
    fn the_outcome_has_the_names_that_scripts_read() {
        let workshop = Workshop::unhurried().unwrap();
        let kept = play("static-threshold", SETUP, &workshop).unwrap();
        let moved = play("offload", SETUP, &workshop).unwrap();
        assert!(moved.ttft.mean_s < kept.ttft.mean_s && moved.ttft.p90_s < kept.ttft.p90_s);
        assert!(
            (moved.throughput_rps / (0.8 * 3.161) - 1.0).abs() < 0.02,
            "{moved:?}"
        );
        assert!((0.995..=1.0).contains(&moved.lp_bound_share), "{moved:?}");
        let json = serde_json::to_value(&kept).unwrap();
        let keys: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let expected = [
            "capacity_rps",
            "egress_gbps",
            "lp_bound_share",
            "offloaded_share",
            "throughput_rps",
            "ttft",
        ];
        let sorted = {
            let mut keys = keys.clone();
            keys.sort_unstable();
            keys
        };
        assert_eq!(sorted, expected);
        let ttft: Vec<_> = json["ttft"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(ttft.len(), 4, "{ttft:?}");
        let lines = describe(&[("static-threshold".to_owned(), kept)], SETUP);
        assert!(
            lines[2].contains("the source") && lines[2].contains("6.19"),
            "{lines:?}"
        );
    }

    #[test]
    fn any_policy_may_be_tried_and_an_unknown_one_is_told_the_known_ones() {
        let workshop = Workshop::unhurried().unwrap();
        let said = play("static-treshold", SETUP, &workshop).unwrap_err().to_string();
        assert!(said.contains("least-loaded"), "{said}");
    }
}
