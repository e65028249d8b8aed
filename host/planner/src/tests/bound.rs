//! The linear-programming optimum: beside the paper's case, reached by some assignment, and above every plan.

use super::*;

const FIXED: LocalRoles = LocalRoles::Fixed(THREE_FIVE);

fn in_a_queue(fleet: Fleet) -> Fleet {
    Fleet {
        averaging: Averaging::MeanOfTimes,
        ..fleet
    }
}

#[test]
fn the_case_study_and_what_a_threshold_reaches_of_it() {
    let (fleet, lengths) = (in_a_queue(model_g()), lengths());
    let bound = upper_bound(&fleet, &lengths, FIXED);
    // 3.1811 to the last digit; a program over a score of bins, each at its mean length, comes to 3.183 or 3.184, since
    // T(E[L]) of a wide bin is less than E[T(L)].
    close(bound.lambda_max, 3.1811, 0.00005);
    let share = |threshold| evaluate(&fleet, &lengths, threshold, THREE_FIVE).lambda_max / bound.lambda_max;
    close(share(BEST), 3.161 / 3.1811, 0.0005);
    // With a link to spare and speeds that part with length, some threshold is the optimum, up to whole tokens.
    let best = (19_000..20_500).map(|t| share(Tokens(t))).fold(0.0, f64::max);
    assert!((0.9999..=1.0 + 1e-9).contains(&best), "{best}");
    // A bound is what one share short of the optimum is not.
    assert!(share(Tokens(16_384)) < 0.95);
}

#[test]
fn worths_tell_what_one_per_cent_more_brings() {
    let lengths = lengths();
    let fleet = Fleet {
        egress: BitsPerSecond(10_000_000_000),
        ..in_a_queue(model_g())
    };
    let bound = upper_bound(&fleet, &lengths, FIXED);
    let wider = Fleet {
        egress: BitsPerSecond(10_010_000_000),
        ..fleet
    };
    let more = upper_bound(&wider, &lengths, FIXED).lambda_max / bound.lambda_max - 1.0;
    assert!(bound.worth.egress > 0.1, "{bound:?}");
    close(more / 0.001, bound.worth.egress, 0.02);
    let Worth {
        remote_prefill,
        egress,
        local,
        decode,
    } = bound.worth;
    close(remote_prefill + egress + local + decode, 1.0, 1e-9);
}

#[test]
fn decode_bounds_too_and_changing_roles_lift_it() {
    let (fleet, lengths) = (in_a_queue(model_g()), lengths());
    let decodes_little = LocalRoles::Fixed(Split {
        prefill: 6,
        decode: 2,
    });
    let bound = upper_bound(&fleet, &lengths, decodes_little);
    assert_eq!(
        (bound.lambda_max, bound.worth.decode),
        (2.0 * fleet.decode.rate(), 1.0)
    );
    let best_split = (1..8)
        .map(|prefill| {
            LocalRoles::Fixed(Split {
                prefill,
                decode: 8 - prefill,
            })
        })
        .map(|roles| upper_bound(&fleet, &lengths, roles).lambda_max)
        .fold(0.0, f64::max);
    let changing = upper_bound(&fleet, &lengths, LocalRoles::Changing { instances: 8 }).lambda_max;
    // Three and a bit prefill, the rest decodes: between the best whole split and the next.
    assert!(
        changing > best_split && changing < 1.1 * best_split,
        "{changing} {best_split}"
    );
}

#[test]
fn parts_that_are_missing() {
    let (fleet, lengths) = (in_a_queue(model_g()), lengths());
    let of = |fleet: &Fleet, prefill, decode| {
        upper_bound(fleet, &lengths, LocalRoles::Fixed(Split { prefill, decode })).lambda_max
    };
    let no_remote = Fleet {
        remote_instances: 0,
        ..fleet
    };
    close(of(&no_remote, 9, 3), 2.026, 0.0005);
    close(
        of(
            &Fleet {
                egress: BitsPerSecond(0),
                ..fleet
            },
            9,
            3,
        ),
        2.026,
        0.0005,
    );
    close(of(&fleet, 0, 8), 2.367, 0.0005);
    assert_eq!((of(&no_remote, 0, 8), of(&fleet, 3, 0)), (0.0, 0.0));
    let nobody = upper_bound(&no_remote, &lengths, LocalRoles::Changing { instances: 0 });
    assert_eq!(nobody.lambda_max, 0.0);
}

/// What an assignment reaches that goes by the bound's worths: each length goes where it takes less of what is dear, and
/// the three that hardly differ are divided so that no part waits for another.
fn reached(fleet: &Fleet, sample: &[u32], prefill: u32, worth: Worth) -> f64 {
    let weight = 1.0 / sample.len() as f64;
    // Shares of the whole that the requests of a length take: of the remote pool, of the link, of the local pool.
    let takes = |length: u32| {
        let l = f64::from(length);
        let bytes = fleet.kv.fixed.0 as f64 + fleet.kv.per_token.0 as f64 * l;
        [
            weight * fleet.remote.seconds(l) / f64::from(fleet.remote_instances),
            weight * bytes * 8.0 / fleet.egress.0 as f64,
            weight * fleet.local.seconds(l) / f64::from(prefill),
        ]
    };
    let gap = |[remote, link, local]: [f64; 3]| {
        worth.remote_prefill * remote + worth.egress * link - worth.local * local
    };
    let mut lengths = sample.to_vec();
    lengths.sort_by(|a, b| gap(takes(*a)).abs().total_cmp(&gap(takes(*b)).abs()));
    let (even, clear) = lengths.split_at(lengths.len().min(3));
    let mut sums = [0.0; 3];
    for takes in clear.iter().map(|length| takes(*length)) {
        let offloaded = gap(takes) < 0.0;
        for (part, sum) in sums.iter_mut().enumerate() {
            *sum += if offloaded == (part < 2) { takes[part] } else { 0.0 };
        }
    }
    let even: Vec<_> = even.iter().map(|length| takes(*length)).collect();
    1.0 / least_busiest(sums, &even)
}

/// The least that the busiest part has to do when each of `even` is divided as is best: a convex function of each share.
fn least_busiest(sums: [f64; 3], even: &[[f64; 3]]) -> f64 {
    let Some(([remote, link, local], rest)) = even.split_first() else {
        return sums.into_iter().fold(0.0, f64::max);
    };
    let at = |x: f64| {
        least_busiest(
            [
                sums[0] + x * remote,
                sums[1] + x * link,
                sums[2] + (1.0 - x) * local,
            ],
            rest,
        )
    };
    let (mut from, mut to) = (0.0, 1.0);
    for _ in 0..40 {
        let (a, b) = (from + (to - from) * 0.4, from + (to - from) * 0.6);
        if at(a) < at(b) { to = b } else { from = a }
    }
    [0.0, f64::midpoint(from, to), 1.0]
        .map(at)
        .into_iter()
        .fold(f64::INFINITY, f64::min)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn the_bound_is_reached_and_never_exceeded(
        sample in proptest::collection::btree_set(1u32..200_000, 1..60),
        remote in (0.0..2.0f64, 1e-6..3e-4f64, 0.0..1e-9f64),
        local in (0.0..2.0f64, 1e-6..3e-4f64, 0.0..1e-9f64),
        instances in 1u32..9,
        prefill in 1u32..9,
        mbps in 100u64..100_000,
    ) {
        let profile = |(a, b, c)| PrefillProfile { fixed_s: a, per_token_s: b, per_token_squared_s: c };
        let fleet = Fleet {
            remote: profile(remote),
            remote_instances: instances,
            local: profile(local),
            egress: BitsPerSecond(mbps * 1_000_000),
            ..in_a_queue(model_g())
        };
        let sample: Vec<u32> = sample.into_iter().collect();
        let lengths = MeasuredLengths::new(sample.clone()).unwrap();
        // Decode to spare, so that prefill and the link decide.
        let split = Split { prefill, decode: 1_000_000 };
        let bound = upper_bound(&fleet, &lengths, LocalRoles::Fixed(split));
        let reached = reached(&fleet, &sample, prefill, bound.worth);
        prop_assert!((reached / bound.lambda_max - 1.0).abs() < 1e-5, "{reached} {bound:?}");
        for threshold in (0..200_000).step_by(7919) {
            let plan = evaluate(&fleet, &lengths, Tokens(threshold), split);
            prop_assert!(plan.lambda_max <= bound.lambda_max * (1.0 + 1e-9), "{plan:?}");
        }
    }
}
