//! A tenant's worst policy costs that tenant its own choice, and nobody anything else.

use crate::guests::Guest;
use portolan_decide::PathRecord;
use portolan_tests::world::{ACME, ADMIN, GLOBEX, shipped};
use portolan_tests::{Ask, Link, Oracle, World, oracle_folder};
use std::time::{Duration, Instant};

const FAST: Link = Link {
    delay_ms: 0,
    rate_mbps: 0,
};

/// Name, what it does, and the words one of which the path record uses for it.
const DEEDS: [(&str, &str, &[&str]); 3] = [
    (
        "an endless loop",
        "(loop $l (br $l)) (unreachable)",
        &["out-of-fuel", "timed-out", "saturated"],
    ),
    ("a trap", "(unreachable)", &["trap"]),
    (
        "memory without end",
        "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) (unreachable)",
        &["out-of-memory", "trap", "out-of-fuel"],
    ),
];

fn routing_outcome(record: &PathRecord) -> String {
    let call = record
        .policies
        .iter()
        .find(|p| p.question == portolan_policy::QuestionKind::Routing);
    call.map_or_else(|| "not asked".into(), |p| p.outcome.clone())
}

/// How long the routing policy kept the request waiting.
fn routing_time(record: &PathRecord) -> Duration {
    let call = record
        .policies
        .iter()
        .find(|p| p.question == portolan_policy::QuestionKind::Routing);
    call.map_or(Duration::ZERO, |p| Duration::from_micros(p.micros))
}

#[test]
fn a_hostile_policy_is_answered_by_the_fallback_and_others_do_not_notice() {
    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    let case = Oracle::of("tiny-qwen3").prompts.remove(1);
    world
        .push(GLOBEX, ("globex", "routing"), &shipped("lowest-cost"), "")
        .unwrap();
    let others = |world: &World| {
        let began = Instant::now();
        let answer = world.ask(&Ask::tokens(&case.prompt_ids).by(GLOBEX).max(4));
        assert_eq!(
            (
                routing_outcome(&answer.record).as_str(),
                answer.record.fallbacks.len()
            ),
            ("ok", 0)
        );
        assert_eq!(answer.tokens, case.greedy_ids[..4]);
        began.elapsed()
    };
    let mut quiet: Vec<Duration> = (0..40).map(|_| others(&world)).collect();
    for (name, deed, words) in DEEDS {
        let pushed = world.push(ACME, ("acme", "routing"), &Guest::always(deed).component(), "");
        pushed.unwrap_or_else(|e| panic!("{name}: {e}"));
        let (mut hostile, mut calls) = (Vec::new(), Vec::new());
        for round in 0..20 {
            let answer = world.ask(&Ask::tokens(&case.prompt_ids).max(4));
            assert_eq!(answer.tokens, case.greedy_ids[..4], "{name}, round {round}");
            let outcome = routing_outcome(&answer.record);
            assert!(words.contains(&outcome.as_str()), "{name}: {outcome}");
            let fallback = answer
                .record
                .fallbacks
                .first()
                .unwrap_or_else(|| panic!("{name}: no fallback"));
            assert_eq!(fallback.to, "the built-in router");
            calls.push(routing_time(&answer.record));
            hostile.push(others(&world));
        }
        let worst = calls.iter().max().copied().unwrap_or_default();
        println!(
            "{name}: the call took {:?} (median), {worst:?} at worst",
            median(&mut calls)
        );
        let (before, during) = (median(&mut quiet), median(&mut hostile));
        println!(
            "{name}: the other tenant's requests took {during:?} (median) beside it, {before:?} without"
        );
        // Both medians are a few ms on an idle machine; the allowance is for a machine that runs other tests too.
        assert!(
            during < before * 3 + Duration::from_millis(20),
            "{name}: {during:?} against {before:?}"
        );
    }
    let metrics = world.client(ADMIN).get("/metrics").unwrap().body;
    assert!(
        metrics.as_str().unwrap().contains("fallback"),
        "fallbacks are counted"
    );
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[test]
fn a_tenant_with_little_fuel_runs_out_of_it_where_its_neighbour_does_not() {
    let world = World::start_with_quotas(&oracle_folder("tiny-qwen3"), FAST, "{fuel_per_call: 100}");
    let case = Oracle::of("tiny-qwen3").prompts.remove(1);
    let component = shipped("lowest-cost");
    for (key, tenant) in [(ACME, "acme"), (GLOBEX, "globex")] {
        world.push(key, (tenant, "routing"), &component, "").unwrap();
    }
    let ask = |key: &str| world.ask(&Ask::tokens(&case.prompt_ids).by(key).max(4));
    for round in 0..3 {
        let (bounded, neighbour) = (ask(ACME), ask(GLOBEX));
        assert_eq!(routing_outcome(&bounded.record), "out-of-fuel", "round {round}");
        assert_eq!(bounded.record.fallbacks[0].to, "the built-in router");
        assert_eq!(bounded.tokens, case.greedy_ids[..4], "round {round}");
        assert_eq!(routing_outcome(&neighbour.record), "ok", "round {round}");
        assert!(neighbour.record.fallbacks.is_empty(), "round {round}");
    }
}

#[test]
fn what_cannot_be_used_is_refused_by_name_and_leaves_nothing() {
    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    let good = shipped("round-robin");
    let newer = rename_package(&good);
    let cases: [(&str, Vec<u8>, &str); 6] = [
        ("text", b"hello, I am a policy".to_vec(), "text"),
        ("a core module", Guest::echo().core_module(), "core-module"),
        ("truncated", good[..good.len() / 2].to_vec(), ""),
        ("another world", shipped("ttft"), "cost"),
        ("another WIT version", newer, "0.9.0"),
        ("WASI", wasi_component(), "wasi"),
    ];
    for (name, bytes, phrase) in cases {
        let refused = world.push(ACME, ("acme", "routing"), &bytes, "").expect_err(name);
        let text = format!("{refused:?}").to_lowercase();
        assert!(text.contains("422") && text.contains(phrase), "{name}: {text}");
    }
    let huge = world
        .push(ACME, ("acme", "routing"), &vec![0; 100 << 20], "")
        .expect_err("100 MB");
    println!("100 MB: {huge}");
    let policies = world.policies(ACME, "acme").to_string();
    assert!(!policies.contains("sha256"), "something was kept: {policies}");
    assert!(
        world.push(ACME, ("globex", "routing"), &good, "").is_err(),
        "acme wrote globex's policy"
    );
    assert!(
        world.push(ACME, ("acme", "routing"), &good, "").is_ok(),
        "the server is unharmed"
    );
}

/// The component with every `portolan:policy/…@0.1.0` renamed to version 0.9.0, which has the same length.
fn rename_package(component: &[u8]) -> Vec<u8> {
    let mut out = component.to_vec();
    for at in 0..out.len() - 6 {
        if &out[at..at + 6] == b"@0.1.0" {
            out[at..at + 6].copy_from_slice(b"@0.9.0");
        }
    }
    out
}

/// A component that imports a WASI interface beside what a router has.
fn wasi_component() -> Vec<u8> {
    wat::parse_str(
        r#"(component
            (import "wasi:clocks/monotonic-clock@0.2.6" (instance (export "now" (func (result u64))))))"#,
    )
    .unwrap()
}
