//! Tables for the routing policies.

use super::*;
use crate::NEVER;

fn prompt(prompt_tokens: u32) -> RequestRow {
    RequestRow {
        prompt_tokens,
        ..Default::default()
    }
}

#[test]
fn threshold_follows_its_bands_just_inside_and_just_outside() {
    let dear_local_cheap_remote = [(route(0), 900), (route(1), 100)];
    let cheap_local_dear_remote = [(route(0), 100), (route(1), 900)];
    for (tokens, routes, first) in [
        (511, dear_local_cheap_remote, 0),
        (512, dear_local_cheap_remote, 1),
        (512, cheap_local_dear_remote, 0),
        (4096, cheap_local_dear_remote, 0),
        (4097, cheap_local_dear_remote, 1),
    ] {
        let order = order(&scores("threshold", "", prompt(tokens), &routes));
        assert_eq!(order[0], first, "{tokens} tokens, {routes:?}");
    }
}

#[test]
fn threshold_counts_uncached_tokens() {
    let cached = RouteRow {
        cached_tokens: 9_500,
        ..route(0)
    };
    assert_eq!(
        order(&scores(
            "threshold",
            "",
            prompt(10_000),
            &[(cached, 900), (route(1), 100)]
        )),
        [0, 1]
    );
}

#[test]
fn threshold_comes_home_from_a_congested_link() {
    let link = |link_busy_permille| RouteRow {
        link_busy_permille,
        ..route(1)
    };
    for tokens in [100, 2000, 10_000] {
        let scores = scores(
            "threshold",
            "",
            prompt(tokens),
            &[(link(700), 1), (route(0), 900)],
        );
        assert_eq!(order(&scores), [1, 0], "{tokens} tokens");
    }
    assert_eq!(
        order(&scores(
            "threshold",
            "",
            prompt(10_000),
            &[(link(699), 1), (route(0), 900)]
        )),
        [0, 1]
    );
}

#[test]
fn threshold_favours_the_larger_remote_pool_until_it_is_a_fifth_dearer() {
    let at = |prefill_site, prefill_instance| RouteRow {
        prefill_site,
        prefill_instance,
        ..RouteRow::default()
    };
    let routes = |large| [(at(1, 1), 800), (at(2, 2), large), (at(2, 3), 5000)];
    assert_eq!(
        order(&scores("threshold", "", prompt(10_000), &routes(990)))[0],
        1
    );
    assert_eq!(
        order(&scores("threshold", "", prompt(10_000), &routes(1010)))[0],
        0
    );
}

#[test]
fn offload_follows_the_planners_threshold() {
    let request = |tokens| RequestRow {
        offload_threshold_tokens: 19_400,
        ..prompt(tokens)
    };
    let routes = [(route(0), 100), (route(1), 100)];
    assert_eq!(order(&scores("offload", "", request(19_400), &routes)), [0, 1]);
    assert_eq!(order(&scores("offload", "", request(19_401), &routes)), [1, 0]);
    assert_eq!(
        order(&scores("offload", "", prompt(16_385), &routes)),
        [1, 0],
        "no plan: the configured one"
    );
}

#[test]
fn offload_counts_remote_kv_only_while_bandwidth_is_ample() {
    let request = |condition_bits| RequestRow {
        offload_threshold_tokens: 1000,
        condition_bits,
        ..prompt(10_000)
    };
    let elsewhere = [
        (route(0), 100),
        (
            RouteRow {
                cached_tokens: 9_500,
                ..route(1)
            },
            100,
        ),
    ];
    assert_eq!(
        order(&scores("offload", "", request(0), &elsewhere)),
        [0, 1],
        "ample: 500 left, fetch and stay"
    );
    assert_eq!(
        order(&scores("offload", "", request(1), &elsewhere)),
        [1, 0],
        "scarce: 10,000 left at home"
    );
    let fetchable = [
        (
            RouteRow {
                fetchable_tokens: 9_500,
                ..route(0)
            },
            100,
        ),
        (route(1), 100),
    ];
    assert_eq!(order(&scores("offload", "", request(0), &fetchable)), [0, 1]);
    assert_eq!(order(&scores("offload", "", request(1), &fetchable)), [1, 0]);
    let at_home = [
        (
            RouteRow {
                cached_tokens: 9_500,
                ..route(0)
            },
            100,
        ),
        (route(1), 100),
    ];
    assert_eq!(
        order(&scores("offload", "", request(1), &at_home)),
        [0, 1],
        "KV at home counts always"
    );
}

#[test]
fn affinity_keeps_a_cold_conversation_on_one_instance_whatever_the_order_of_routes() {
    let routes: Vec<_> = (0..8).map(|site| (route(site), 100)).collect();
    let reversed: Vec<_> = routes.iter().rev().copied().collect();
    let mut taken = BTreeMap::new();
    for session_lo in 1..200 {
        let request = RequestRow {
            session_lo,
            ..prompt(1000)
        };
        let site = order(&scores("prefix-affinity", "", request, &routes))[0];
        assert_eq!(
            order(&scores("prefix-affinity", "", request, &reversed))[0],
            7 - site
        );
        *taken.entry(site).or_insert(0) += 1;
    }
    assert_eq!(taken.len(), 8, "conversations spread: {taken:?}");
}

#[test]
fn affinity_prefers_the_longest_prefix_unless_its_instance_drowns() {
    let cached = |queued| RouteRow {
        cached_tokens: 900,
        prefill_queued_tokens: queued,
        ..route(1)
    };
    let pick = |queued| {
        let request = RequestRow {
            session_lo: 5,
            ..prompt(1000)
        };
        order(&scores(
            "prefix-affinity",
            "",
            request,
            &[(route(0), 1), (cached(queued), 1)],
        ))[0]
    };
    assert_eq!(pick(32_767), 1);
    assert_eq!(pick(32_768), 0);
}

#[test]
fn round_robin_takes_open_routes_in_turn() {
    let routes = [(route(0), 1), (route(1), NEVER), (route(2), 1), (route(3), 1)];
    let firsts: Vec<_> = (0..6)
        .map(|seed_lo| {
            order(&scores(
                "round-robin",
                "",
                RequestRow { seed_lo, ..prompt(1) },
                &routes,
            ))[0]
        })
        .collect();
    assert_eq!(firsts, [0, 2, 3, 0, 2, 3]);
}

#[test]
fn random_spreads_evenly_and_repeats_with_its_seed() {
    let routes: Vec<_> = (0..4).map(|site| (route(site), 1)).collect();
    let mut taken = [0; 4];
    for seed_lo in 0..4000 {
        let request = RequestRow { seed_lo, ..prompt(1) };
        let drawn = scores("random", "", request, &routes);
        assert_eq!(drawn, scores("random", "", request, &routes));
        taken[order(&drawn)[0]] += 1;
    }
    assert!(taken.iter().all(|n| (850..1150).contains(n)), "{taken:?}");
}

#[test]
fn least_loaded_weighs_queue_prefill_and_decode() {
    let load = |prefill_queued_requests, prefill_busy_permille, decode_running| {
        (
            RouteRow {
                prefill_queued_requests,
                prefill_busy_permille,
                decode_running,
                decode_slots: 10,
                ..RouteRow::default()
            },
            1,
        )
    };
    let routes = [load(1, 0, 1), load(0, 500, 4), load(0, 500, 3), load(0, 999, 20)];
    assert_eq!(
        scores("least-loaded", "", prompt(1), &routes),
        [1100, 900, 800, 2999]
    );
}

#[test]
fn caches_are_compared_in_the_region_or_everywhere() {
    let cached = |prefill_site, cached_tokens| {
        (
            RouteRow {
                cached_tokens,
                ..route(prefill_site)
            },
            1,
        )
    };
    let routes = [cached(0, 0), cached(1, 50), cached(3, 90)];
    assert_eq!(
        order(&scores("region-cache-aware", "", prompt(100), &routes)),
        [1, 0, 2]
    );
    assert_eq!(
        order(&scores("global-cache-aware", "", prompt(100), &routes)),
        [2, 1, 0]
    );
}

#[test]
fn remote_preferred_overrules_every_tier() {
    let request = RequestRow {
        prefill_mode: 2,
        ..prompt(100)
    };
    let congested = RouteRow {
        link_busy_permille: 900,
        ..route(1)
    };
    assert_eq!(
        order(&scores(
            "threshold",
            "",
            request,
            &[(route(0), 1), (congested, 999)]
        )),
        [1, 0]
    );
    assert_eq!(
        order(&scores(
            "lowest-cost",
            "",
            request,
            &[(route(0), 1), (route(1), 999)]
        )),
        [1, 0]
    );
}

#[test]
fn configurations_that_contradict_themselves_are_refused() {
    for config in [
        r#"{"local_below_tokens": 5000}"#,
        r#"{"larger_pool_discount_permille": 1001}"#,
        "[]",
        "{",
    ] {
        assert!(
            policy(QuestionKind::Routing, "threshold", config, &four_sites()).is_err(),
            "{config}"
        );
    }
}
