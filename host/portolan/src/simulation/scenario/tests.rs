//! The shipped scenarios, shortened; and what a wrong one is told.

use super::*;
use std::path::PathBuf;

const SHIPPED: [&str; 6] = [
    "steady",
    "burst",
    "brownout",
    "site-loss",
    "skewed-prefixes",
    "hot-tenant",
];

fn file(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/07-simulations");
    folder.join(format!("{name}.yaml"))
}

fn text(name: &str) -> String {
    std::fs::read_to_string(file(name)).unwrap()
}

fn outcomes(name: &str, policies: &[&str]) -> Vec<Outcome> {
    let stage = Stage::read(&file(name), None).unwrap();
    let policies: Vec<String> = policies.iter().map(|name| (*name).to_owned()).collect();
    stage.play(&policies, &Workshop::unhurried().unwrap()).unwrap()
}

#[test]
fn every_shipped_scenario_is_played() {
    for name in SHIPPED {
        let short = text(name).replacen("requests: 12000", "requests: 1500", 1);
        let stage = Stage::of(&short, Path::new("."), None).unwrap();
        let played = stage
            .play(
                &["offload".to_owned(), "round-robin".to_owned()],
                &Workshop::unhurried().unwrap(),
            )
            .unwrap();
        for Outcome { policy, report, .. } in &played {
            let done = report.completed + report.refused.values().sum::<u64>();
            assert_eq!((name, policy, done), (name, policy, 1500));
            assert!(
                report.ttft.mean > 0.3 && report.tpot.mean > 0.0,
                "{name}: {report:?}"
            );
        }
        let lines = describe(&played);
        assert!(
            lines[1].starts_with("offload") && lines[2].starts_with("round-robin"),
            "{lines:?}"
        );
    }
}

#[test]
fn a_hot_tenant_is_seen_apart_and_a_lost_site_takes_its_clients_along() {
    let hot = &outcomes("hot-tenant", &["offload"])[0].report;
    assert_eq!(hot.tenants.len(), 4);
    assert!(
        2 * hot.tenants[3].completed > 3 * hot.tenants[2].completed,
        "{:?}",
        hot.tenants
    );
    let lost = &outcomes("site-loss", &["offload"])[0].report;
    assert_eq!(lost.refused.keys().collect::<Vec<_>>(), ["its site was lost"]);
}

#[test]
fn the_popular_prefixes_are_found_by_whoever_looks() {
    let played = outcomes("skewed-prefixes", &["prefix-affinity", "random"]);
    let [affine, blind] = &played[..] else {
        panic!("{played:?}")
    };
    assert!(
        affine.hit_rate > blind.hit_rate + 0.05,
        "{} {}",
        affine.hit_rate,
        blind.hit_rate
    );
}

#[test]
fn mistakes_are_named_with_what_was_meant() {
    let fails = |from: &str, to: &str| {
        let text = text("brownout");
        assert!(text.contains(from), "{from}");
        match Stage::of(&text.replacen(from, to, 1), Path::new("."), None) {
            Ok(_) => panic!("{to} is accepted"),
            Err(wrong) => wrong.to_string(),
        }
    };
    for (from, to, says) in [
        ("warm_up_s", "warmup_s", "did you mean warm_up_s?"),
        ("rate_rps", "rate_rqs", "did you mean rate_rps?"),
        ("decode_slots", "decode_slot", "did you mean decode_slots?"),
        (
            "{from: virginia, to: paris, capacity_mbps: 2500,",
            "{from: virgina, to: paris, capacity_mbps: 2500,",
            "did you mean virginia?",
        ),
        (
            "{at_s: 1800, link: {from: virginia, to: paris}}",
            "{at_s: 1800}",
            "changes[1].link: one of",
        ),
        (
            "loss_permille: 20",
            "loss_permille: 1000",
            "changes[0].link.loss_permille: at most 900",
        ),
        ("rate_rps: 2.2", "rate_rps: -1", "traffic.rate_rps"),
        ("  requests: 12000\n", "", "traffic.requests: it is missing"),
        ("at_s: 1200", "at_s: .nan", "changes[0].at_s"),
        (
            "  requests",
            "  trace: x.jsonl\n  requests",
            "a trace has its own arrivals",
        ),
        ("shortest_tokens: 128", "shortest_tokens: 0", "shortest_tokens"),
        (
            "median_tokens: 8000",
            "median_tokens: 8000000",
            "traffic.prompt.median_tokens: hardly a prompt",
        ),
        (
            "  requests: 12000\n",
            "  requests: 12000\n  burst: {every_s: 30, lasting_s: 240, factor: 3}\n",
            "traffic.burst.lasting_s: 240 s of every 30 s",
        ),
        ("warm_up_s: 120", "warm_up_s: 12000000", "none would be counted"),
    ] {
        let said = fails(from, to);
        assert!(said.contains(says), "{to}: {said}");
    }
    let traced = "{trace: x.jsonl, burst: {every_s: 9, lasting_s: 1, factor: 2}}";
    let traced: TrafficText = serde_saphyr::from_str(traced).unwrap();
    let said = traced
        .draw(Path::new("."), 1, portolan_base::Tokens(64))
        .unwrap_err();
    assert!(
        said.to_string().contains("a trace has its own arrivals"),
        "{said}"
    );
    let workshop = Workshop::unhurried().unwrap();
    let stage = Stage::read(&file("steady"), None).unwrap();
    let said = stage
        .play(&["ofload".to_owned()], &workshop)
        .unwrap_err()
        .to_string();
    assert!(said.contains("did you mean offload?; there are"), "{said}");
}
