//! The slow loop's plan, from the case study's requests as they would be measured.

use super::*;
use portolan_base::Moment;

const SECOND: u64 = 1_000_000;

/// Requests whose lengths are evenly spread over the distribution, in an order that mixes them, at a rate.
fn seen(count: usize, per_second: f64) -> (Seen, Moment) {
    let lengths = lengths();
    let quantile = |share: f64| {
        let (mut low, mut high) = (128, 131_072);
        while high - low > 1 {
            let middle = (low + high) / 2;
            if lengths.slice(Tokens(0), Tokens(middle)).share < share {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    };
    let mut seen = Seen::default();
    let mut at = Moment(0);
    for i in 0..count {
        let share = ((i * 7919) % count) as f64 / count as f64 + 0.5 / count as f64;
        at = Moment((i as f64 / per_second * SECOND as f64) as u64);
        seen.note(SeenRequest {
            at,
            uncached: Tokens(quantile(share)),
            produced: 1024,
        });
    }
    (seen, at)
}

fn pools(prefill: u32, decode: u32, both: u32) -> LivePools {
    let fleet = model_g();
    LivePools {
        remote: fleet.remote,
        remote_instances: 4,
        local: fleet.local,
        roles: LocalInstances {
            prefill,
            decode,
            both,
        },
        decode_slots: 20,
        decode_step_s: 0.025,
        kv: fleet.kv,
        egress: fleet.egress,
    }
}

#[test]
fn what_is_measured_leads_to_the_planned_threshold() {
    let (seen, now) = seen(4096, 2.0);
    let outlook = look_ahead(&pools(3, 5, 0), &seen, now).unwrap();
    close(f64::from(outlook.threshold.0), 19_700.0, 0.02);
    close(outlook.capacity, 3.18, 0.005);
    close(outlook.arrivals, 2.0, 0.01);
    close(outlook.load(), 2.0 / 3.18, 0.01);
    // 2 requests a second at 80 %: half of them remote at 2.5 s, half here at 1.8 s, all decode 1.28 s.
    let WantedInstances {
        remote_prefill,
        prefill,
        decode,
    } = outlook.wanted;
    assert_eq!((remote_prefill, prefill, decode), (4, 3, 4));
}

#[test]
fn instances_that_do_both_are_shared_without_loss() {
    let (seen, now) = seen(2000, 2.0);
    let capacity = |prefill, decode, both| {
        look_ahead(&pools(prefill, decode, both), &seen, now)
            .unwrap()
            .capacity
    };
    let bound = upper_bound(
        &Fleet {
            averaging: Averaging::MeanOfTimes,
            ..model_g()
        },
        &lengths(),
        LocalRoles::Changing { instances: 8 },
    );
    close(capacity(0, 0, 8), bound.lambda_max, 0.005);
    assert!(capacity(0, 0, 8) > capacity(3, 5, 0));
    assert!(capacity(1, 7, 0) < capacity(1, 6, 1));
    // A single instance that does everything has a plan too.
    assert!(capacity(0, 0, 1) > 0.0);
}

#[test]
fn instances_that_can_do_either_are_divided_as_is_best() {
    let (seen, _) = seen(2000, 2.0);
    let divided = |prefill, decode, both| best_division(&pools(prefill, decode, both), &seen);
    let best = divided(0, 0, 8).unwrap();
    assert_eq!(best.prefill, 3);
    close(best.capacity, 3.18, 0.005);
    assert_eq!(divided(1, 0, 7).unwrap().prefill, 2);
    assert_eq!(divided(0, 5, 3).unwrap().prefill, 3);
    // Somebody prefills and somebody decodes, whatever serves most.
    assert_eq!(divided(0, 0, 2).unwrap().prefill, 1);
    assert_eq!(divided(0, 0, 1), None);
    assert_eq!(divided(3, 5, 0), None, "nothing to divide");
    let narrow = LivePools {
        egress: BitsPerSecond(5_000_000_000),
        ..pools(0, 0, 8)
    };
    assert_eq!(
        best_division(&narrow, &seen).unwrap().prefill,
        5,
        "more stays here"
    );
}

#[test]
fn a_narrow_link_raises_the_threshold() {
    let (seen, now) = seen(2000, 1.0);
    let at = |gbps: u64| {
        let pools = LivePools {
            egress: BitsPerSecond(gbps * 1_000_000_000),
            ..pools(4, 4, 0)
        };
        look_ahead(&pools, &seen, now).unwrap().threshold
    };
    close(f64::from(at(10).0), 25_600.0, 0.04);
    assert!(at(5) > at(10) && at(10) > at(100));
}

#[test]
fn too_little_is_no_plan() {
    let (few, now) = seen(49, 1.0);
    assert_eq!(look_ahead(&pools(3, 5, 0), &few, now), None);
    let (enough, now) = seen(50, 1.0);
    assert!(look_ahead(&pools(3, 5, 0), &enough, now).is_some());
    assert_eq!(look_ahead(&pools(3, 0, 0), &enough, now), None, "nobody decodes");
    let alone = LivePools {
        remote_instances: 0,
        ..pools(3, 5, 0)
    };
    assert_eq!(look_ahead(&alone, &enough, now), None);
}

#[test]
fn the_window_forgets_and_a_quiet_time_shows() {
    let mut seen = Seen::default();
    assert!(seen.is_empty());
    let note = |seen: &mut Seen, second: u64| {
        seen.note(SeenRequest {
            at: Moment(second * SECOND),
            uncached: Tokens(1),
            produced: 1,
        });
    };
    (0..5000).for_each(|second| note(&mut seen, second));
    assert_eq!(seen.len(), 4096);
    close(seen.arrivals(Moment(4999 * SECOND)), 1.0, 0.01);
    assert_eq!(seen.arrivals(Moment(6000 * SECOND)), 0.0);
    // More in five minutes than are remembered: the rate is that of those remembered.
    let mut burst = Seen::default();
    (0..20_000u64).for_each(|i| {
        burst.note(SeenRequest {
            at: Moment(i * 10_000),
            uncached: Tokens(1),
            produced: 1,
        });
    });
    close(burst.arrivals(Moment(200 * SECOND)), 100.0, 0.01);
}
