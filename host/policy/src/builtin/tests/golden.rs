//! `latency-aware` against the scores of the authors of its objective.

use super::*;
use crate::{RequestView, RouteView};
use serde_json::Value;

const CASES: &str = include_str!("../../../../../tests/conformance/latency-aware.json");

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// A factor of the reference in ms as whole ns.
fn ns(ms: f64) -> u32 {
    let ns = (ms * 1e6).round();
    assert!(
        (ns / 1e6 - ms).abs() < 1e-12,
        "{ms} ms is not a whole number of ns"
    );
    ns as u32
}

fn check(case: &Value, expected: &Value, config: latency_aware::LatencyAwareConfig) {
    let policy = LatencyAware::new(config);
    let request = RequestRow {
        prompt_tokens: number(&case["request_tokens"]) as u32,
        ..Default::default()
    };
    let mut best = (u32::MAX, String::new());
    for (region, score_ms) in expected["scores"].as_object().unwrap() {
        let row = RouteRow {
            cached_tokens: number(&case["cached"][region]) as u32,
            link_rtt_us: (number(&case["rtt_s"][region]) * 1e6).round() as u32,
            prefill_queued_tokens: number(&case["queued"][region]) as u32,
            ..Default::default()
        };
        let cost = policy.estimate(RequestView(&request.to_cells()), RouteView(&row.to_cells()));
        let score_us = number(score_ms) * 1000.0;
        // Half a µs of rounding in the round-trip time, at the largest weight of 2, and 1 µs in the result.
        assert!(
            (f64::from(cost.total_us) - score_us).abs() <= 2.0,
            "{region}: {} for {score_us}",
            cost.total_us
        );
        best = best.min((cost.total_us, region.clone()));
    }
    assert_eq!(best.1, expected["target"].as_str().unwrap());
}

#[test]
fn all_cases_of_the_reference_are_scored_alike() {
    let cases: Vec<Value> = serde_json::from_str(CASES).unwrap();
    assert_eq!(cases.len(), 40);
    for case in &cases {
        let weight = |name: &str| number(&case["weights"][name]);
        let rtt_weight_permille = (weight("rtt_weight") * 1000.0).round() as u32;
        let config = |prefill_ms, queue_ms| latency_aware::LatencyAwareConfig {
            rtt_weight_permille,
            prefill_ns_per_token: ns(prefill_ms),
            queue_ns_per_token: ns(queue_ms),
        };
        let rated = config(
            weight("prefill_weight") * weight("prefill_rate"),
            weight("queue_weight") * weight("queue_rate"),
        );
        check(case, &case["gorgo_2d"], rated);
        check(
            case,
            &case["gorgo"],
            config(weight("prefill_weight"), weight("load_weight")),
        );
    }
}
