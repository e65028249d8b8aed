//! The case study: the printed and the derived figures, then what the adaptive threshold makes of the same arrivals.
//!
//! `docs/scheduling.md` has the tables; `portolan simulate --example prfaas` prints them.

use crate::case_study::*;
use crate::*;
use portolan_base::{BitsPerSecond, Bytes, Moment, Permille, Tokens};
use portolan_decide::RequestPolicies;
use portolan_policy::{QuestionKind, builtin};
use std::time::Duration;

fn offload() -> RequestPolicies {
    let policy = builtin::policy(QuestionKind::Routing, "offload", "", &names()).unwrap();
    RequestPolicies {
        routing: Some(policy),
        ..RequestPolicies::default()
    }
}

fn fixed(arrangement: Arrangement) -> Scenario {
    let threshold = match arrangement {
        Arrangement::Naive => Tokens(1),
        _ => STATIC_THRESHOLD,
    };
    scenario(arrangement, offload(), ThresholdSource::Static(threshold))
}

fn adaptive() -> Scenario {
    scenario(SERVICE, offload(), ThresholdSource::Adaptive)
}

/// Plays with a tenth of the requests as warm-up.
fn play(scenario: &Scenario, rate: f64, requests: usize, seed: u64) -> Report {
    let scenario = Scenario {
        warm_up: Duration::from_secs_f64(requests as f64 * 0.1 / rate),
        ..scenario.clone()
    };
    simulate(&scenario, &traffic(rate, requests, seed)).unwrap()
}

/// The capacity, and its share of what any assignment could reach.
fn backlog(scenario: &Scenario, arrangement: Arrangement) -> (f64, f64) {
    capacity(scenario, arrangement, (40_000, 4), &VirtualClock::default()).unwrap()
}

#[track_caller]
fn near(what: &str, got: f64, expected: f64, share: f64) {
    let off = got / expected - 1.0;
    assert!(
        off.abs() <= share,
        "{what}: {got:.3} for {expected}, {:+.1} %",
        off * 100.0
    );
}

const ALL: [(Arrangement, f64); 3] = [
    (SERVICE, 3.161),
    (Arrangement::Homogeneous, 2.026),
    (Arrangement::Naive, 2.367),
];

#[test]
fn capacities_are_instances_over_mean_prefill_time() {
    for (arrangement, expected) in ALL {
        let (reached, _) = backlog(&fixed(arrangement), arrangement);
        near(&format!("{arrangement:?}"), reached, expected, 0.01);
    }
}

/// The paper's times to first token hold no queueing to speak of: they are those of 0.40 requests a second.
#[test]
fn the_printed_times_to_first_token() {
    let printed = [(2.22, 3.51), (4.44, 9.73), (1.74, 3.51)];
    for ((arrangement, _), (mean, p90)) in ALL.into_iter().zip(printed) {
        let ttft = play(&fixed(arrangement), 0.4, 40_000, 88).ttft;
        near(&format!("{arrangement:?}, mean"), ttft.mean, mean, 0.01);
        near(&format!("{arrangement:?}, P90"), ttft.p90, p90, 0.01);
    }
}

/// Mean, P90 and P99 at these shares of each arrangement's own capacity. The table is one draw of 120,000 requests; at
/// nine tenths of capacity draws of that size differ by a tenth, so this is one whose load is like the table's.
const LOADED: [(f64, [[f64; 3]; 3]); 4] = [
    (0.5, [[2.39, 3.94, 7.01], [4.49, 9.84, 19.46], [1.87, 3.75, 6.95]]),
    (
        0.7,
        [[2.81, 4.90, 8.12], [4.83, 10.34, 19.91], [2.24, 4.49, 7.66]],
    ),
    (
        0.8,
        [[3.40, 6.19, 10.84], [5.46, 11.49, 20.81], [2.78, 5.60, 9.55]],
    ),
    (0.9, [[5.24, 10.47, 20.0], [7.90, 16.5, 27.1], [4.67, 9.75, 17.1]]),
];

#[test]
fn the_loaded_table() {
    for (load, rows) in LOADED {
        for ((arrangement, capacity), row) in ALL.into_iter().zip(rows) {
            let ttft = play(&fixed(arrangement), load * capacity, 40_000, 88).ttft;
            for (name, got, expected) in [
                ("mean", ttft.mean, row[0]),
                ("P90", ttft.p90, row[1]),
                ("P99", ttft.p99, row[2]),
            ] {
                near(&format!("{arrangement:?} at {load}, {name}"), got, expected, 0.05);
            }
        }
    }
}

/// Means of five seeds: the mean, P90 and P99 of the time to first token.
fn five(scenario: &Scenario, load: f64) -> [f64; 3] {
    let mut means = [0.0; 3];
    for seed in 1..=5 {
        let ttft = play(scenario, load * 3.161, 30_000, seed).ttft;
        for (mean, figure) in means.iter_mut().zip([ttft.mean, ttft.p90, ttft.p99]) {
            *mean += figure / 5.0;
        }
    }
    means
}

#[test]
fn the_adaptive_threshold_beats_the_static_one_with_the_split_fixed() {
    let (mean_80, p90_80, p90_90) = (3.05, 5.5, 8.3);
    for (load, mean, p90) in [(0.8, mean_80, p90_80), (0.9, f64::INFINITY, p90_90)] {
        let (kept, moved) = (five(&fixed(SERVICE), load), five(&adaptive(), load));
        println!("at {load}: static {kept:.2?}, adaptive {moved:.2?}");
        assert!(moved[0] <= mean && moved[1] <= p90, "{moved:?} at {load}");
        assert!(
            moved[0] < kept[0] && moved[1] < kept[1] && moved[2] <= kept[2],
            "{moved:?} {kept:?}"
        );
    }
}

/// Sending what gains a little must not make those wait that gain most.
#[test]
fn the_longest_prompts_of_a_fleet_with_room_wait_no_longer_than_under_the_static_threshold() {
    for load in [0.2, 0.3, 0.4, 0.5] {
        let (kept, moved) = (five(&fixed(SERVICE), load), five(&adaptive(), load));
        println!("at {load}: static {kept:.3?}, adaptive {moved:.3?}");
        assert!(moved[0] < kept[0] * 0.95, "{moved:?} {kept:?} at {load}");
        assert!(
            moved[1] < kept[1] && moved[2] <= kept[2],
            "{moved:?} {kept:?} at {load}"
        );
    }
}

#[test]
fn instances_that_decode_can_spare_prefill() {
    let roles = Scenario {
        slow_loop: Some(SLOW_LOOP),
        ..adaptive()
    };
    for (load, mean, p90) in [(0.8, 2.80, 4.95), (0.9, f64::INFINITY, 6.2)] {
        let found = five(&roles, load);
        println!("at {load} with roles: {found:.2?}");
        assert!(found[0] <= mean && found[1] <= p90, "{found:?} at {load}");
    }
}

#[test]
fn the_adaptive_threshold_serves_as_much_as_any_assignment() {
    let (reached, share) = backlog(&adaptive(), SERVICE);
    let (kept, _) = backlog(&fixed(SERVICE), SERVICE);
    println!("adaptive {reached:.3}, {share:.4} of the bound; static {kept:.3}");
    assert!(
        (0.995..=1.0).contains(&share) && reached > kept,
        "{reached} {share} {kept}"
    );
}

/// Requests served a second from one period of the slow loop after the link was cut on, with more on offer.
fn after_a_cut(scenario: &Scenario, gbps: u64) -> f64 {
    const LATER: usize = 20_000;
    let cut = Moment(1_800_000_000);
    let counted = cut + SLOW_LOOP.period;
    let mut requests = traffic(2.4, 4_320, 1);
    requests.extend(traffic(4.0, LATER, 2).into_iter().map(|request| SimRequest {
        arrival: Moment(request.arrival.0 + counted.0),
        ..request
    }));
    let scenario = Scenario {
        changes: vec![Change {
            at: cut,
            what: Happening::Link {
                ends: (FAR, HOME),
                capacity: BitsPerSecond(gbps * 1_000_000_000),
                rtt: Duration::ZERO,
                loss: Permille(0),
            },
        }],
        ..scenario.clone()
    };
    let report = simulate(&scenario, &requests).unwrap();
    LATER as f64 / report.ended.since(counted).as_secs_f64()
}

#[test]
fn a_link_that_is_cut_is_planned_for_within_a_period() {
    let roles = Scenario {
        slow_loop: Some(SLOW_LOOP),
        ..adaptive()
    };
    for (gbps, at_least) in [(10, 1.14), (5, 1.65)] {
        let (kept, moved) = (after_a_cut(&fixed(SERVICE), gbps), after_a_cut(&roles, gbps));
        println!(
            "{gbps} Gbit/s: static {kept:.3}, adaptive {moved:.3}, {:.3} x",
            moved / kept
        );
        assert!(moved / kept >= at_least, "{gbps} Gbit/s: {moved} against {kept}");
    }
}

/// Each instance with a queue of its own, as on a live host: nearly what one queue a pool gives.
#[test]
fn queues_of_their_own_cost_little() {
    let own = Scenario {
        queueing: Queueing::PerInstance,
        ..adaptive()
    };
    let (pool, own) = (play(&adaptive(), 2.53, 20_000, 1), play(&own, 2.53, 20_000, 1));
    println!("one queue a pool {:?}, one an instance {:?}", pool.ttft, own.ttft);
    near("mean", own.ttft.mean, pool.ttft.mean, 0.05);
    assert_eq!((own.completed, own.cross_site_bytes > Bytes(0)), (20_000, true));
}
