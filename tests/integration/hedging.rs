//! A prefill elsewhere that takes longer than it should is begun here too where that is asked for; whoever is first, the
//! answer is the same.

use portolan::config::Config;
use portolan_tests::{Ask, Link, World, oracle_folder};

/// Said to carry 1,000 Mbit/s; carries 4.
const SLOWER_THAN_SAID: Link = Link {
    delay_ms: 1,
    rate_mbps: 4,
};

fn world(link: Link, hedge: Option<u32>) -> World {
    World::start_changed(&oracle_folder("tiny-qwen3"), link, |config: &mut Config| {
        config.timeouts.hedge_factor = hedge;
        // A fiftieth of this is the shortest wait before a hedge; what is slow is not given up.
        config.timeouts.remote_prefill_ms = 10_000;
        config.timeouts.longest_ms = 60_000;
        config.timeouts.factor = 50;
        let instances = config.sites.iter_mut().flat_map(|site| &mut site.instances);
        instances.for_each(|instance| instance.kv_pool_mib = 64);
    })
}

fn prompt() -> Vec<u32> {
    (0..1500).map(|i| (i * 4001 + 17) % 2000).collect()
}

#[test]
fn what_does_not_come_in_time_is_computed_here() {
    let world = world(SLOWER_THAN_SAID, Some(1));
    let expected = world.ask(
        &Ask::tokens(&prompt())
            .local()
            .max(8)
            .by(portolan_tests::world::GLOBEX),
    );
    let answer = world.ask(&Ask::tokens(&prompt()).remote_preferred().max(8));
    assert_eq!(answer.tokens, expected.tokens);
    let record = &answer.record;
    assert_eq!(record.status, "ok");
    let route = record.route.as_ref().unwrap();
    assert_eq!(
        (route.prefill_site.as_str(), route.decode_site.as_str()),
        ("paris", "paris")
    );
    let reasons: Vec<&str> = record.fallbacks.iter().map(|f| f.reason.as_str()).collect();
    assert_eq!(reasons.len(), 1, "{:?}", record.fallbacks);
    assert!(reasons[0].starts_with("not there after"), "{reasons:?}");
    let stages: Vec<&str> = record.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert!(
        stages.contains(&"transfer") && stages.contains(&"prefill"),
        "{stages:?}"
    );
    assert!(record.kv.computed_tokens > 1400, "{:?}", record.kv);
}

#[test]
fn what_comes_in_time_is_not_computed_twice() {
    let fast = Link {
        delay_ms: 0,
        rate_mbps: 0,
    };
    let world = world(fast, Some(40));
    let answer = world.ask(&Ask::tokens(&prompt()).remote_preferred().max(8));
    assert_eq!(answer.record.route.as_ref().unwrap().prefill_site, "virginia");
    assert!(
        answer.record.fallbacks.is_empty(),
        "{:?}",
        answer.record.fallbacks
    );
}

#[test]
fn nothing_is_begun_twice_unless_it_is_asked_for() {
    let world = world(SLOWER_THAN_SAID, None);
    let answer = world.ask(&Ask::tokens(&prompt()[..400]).remote_preferred().max(8));
    assert_eq!(answer.record.route.as_ref().unwrap().prefill_site, "virginia");
    assert!(
        answer.record.fallbacks.is_empty(),
        "{:?}",
        answer.record.fallbacks
    );
}
