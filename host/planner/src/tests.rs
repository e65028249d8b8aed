//! The case study of arXiv 2604.15039, figure by figure, and the threshold of a live fleet.

use crate::*;
use portolan_base::kv::KvSize;
use portolan_base::{BitsPerSecond, Bytes, Permille, Tokens};
use proptest::prelude::*;
use std::time::Duration;

mod bound;
mod egress;
mod live;
mod regions;
mod setting;
mod ttft;

const EVERYTHING_OFFLOADED: Tokens = Tokens(0);
const BEST: Tokens = Tokens(19_400);
const THREE_FIVE: Split = Split {
    prefill: 3,
    decode: 5,
};

fn lengths() -> TruncatedLogNormal {
    TruncatedLogNormal::new(9.90, 1.00, Tokens(128), Tokens(131_072)).unwrap()
}

fn fleet(remote: PrefillProfile, local: PrefillProfile) -> Fleet {
    Fleet {
        remote,
        remote_instances: 4,
        local,
        decode: DecodeProfile {
            batch: 20,
            step_s: 0.025,
            output_tokens: 1024.0,
        },
        // 173.92 MiB of recurrent state, 15 layers of 576 values of 2 bytes a token.
        kv: KvSize {
            fixed: Bytes(182_368_338),
            per_token: Bytes(17_280),
        },
        egress: BitsPerSecond(100_000_000_000),
        averaging: Averaging::TimeOfMean,
    }
}

/// Model Q: a least-squares curve through the paper's table of prefill times.
fn model_q() -> Fleet {
    let remote = PrefillProfile {
        fixed_s: 0.3891,
        per_token_s: 4.2055e-5,
        per_token_squared_s: 9.9365e-11,
    };
    fleet(remote, remote.scaled(3.0812, -0.7265))
}

/// Model G: both curves fitted to the paper's throughputs and times to first token.
fn model_g() -> Fleet {
    fleet(
        PrefillProfile {
            fixed_s: 0.3983,
            per_token_s: 4.206e-5,
            per_token_squared_s: 9.86e-11,
        },
        PrefillProfile {
            fixed_s: 0.4567,
            per_token_s: 1.3075e-4,
            per_token_squared_s: 2.857e-10,
        },
    )
}

#[track_caller]
fn close(got: f64, expected: f64, relative: f64) {
    assert!(
        (got / expected - 1.0).abs() <= relative,
        "{got} is not within {relative} of {expected}"
    );
}

#[test]
fn the_case_study_of_model_q() {
    let (fleet, lengths) = (model_q(), lengths());
    let prfaas = evaluate(&fleet, &lengths, BEST, THREE_FIVE);
    close(prfaas.remote_rate, 1.610, 0.0005);
    close(prfaas.local_rate, 1.640, 0.0005);
    close(prfaas.decode_rate, 3.906, 0.0005);
    close(prfaas.lambda_max, 3.247, 0.0005);
    close(prfaas.offloaded_share, 0.4957, 0.0005);
    close(prfaas.offloaded_mean_tokens, 45_046.0, 0.0001);
    close(prfaas.egress.0 as f64, 12.4e9, 0.005);
    assert_eq!(prfaas.bottleneck, Bottleneck::RemotePrefill);

    let homogeneous = evaluate(
        &fleet,
        &lengths,
        NOTHING_OFFLOADED,
        Split {
            prefill: 9,
            decode: 3,
        },
    );
    close(homogeneous.lambda_max, 2.110, 0.0005);
    close(homogeneous.decode_rate, 2.344, 0.0005);
    assert_eq!(
        (homogeneous.remote_rate, homogeneous.egress),
        (0.0, BitsPerSecond(0))
    );
    let naive = evaluate(
        &fleet,
        &lengths,
        EVERYTHING_OFFLOADED,
        Split {
            prefill: 0,
            decode: 8,
        },
    );
    close(naive.lambda_max, 2.469, 0.0005);
    close(naive.decode_rate, 6.250, 0.0005);
    close(prfaas.lambda_max / homogeneous.lambda_max, 1.539, 0.0005);
    close(naive.lambda_max / homogeneous.lambda_max, 1.170, 0.0005);
}

#[test]
fn the_grid_search_finds_the_printed_optimum() {
    let best = best_plan(&model_q(), &lengths(), 8, &SearchGrid::default()).unwrap();
    assert_eq!((best.threshold, best.split), (BEST, THREE_FIVE));
    let best = best_plan(&model_g(), &lengths(), 8, &SearchGrid::default()).unwrap();
    assert_eq!((best.threshold, best.split), (Tokens(19_500), THREE_FIVE));
    assert_eq!(best_plan(&model_q(), &lengths(), 1, &SearchGrid::default()), None);
}

#[test]
fn no_plan_serves_less_than_either_end_would() {
    // Without a remote pool, and over next to no link, the grid has no threshold that is worth it: prompts of 100,000
    // tokens and more are 2 % of all.
    let alone = Fleet {
        remote_instances: 0,
        ..model_q()
    };
    let narrow = Fleet {
        egress: BitsPerSecond(100_000_000),
        ..model_q()
    };
    for fleet in [alone, narrow] {
        let best = best_plan(&fleet, &lengths(), 8, &SearchGrid::default()).unwrap();
        let home = Split {
            prefill: 6,
            decode: 2,
        };
        assert_eq!((best.threshold, best.split), (NOTHING_OFFLOADED, home));
        close(best.lambda_max, 1.407, 0.001);
        assert_eq!(best.offloaded_share, 0.0);
    }
    // Answers so long that every local instance has to decode.
    let mut fleet = model_q();
    fleet.decode.output_tokens *= 100.0;
    let best = best_plan(&fleet, &lengths(), 8, &SearchGrid::default()).unwrap();
    assert_eq!((best.threshold, best.split.prefill), (EVERYTHING_OFFLOADED, 0));
}

#[test]
fn lengths_that_cannot_be_computed_with_are_refused() {
    let of = |sigma| TruncatedLogNormal::new(9.9, sigma, Tokens(128), Tokens(131_072));
    assert!(of(8.0).is_ok());
    assert_eq!(of(50.0), Err(LengthsError::Wide { sigma: 50.0 }));
}

#[test]
fn time_to_first_token_on_an_idle_fleet() {
    let (fleet, lengths) = (model_g(), lengths());
    let ttft = |threshold, prefill, decode| {
        evaluate(&fleet, &lengths, threshold, Split { prefill, decode })
            .unloaded_ttft
            .as_secs_f64()
    };
    close(ttft(BEST, 3, 5), 2.227, 0.0005);
    close(ttft(NOTHING_OFFLOADED, 9, 3), 4.443, 0.0005);
    close(ttft(EVERYTHING_OFFLOADED, 0, 8), 1.742, 0.0005);
}

#[test]
fn the_capacity_a_queue_reaches() {
    let fleet = Fleet {
        averaging: Averaging::MeanOfTimes,
        ..model_g()
    };
    let rate = |threshold, prefill, decode| {
        evaluate(&fleet, &lengths(), threshold, Split { prefill, decode }).lambda_max
    };
    close(rate(BEST, 3, 5), 3.161, 0.0005);
    close(rate(NOTHING_OFFLOADED, 9, 3), 2.026, 0.0005);
    close(rate(EVERYTHING_OFFLOADED, 0, 8), 2.367, 0.0005);
    let best = best_plan(&fleet, &lengths(), 8, &SearchGrid::default()).unwrap();
    assert_eq!((best.threshold, best.split), (Tokens(19_700), THREE_FIVE));
    close(best.lambda_max, 3.180, 0.0005);
}

#[test]
fn adapting_to_the_bandwidth() {
    let grid = SearchGrid {
        step: Tokens(200),
        ..SearchGrid::default()
    };
    let table = [
        (1, 1.562, 88_400, (6, 2), 0.262),
        (2, 1.621, 65_600, (5, 3), 0.525),
        (5, 2.256, 42_200, (5, 3), 1.312),
        (8, 2.630, 29_000, (4, 4), 2.100),
        (10, 3.034, 25_600, (4, 4), 2.625),
        (12, 3.173, 19_800, (3, 5), 3.149),
        (13, 3.237, 19_400, (3, 5), 3.237),
        (100, 3.237, 19_400, (3, 5), 3.237),
    ];
    for (gbps, lambda, threshold, split, fixed) in table {
        let fleet = Fleet {
            egress: BitsPerSecond(gbps * 1_000_000_000),
            ..model_g()
        };
        let best = best_plan(&fleet, &lengths(), 8, &grid).unwrap();
        close(best.lambda_max, lambda, 0.0005);
        assert_eq!((best.split.prefill, best.split.decode), split, "at {gbps} Gbps");
        // At 1 Gbps six prefill instances leave decode the bottleneck over a range of thresholds.
        if gbps > 1 {
            assert_eq!(best.threshold, Tokens(threshold), "at {gbps} Gbps");
        }
        assert!(best.egress <= fleet.egress);
        close(
            evaluate(&fleet, &lengths(), BEST, THREE_FIVE).lambda_max,
            fixed,
            0.002,
        );
    }
}

#[test]
fn model_q_is_the_quadratic_through_the_printed_prefill_times() {
    let table = [(1_000, 0.44), (8_000, 0.72), (32_000, 1.84), (128_000, 7.40)];
    let fitted = PrefillProfile::fit(&table.map(|(l, s)| (Tokens(l), Duration::from_secs_f64(s)))).unwrap();
    close(fitted.fixed_s, 0.3891, 0.0005);
    close(fitted.per_token_s, 4.2055e-5, 0.0005);
    close(fitted.per_token_squared_s, 9.9365e-11, 0.0005);
    let flat = [
        (Tokens(5), Duration::ZERO),
        (Tokens(5), Duration::ZERO),
        (Tokens(7), Duration::ZERO),
    ];
    assert_eq!(PrefillProfile::fit(&flat), Err(FitError::TooFewLengths(2)));
    assert_eq!(PrefillProfile::fit(&[]), Err(FitError::TooFewLengths(0)));
}

#[test]
fn lengths_that_mean_nothing_are_refused() {
    for (mu, sigma) in [(f64::NAN, 1.0), (9.9, 0.0), (9.9, f64::INFINITY), (9.9, -1.0)] {
        assert!(matches!(
            TruncatedLogNormal::new(mu, sigma, Tokens(1), Tokens(9)),
            Err(LengthsError::Shape { .. })
        ));
    }
    for (from, to) in [(9, 9), (10, 9), (1, 2)] {
        let refused = TruncatedLogNormal::new(30.0, 1.0, Tokens(from), Tokens(to));
        assert_eq!(refused, Err(LengthsError::Interval { from, to }));
    }
    assert_eq!(MeasuredLengths::new(vec![]), Err(LengthsError::NoSamples));
}

#[test]
fn measured_lengths_give_the_moments_of_what_was_measured() {
    let lengths = MeasuredLengths::new(vec![10, 40, 20, 30]).unwrap();
    assert_eq!(
        lengths.slice(Tokens(20), Tokens(u32::MAX)),
        Slice {
            share: 0.5,
            mean: 35.0,
            mean_square: 1250.0
        }
    );
    assert_eq!(
        lengths.slice(Tokens(0), Tokens(20)),
        Slice {
            share: 0.5,
            mean: 15.0,
            mean_square: 250.0
        }
    );
    assert_eq!(lengths.slice(Tokens(40), Tokens(90)), Slice::default());
    assert_eq!(lengths.slice(Tokens(40), Tokens(10)), Slice::default());
}

fn case() -> OffloadCase {
    let fleet = model_g();
    OffloadCase {
        local: fleet.local,
        local_wait: Duration::ZERO,
        remote: fleet.remote,
        remote_wait: Duration::ZERO,
        link: fleet.egress,
        rtt: Duration::from_millis(30),
        kv: fleet.kv,
        overlap: Permille(0),
    }
}

#[test]
fn a_slower_link_a_longer_queue_and_a_longer_way_raise_the_threshold() {
    let longest = Tokens(131_072);
    let base = offload_threshold(&case(), longest).unwrap();
    assert_eq!(
        offload_threshold(
            &OffloadCase {
                rtt: Duration::ZERO,
                ..case()
            },
            longest
        ),
        Some(Tokens(0))
    );
    let worse = [
        OffloadCase {
            link: BitsPerSecond(10_000_000_000),
            ..case()
        },
        OffloadCase {
            rtt: Duration::from_millis(220),
            ..case()
        },
        OffloadCase {
            remote_wait: Duration::from_secs(1),
            ..case()
        },
    ];
    for case in worse {
        assert!(offload_threshold(&case, longest).unwrap() > base, "{case:?}");
    }
    let busy_here = OffloadCase {
        local_wait: Duration::from_secs(1),
        ..case()
    };
    assert_eq!(offload_threshold(&busy_here, longest), Some(Tokens(0)));
    assert_eq!(
        offload_threshold(
            &OffloadCase {
                link: BitsPerSecond(0),
                ..case()
            },
            longest
        ),
        None
    );
    let same_speed = OffloadCase {
        remote: case().local,
        ..case()
    };
    assert_eq!(
        offload_threshold(&same_speed, longest),
        None,
        "nothing to gain at any length"
    );
}

proptest! {
    #[test]
    fn above_the_threshold_remote_is_faster_and_at_it_is_not(
        local in (0.0..2.0f64, 0.0..3e-4f64, 0.0..1e-9f64),
        remote in (0.0..2.0f64, 0.0..3e-4f64, 0.0..1e-9f64),
        link in 1_000_000u64..100_000_000_000,
        overlap in 0u32..1000,
        waits in (0u64..3_000, 0u64..3_000, 0u64..300),
    ) {
        let profile = |(a, b, c)| PrefillProfile { fixed_s: a, per_token_s: b, per_token_squared_s: c };
        let case = OffloadCase {
            local: profile(local),
            local_wait: Duration::from_millis(waits.0),
            remote: profile(remote),
            remote_wait: Duration::from_millis(waits.1),
            link: BitsPerSecond(link),
            rtt: Duration::from_millis(waits.2),
            kv: model_g().kv,
            overlap: Permille(overlap),
        };
        let gain = |tokens: u32| {
            let sent = (case.kv.fixed.0 + case.kv.per_token.0 * u64::from(tokens)) as f64 * 8.0 / link as f64;
            let here = case.local_wait.as_secs_f64() + case.local.seconds(f64::from(tokens));
            let away = case.remote_wait.as_secs_f64() + case.remote.seconds(f64::from(tokens));
            here - away - case.rtt.as_secs_f64() - sent * f64::from(1000 - overlap) / 1000.0
        };
        let longest = 131_072;
        match offload_threshold(&case, Tokens(longest)) {
            Some(Tokens(threshold)) => {
                prop_assert!(threshold == 0 || gain(threshold) < 1e-6);
                for tokens in (threshold + 1..=longest).step_by(997).chain([longest]) {
                    prop_assert!(gain(tokens) > -1e-6, "{} at {tokens}", gain(tokens));
                }
            }
            None => prop_assert!(gain(longest) < 1e-6),
        }
    }
}
