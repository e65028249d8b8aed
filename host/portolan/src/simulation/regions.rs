//! Three regions, 65, 75 and 220 ms apart, under a recorded trace: what cache hits across regions are worth.

use super::cast::Player;
use super::table::Table;
use crate::lab::LabError;
use crate::lab::component::Workshop;
use crate::lab::fleet::Fleet;
use portolan_sim::{Report, Scenario, SimRequest, Spread, VirtualClock, simulate_on};
use serde::Serialize;
use std::sync::Arc;

const THREE_REGIONS: &str = include_str!("three-regions.yaml");

/// What is compared when nothing is named: the three baselines, and what takes the network into account.
pub const COMPARED: [&str; 4] = [
    "round-robin",
    "region-cache-aware",
    "global-cache-aware",
    "latency-aware",
];

/// `latency-aware` for this fleet: its prefill speed, and its queues and round trips at what they are.
const MEASURED_HERE: &str =
    r#"{"rtt_weight_permille": 1000, "prefill_ns_per_token": 360000, "queue_ns_per_token": 360000}"#;

/// What came of one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Which.
    pub policy: String,
    /// Share of the blocks of all prompts that did not have to be computed.
    pub hit_rate: f64,
    /// Median time to first token.
    pub ttft_p50_ms: f64,
    /// 99 of 100 first tokens took at most this.
    pub ttft_p99_ms: f64,
    /// 99 of 100 answers took at most this.
    pub e2e_p99_ms: f64,
    /// KV sent between regions.
    pub cross_region_bytes: u64,
    /// Price of all requests, in the operator's unit.
    pub bill: f64,
    /// Times by percentile, for curves.
    #[serde(skip)]
    pub spread: Spread,
}

/// Plays the trace with each of the policies.
pub fn play(
    policies: &[String],
    trace: &[SimRequest],
    seed: u64,
    workshop: &Workshop,
) -> Result<Vec<Outcome>, LabError> {
    let fleet = Fleet::of(THREE_REGIONS)?;
    let run = |policy: &String| {
        let player = Player::find(policy, workshop)?;
        let player = if policy == "latency-aware" {
            player.configured(MEASURED_HERE)
        } else {
            player
        };
        let clock = Arc::new(VirtualClock::default());
        let scenario = Scenario {
            policies: player.load(workshop, &fleet.names, &clock)?,
            seed,
            ..fleet.scenario.clone()
        };
        let report = simulate_on(&scenario, trace, &clock)?;
        Ok(outcome(player.name(), &report))
    };
    policies.iter().map(run).collect()
}

fn outcome(policy: &str, report: &Report) -> Outcome {
    Outcome {
        policy: policy.to_owned(),
        hit_rate: report.hit_rate(),
        ttft_p50_ms: report.ttft.p50 * 1e3,
        ttft_p99_ms: report.ttft.p99 * 1e3,
        e2e_p99_ms: report.end_to_end.p99 * 1e3,
        cross_region_bytes: report.cross_site_bytes.0,
        bill: report.price_micros as f64 / 1e6,
        spread: report.spread.clone(),
    }
}

/// The outcomes in columns.
pub fn describe(played: &[Outcome]) -> Vec<String> {
    let mut table = Table::new(&[
        "policy",
        "hit rate",
        "TTFT P50 ms",
        "TTFT P99 ms",
        "E2E P99 ms",
        "across GiB",
        "bill",
    ]);
    for outcome in played {
        table.row([
            outcome.policy.clone(),
            format!("{:.1} %", outcome.hit_rate * 100.0),
            format!("{:.0}", outcome.ttft_p50_ms),
            format!("{:.0}", outcome.ttft_p99_ms),
            format!("{:.0}", outcome.e2e_p99_ms),
            format!("{:.1}", outcome.cross_region_bytes as f64 / f64::from(1 << 30)),
            format!("{:.2}", outcome.bill),
        ]);
    }
    table.lines()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::rehearsal::read_trace;
    use std::path::Path;

    /// The first thousand requests of the trace; docs/scheduling.md has the whole of it.
    #[test]
    fn what_knows_the_network_is_at_or_under_the_best_of_the_others() {
        let trace = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../sim/tests/data/conversation_trace_1000.jsonl"
        );
        let trace = read_trace(Path::new(trace)).unwrap();
        let policies = COMPARED.map(str::to_owned);
        let played = play(&policies, &trace, 1, &Workshop::unhurried().unwrap()).unwrap();
        let [others @ .., aware] = &played[..] else {
            panic!("{played:?}")
        };
        describe(&played).iter().for_each(|line| println!("{line}"));
        let best = |figure: fn(&Outcome) -> f64| others.iter().map(figure).fold(f64::INFINITY, f64::min);
        assert!(aware.ttft_p50_ms <= best(|o| o.ttft_p50_ms), "{played:#?}");
        assert!(aware.ttft_p99_ms <= best(|o| o.ttft_p99_ms), "{played:#?}");
        assert!(aware.e2e_p99_ms <= best(|o| o.e2e_p99_ms) * 1.001, "{played:#?}");
        let home = others.iter().find(|o| o.policy == "region-cache-aware").unwrap();
        assert_eq!(home.cross_region_bytes, 0);
    }
}
