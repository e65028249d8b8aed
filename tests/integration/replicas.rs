//! A prefix that is asked for often where it is not held is ordered as a copy, and requests then find it; what residency
//! forbids or nobody needs is not.

use portolan::client::Client;
use portolan::config::{Config, ReplicateConfig};
use portolan_base::{BlockHash, ModelName, TenantKey};
use portolan_tests::world::{ACME, ADMIN, GLOBEX, MODEL};
use portolan_tests::{Ask, Link, World, oracle_folder};
use serde_json::Value;

const FAST: Link = Link {
    delay_ms: 0,
    rate_mbps: 0,
};

const PROMPT: u32 = 1000;
const BLOCKS: u64 = 960;

fn prompt() -> Vec<u32> {
    (0..PROMPT).map(|i| (i * 4001 + 17) % 2000).collect()
}

fn world(model: &str, replicate: ReplicateConfig) -> World {
    World::start_changed(&oracle_folder(model), FAST, |config: &mut Config| {
        config.kv.replicate = Some(replicate);
        let instances = config.sites.iter_mut().flat_map(|site| &mut site.instances);
        instances.for_each(|instance| instance.kv_pool_mib = 64);
    })
}

/// acme's prompt was computed in virginia, and paris has been told so.
fn computed_in_virginia(world: &World) {
    let http = world.host.site("virginia").unwrap().http();
    let ask = Ask::tokens(&prompt()).local().max(1);
    Client::new(&format!("http://{http}"), ACME)
        .post("/v1/completions", &ask.body(false))
        .unwrap();
    world.wait("paris was told", || held_by(world, 1) >= BLOCKS);
}

/// Tokens of acme's prompt that paris thinks an instance holds.
fn held_by(world: &World, instance: usize) -> u64 {
    let paris = world.host.site("paris").unwrap().gateway().unwrap();
    let model = ModelName::new(MODEL).unwrap();
    let version = paris.parts.models[&model].description.layout.model_version;
    let key = TenantKey::derive(&paris.parts.secret, "acme", MODEL, version);
    let held = paris.parts.fleet.held(&model, &BlockHash::chain(&key, &prompt()));
    held[instance].into()
}

fn replicas(world: &World) -> Value {
    let stats = world.client(ADMIN).get("/v1/portolan/kv/stats").unwrap().body;
    stats["replicas"].clone()
}

fn count(world: &World, key: &str) -> u64 {
    replicas(world)[key].as_u64().unwrap()
}

#[test]
fn a_prefix_that_is_asked_for_often_is_copied_and_then_found() {
    // Of a hybrid model nothing stays where a prefill from abroad is only decoded.
    let world = world("tiny-qwen3_5", ReplicateConfig::default());
    let expected = world.ask(&Ask::tokens(&prompt()).local().by(GLOBEX)).tokens;
    computed_in_virginia(&world);
    let remote = Ask::tokens(&prompt()).remote();
    for asked in 1..=3 {
        assert_eq!(count(&world, "ordered"), 0, "before ask {asked}");
        let answer = world.ask(&remote);
        assert_eq!(answer.tokens, expected);
        assert_eq!(answer.record.kv.cached_tokens, 960, "virginia has it");
    }
    world.wait("a copy came", || count(&world, "made") == 1);
    let recent = replicas(&world)["recent"][0].clone();
    for (key, value) in [("tenant", "acme"), ("from_site", "virginia"), ("instance", "p1")] {
        assert_eq!(recent[key], value, "{recent}");
    }
    assert_eq!(
        (recent["tokens"].as_u64(), &recent["failed"]),
        (Some(BLOCKS), &Value::Null)
    );
    assert_eq!(recent["bytes"].as_u64(), Some(count(&world, "bytes")));
    world.wait("paris knows", || held_by(&world, 0) >= BLOCKS);

    let here = world.ask(&Ask::tokens(&prompt()).local());
    let kv = &here.record.kv;
    assert_eq!(here.tokens, expected);
    assert_eq!(
        (kv.bytes_moved, kv.cached_tokens, kv.computed_tokens),
        (0, 960, 39)
    );
    assert!(here.record.fetches.is_empty());
    assert_eq!((count(&world, "useful"), count(&world, "ordered")), (1, 1));
    let page = world.client(ADMIN).get("/metrics").unwrap().body;
    let page = page.as_str().unwrap();
    for line in [
        r#"portolan_kv_replicas_total{outcome="made"} 1"#,
        "portolan_kv_replicas_useful_total 1",
        "portolan_kv_replicas_under_way 0",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
}

#[test]
fn what_stays_here_anyway_and_what_is_held_nowhere_else_is_not_copied() {
    let world = world("tiny-qwen3", ReplicateConfig::default());
    computed_in_virginia(&world);
    for _ in 0..5 {
        // The decode site keeps a dense model's KV.
        world.ask(&Ask::tokens(&prompt()).remote());
        world.ask(&Ask::tokens(&prompt()[..400]).local().by(GLOBEX));
    }
    let replicas = replicas(&world);
    for key in ["ordered", "failed", "forbidden", "under_way"] {
        assert_eq!(replicas[key], 0, "{replicas}");
    }
}

#[test]
fn a_prefix_larger_than_the_budget_is_left_where_it_is() {
    let small = ReplicateConfig {
        mib_per_minute: 1,
        ..ReplicateConfig::default()
    };
    let world = world("tiny-qwen3_5", small);
    computed_in_virginia(&world);
    for _ in 0..4 {
        world.ask(&Ask::tokens(&prompt()).remote());
    }
    let replicas = replicas(&world);
    assert_eq!(
        (&replicas["ordered"], &replicas["bytes"]),
        (&0.into(), &0.into()),
        "{replicas}"
    );
    assert!(replicas["held_back"].as_u64() >= Some(1), "{replicas}");
}

#[test]
fn a_holder_that_dies_while_it_sends_a_copy_costs_nobody_anything() {
    let slow = Link {
        delay_ms: 1,
        rate_mbps: 8,
    };
    let mut world = World::start_changed(&oracle_folder("tiny-qwen3_5"), slow, |config| {
        config.kv.replicate = Some(ReplicateConfig {
            asks: 1,
            ..ReplicateConfig::default()
        });
        let instances = config.sites.iter_mut().flat_map(|site| &mut site.instances);
        instances.for_each(|instance| instance.kv_pool_mib = 64);
    });
    let expected = world.ask(&Ask::tokens(&prompt()).local().by(GLOBEX)).tokens;
    computed_in_virginia(&world);
    assert_eq!(world.ask(&Ask::tokens(&prompt()).remote()).tokens, expected);
    world.wait("a copy is under way", || count(&world, "under_way") == 1);
    world.runtime.block_on(world.host.kill("virginia"));
    world.wait("it was given up", || count(&world, "failed") == 1);
    assert_eq!(count(&world, "under_way"), 0);
    let answer = world.ask(&Ask::tokens(&prompt()).local());
    assert_eq!((answer.tokens, answer.record.status.as_str()), (expected, "ok"));
}
