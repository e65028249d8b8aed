//! The file as a whole: what is printed is the same file, and the serving tutorial's keys do what they say.

use super::*;
use portolan_decide::PrefillMode;
use portolan_gateway::live::{Failover, Home};

/// The serving tutorial's example, in Portolan's keys.
const TUTORIAL: &str = "
data_dir: data
operator_keys: [{name: alice, key: key-alice}, key-bob]
mode: cross_site
routing: {long_context_threshold_tokens: 16384, prefer_remote_prefill: true, fallback_to_local_on_failure: true}
resource_classes:
  prefill-gpu: {max_queue_depth: 64, warmup_before_serving: true}
  decode-gpu: {decode_slots: 16}
models: [{name: m, path: m.gguf}]
sites:
  - name: virginia
    jurisdiction: us
    listen: 127.0.0.1:0
    instances: [{name: prefill, model: m, role: prefill, replicas: 4, resource_class: prefill-gpu}]
  - name: paris
    jurisdiction: eu
    listen: 127.0.0.1:0
    instances: [{name: decode, model: m, role: decode, replicas: 8, resource_class: decode-gpu}]
limits: {max_concurrent_requests: 128}
links:
  - {from: virginia, to: paris, capacity_mbps: 100000, compression: zstd, min_bandwidth_mbps: 40000, max_latency_ms: 10}
timeouts: {remote_prefill_ms: 8000}
transfer: {checksum_enabled: true, timeout_ms: 8000, max_retry: 2, isolated_transport_queue: true}
observability: {metrics_enabled: true, tracing_enabled: true, log_level: info}
tenants: [{name: acme, keys: [key-acme]}]
scaling: {webhook: 'https://scaler.example/s3cret'}
";

#[test]
fn the_serving_tutorials_example_says_the_same_here() {
    let config = Config::parse(TUTORIAL).unwrap();
    let count = |site: usize| config.sites[site].instances.len();
    assert_eq!((count(0), count(1)), (4, 8));
    assert_eq!(config.sites[0].instances[2].max_queue_depth, Some(64));
    let slots: u32 = config.sites[1].instances.iter().map(|i| i.decode_slots).sum();
    assert_eq!((slots, config.limits.limits().in_flight), (128, 128));
    let rule = config.routing.rule();
    let mode = |tokens| rule.mode(PrefillMode::Auto, portolan_base::Tokens(tokens), Home::Prefills);
    assert_eq!(
        (mode(16_383), mode(16_384)),
        (PrefillMode::LocalOnly, PrefillMode::RemotePreferred)
    );
    assert_eq!(rule.failover, Failover::Home);
    let floor = config.links[0].floor();
    assert!(!floor.admits(
        portolan_base::BitsPerSecond(39_000_000_000),
        std::time::Duration::ZERO
    ));
    assert_eq!(config.topology().unwrap().links().len(), 1);
}

#[test]
fn in_local_mode_links_are_as_if_they_were_not_there() {
    let local = TUTORIAL
        .replace("cross_site", "local")
        .replace("prefer_remote_prefill: true, ", "");
    let config = Config::parse(&local).unwrap();
    assert!(config.links_in_use().is_empty() && config.topology().unwrap().links().is_empty());
    let contradiction = Config::parse(&TUTORIAL.replace("cross_site", "local"))
        .unwrap_err()
        .to_string();
    assert!(
        contradiction.starts_with("routing.prefer_remote_prefill"),
        "{contradiction}"
    );
}

#[test]
fn what_is_printed_is_the_same_configuration() {
    let config = Config::parse(TUTORIAL).unwrap();
    let printed = serde_saphyr::to_string(&config.to_value()).unwrap();
    let again = Config::parse(&printed).unwrap();
    assert!(
        config.changes_to(&again).is_empty(),
        "{:?}",
        config.changes_to(&again)
    );
}

#[test]
fn secrets_are_not_printed() {
    let mut value = Config::parse(TUTORIAL).unwrap().to_value();
    mask(&mut value);
    let text = value.to_string();
    assert!(!text.contains("key-") && !text.contains("s3cret"), "{text}");
    assert!(text.contains("alice"), "who holds a key is no secret");
}

#[test]
fn a_change_says_when_it_counts() {
    let takes = |key: &str| changing::takes(key);
    for live in [
        "timeouts.factor",
        "tenants.acme.keys",
        "tenants.a.b.keys",
        "links.a-b.budget_mbps",
    ] {
        assert_eq!(takes(live), Takes::Effect, "{live}");
    }
    for later in [
        "models.m.path",
        "tenants.acme.quotas.state_keys",
        "links.a-b.capacity_mbps",
        "data_dir",
    ] {
        assert_eq!(takes(later), Takes::Restart, "{later}");
    }
}

#[test]
fn a_value_that_cannot_be_is_refused_with_its_place() {
    for (from, to, expected) in [
        ("log_level: info", "log_level: 'a=b=c'", "observability.log_level"),
        (
            "max_latency_ms: 10",
            "max_latency_ms: 0",
            "links.virginia-paris.max_latency_ms",
        ),
        (
            "min_bandwidth_mbps: 40000",
            "min_bandwidth_mbps: 400000",
            "links.virginia-paris.min_bandwidth_mbps",
        ),
        (
            "max_concurrent_requests: 128",
            "max_concurrent_requests: 0",
            "limits.max_concurrent_requests",
        ),
        (
            "long_context_threshold_tokens: 16384",
            "long_context_threshold_tokens: 0",
            "routing.long_context_threshold_tokens",
        ),
        (
            "limits: {",
            "changing: {four_eyes: true}\nlimits: {",
            "operator_keys: changing.four_eyes needs",
        ),
    ] {
        assert!(TUTORIAL.contains(from), "{from}");
        let refused = Config::parse(&TUTORIAL.replacen(from, to, 1))
            .unwrap_err()
            .to_string();
        assert!(refused.starts_with(expected), "{refused}");
    }
}
