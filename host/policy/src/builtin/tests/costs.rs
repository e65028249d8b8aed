//! Tables for `ttft` and `price-aware`.

use super::*;
use crate::{NEVER, RequestView, RouteView};

fn cost(policy: &dyn Cost, request: RequestRow, row: RouteRow) -> CostRow {
    policy.estimate(RequestView(&request.to_cells()), RouteView(&row.to_cells()))
}

fn ttft(request: RequestRow, row: RouteRow) -> CostRow {
    cost(&Ttft::default(), request, row)
}

#[test]
fn a_local_route_is_queue_prefill_and_a_step_of_decode() {
    let row = RouteRow {
        queue_us: 7,
        prefill_us: 100,
        decode_us: 25,
        link_rtt_us: 9,
        ..route(0)
    };
    let expected = CostRow {
        total_us: 132,
        queue_us: 7,
        prefill_us: 100,
        decode_us: 25,
        ..CostRow::default()
    };
    assert_eq!(ttft(RequestRow::default(), row), expected);
}

#[test]
fn a_transfer_hides_behind_prefill_but_for_its_last_layers() {
    let remote = |prefill_us, transfer_us| RouteRow {
        prefill_us,
        transfer_us,
        link_rtt_us: 50,
        ..route(1)
    };
    for (prefill_us, transfer_us, waited) in [
        (1_000_000, 100_000, 7_000 + 50),
        (100_000, 1_000_000, 1_000_000 - 93_000 + 50),
        (0, 1_000, 1_000 + 50),
    ] {
        assert_eq!(
            ttft(RequestRow::default(), remote(prefill_us, transfer_us)).transfer_us,
            waited
        );
    }
}

#[test]
fn decode_counts_the_wait_for_a_slot_and_a_share_of_the_answer() {
    let request = RequestRow {
        expected_output_tokens: 101,
        max_output_tokens: 9999,
        ..Default::default()
    };
    let decode = |decode_running| {
        let row = RouteRow {
            decode_us: 10,
            decode_slots: 10,
            decode_running,
            ..route(0)
        };
        ttft(request, row).decode_us
    };
    let step_and_share = 10 + 100;
    assert_eq!(decode(9), step_and_share, "a slot is free");
    assert_eq!(
        decode(10),
        step_and_share + 101,
        "one end of ten answers of 1010 µs"
    );
    assert_eq!(decode(12), step_and_share + 303, "three ends");
}

#[test]
fn a_fetch_is_a_part_of_prefill_behind_which_no_transfer_hides() {
    let request = RequestRow {
        prompt_tokens: 1000,
        ..Default::default()
    };
    // 200 tokens are cached, 600 fetched in 300 µs, 200 computed in 400.
    let row = RouteRow {
        prefill_us: 700,
        cached_tokens: 200,
        fetch_tokens: 600,
        fetch_us: 300,
        transfer_us: 1_000,
        link_rtt_us: 0,
        ..route(1)
    };
    let cost = ttft(request, row);
    assert_eq!((cost.prefill_us, cost.transfer_us), (700, 1_000 - 372));
    assert_eq!(cost.cache_benefit_us, 800 * 2 - 300);
    let odd = RouteRow { fetch_us: 900, ..row };
    assert_eq!(
        ttft(request, odd).transfer_us,
        1_000,
        "a fetch longer than all of prefill"
    );
}

#[test]
fn what_the_cache_saved_is_shown() {
    let request = RequestRow {
        prompt_tokens: 1000,
        ..Default::default()
    };
    let row = |cached_tokens| RouteRow {
        prefill_us: 500,
        cached_tokens,
        ..route(0)
    };
    assert_eq!(ttft(request, row(800)).cache_benefit_us, 2000);
    assert_eq!(ttft(request, row(0)).cache_benefit_us, 0);
    assert_eq!(
        ttft(request, row(4000)).cache_benefit_us,
        0,
        "nothing was computed to tell the rate by"
    );
}

#[test]
fn an_estimate_of_never_stays_never_and_a_huge_one_does_not_become_never() {
    let huge = RouteRow {
        queue_us: NEVER - 1,
        prefill_us: NEVER - 1,
        decode_us: NEVER - 1,
        ..route(1)
    };
    assert_eq!(ttft(RequestRow::default(), huge).total_us, NEVER - 1);
    for row in [
        RouteRow {
            queue_us: NEVER,
            ..route(0)
        },
        RouteRow {
            prefill_us: NEVER,
            ..route(0)
        },
        RouteRow {
            transfer_us: NEVER,
            ..route(0)
        },
        RouteRow {
            decode_us: NEVER,
            ..route(0)
        },
    ] {
        assert_eq!(ttft(RequestRow::default(), row).total_us, NEVER);
        assert_eq!(
            cost(&PriceAware::default(), RequestRow::default(), row).total_us,
            NEVER
        );
    }
}

#[test]
fn a_price_is_weighed_against_waiting_by_the_kind_of_work_and_the_clients_wish() {
    let row = RouteRow {
        prefill_us: 1_000_000,
        price_micros: 5_000,
        ..route(0)
    };
    let total = |kind, ttft_slo_ms| {
        cost(
            &PriceAware::default(),
            RequestRow {
                kind,
                ttft_slo_ms,
                ..Default::default()
            },
            row,
        )
        .total_us
    };
    assert_eq!(total(0, 0), 1_000_000 + 500_000);
    assert_eq!(total(1, 0), 1_000_000 + 50_000_000, "batch work may wait");
    assert_eq!(total(0, 1000), 100_000 + 500_000, "just inside the wish");
    assert_eq!(total(0, 999), 1_000_000 + 500_000, "just outside");
}

#[test]
fn configurations_out_of_range_are_refused() {
    for (name, config, at_fault) in [
        ("ttft", r#"{"overlap_permille": 1001}"#, "overlap_permille"),
        (
            "price-aware",
            r#"{"within_slo_permille": 1001}"#,
            "within_slo_permille",
        ),
        ("price-aware", r#"{"second_is_worth_micros": 0}"#, "nonzero"),
        ("latency-aware", r#"{"rtt_weight_permille": -1}"#, "whole number"),
        ("latency-aware", r#"{"rtt": 1}"#, "rtt"),
    ] {
        let error = policy(QuestionKind::Cost, name, config, &four_sites())
            .err()
            .unwrap();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains(at_fault), "{name}: {source}");
    }
}
