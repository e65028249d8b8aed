//! Quantiles of the time to first token on an idle fleet.

use super::*;

#[test]
fn the_printed_ninetieth_percentiles() {
    let lengths = lengths();
    let p90 = |fleet: &Fleet, threshold, prefill, decode| {
        let plan = evaluate(fleet, &lengths, threshold, Split { prefill, decode });
        unloaded_ttft_quantile(fleet, &lengths, &plan, 0.9).as_secs_f64()
    };
    for (fleet, prfaas, homogeneous, naive) in
        [(model_g(), 3.508, 9.730, 3.508), (model_q(), 3.50, 9.75, 3.50)]
    {
        close(p90(&fleet, BEST, 3, 5), prfaas, 0.001);
        close(p90(&fleet, NOTHING_OFFLOADED, 9, 3), homogeneous, 0.001);
        close(p90(&fleet, EVERYTHING_OFFLOADED, 0, 8), naive, 0.001);
    }
}

#[test]
fn quantiles_of_a_few_requests() {
    let fleet = Fleet {
        local: PrefillProfile {
            fixed_s: 0.0,
            per_token_s: 0.01,
            per_token_squared_s: 0.0,
        },
        ..model_g()
    };
    let lengths = MeasuredLengths::new(vec![100, 200, 300, 400]).unwrap();
    let plan = evaluate(&fleet, &lengths, NOTHING_OFFLOADED, THREE_FIVE);
    for (quantile, seconds) in [(0.25, 1.0), (0.26, 2.0), (0.75, 3.0), (1.0, 4.0)] {
        let got = unloaded_ttft_quantile(&fleet, &lengths, &plan, quantile).as_secs_f64();
        assert!((got - seconds).abs() < 0.02, "{quantile}: {got}");
    }
}
