//! Baselines and curves of the case study.

use super::*;

fn setting(lengths: &dyn LengthDistribution) -> Setting<'_> {
    Setting {
        fleet: model_q(),
        local_instances: 8,
        homogeneous_instances: 12,
        lengths,
        grid: SearchGrid::default(),
    }
}

#[test]
fn baselines() {
    let lengths = lengths();
    let setting = setting(&lengths);
    let homogeneous = setting.homogeneous().unwrap();
    assert_eq!(
        homogeneous.split,
        Split {
            prefill: 9,
            decode: 3
        }
    );
    close(homogeneous.lambda_max, 2.110, 0.0005);
    close(setting.naive().lambda_max, 2.469, 0.0005);
    assert_eq!(
        Setting {
            homogeneous_instances: 1,
            ..setting
        }
        .homogeneous(),
        None
    );
    let bound = setting.bound().unwrap().lambda_max;
    let queued = Setting {
        fleet: Fleet {
            averaging: Averaging::MeanOfTimes,
            ..setting.fleet
        },
        ..setting
    };
    assert!((0.998..=1.0).contains(&(queued.best().unwrap().lambda_max / bound)));
}

#[test]
fn throughput_against_split_threshold_and_bandwidth() {
    let lengths = lengths();
    let setting = Setting {
        fleet: model_g(),
        ..setting(&lengths)
    };
    let splits: Vec<_> = setting.by_split(BEST).map(|plan| plan.lambda_max).collect();
    let printed = [1.088, 2.175, 3.237, 3.125, 2.344, 1.562, 0.781];
    assert_eq!(splits.len(), printed.len());
    splits
        .iter()
        .zip(printed)
        .for_each(|(got, expected)| close(*got, expected, 0.0005));

    let curve: Vec<_> = setting.by_threshold(THREE_FIVE, 100).collect();
    assert_eq!(
        (curve[0].threshold, curve[99].threshold),
        (Tokens(1_000), Tokens(100_000))
    );
    for (threshold, lambda) in [(10_000, 2.707), (25_000, 2.351), (40_000, 1.426), (60_000, 1.031)] {
        let plan = curve
            .iter()
            .find(|plan| plan.threshold == Tokens(threshold))
            .unwrap();
        close(plan.lambda_max, lambda, 0.0005);
    }

    let kept = setting.plan(BEST, THREE_FIVE);
    let gbps = [5, 10].map(|gbps| BitsPerSecond(gbps * 1_000_000_000));
    let there = setting.by_bandwidth(&kept, &gbps);
    close(
        there[0].adapted.lambda_max / there[0].kept.lambda_max,
        1.72,
        0.005,
    );
    close(
        there[1].adapted.lambda_max / there[1].kept.lambda_max,
        1.16,
        0.005,
    );
}
