//! Data goes nowhere the residency answer denies, and stays nowhere it is only in transit.

use portolan_base::{BlockHash, InstanceName, ModelName, RequestId, SiteName, TenantKey, TenantName};
use portolan_gateway::receive::{BrokenOff, receive};
use portolan_ports::{KvOrder, OrderPurpose, Retention, TransferError};
use portolan_tests::world::{ACME, ADMIN, MODEL, record_of, shipped};
use portolan_tests::{Ask, Link, Oracle, World, oracle_folder};
use std::sync::Arc;
use std::time::{Duration, Instant};

const FAST: Link = Link {
    delay_ms: 0,
    rate_mbps: 0,
};

#[test]
fn a_transient_site_computes_and_keeps_nothing() {
    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    let case = Oracle::of("tiny-qwen3").prompts.remove(2);
    // acme's own data, restricted to nothing: every site is resident, and the second request finds KV in virginia.
    let ask = Ask::tokens(&case.prompt_ids).remote();
    world.ask(&ask);
    let kept = world.ask(&ask).record.kv.cached_tokens;
    assert_eq!(kept, 128, "a resident site keeps its KV");

    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    let config = r#"{"transient": {"eu": ["us"]}}"#;
    world
        .push(
            ADMIN,
            ("_platform", "residency"),
            &shipped("jurisdiction"),
            config,
        )
        .unwrap();
    let ask = Ask::tokens(&case.prompt_ids)
        .by(portolan_tests::world::GLOBEX)
        .remote();
    let answer = world.ask(&ask);
    assert_eq!(answer.tokens, case.greedy_ids);
    let virginia = world.host.site("virginia").unwrap();
    let blocks: Vec<u32> = virginia
        .gateway()
        .unwrap()
        .parts
        .engines
        .values()
        .map(|e| e.load().kv_used.0)
        .collect();
    assert_eq!(blocks, [0], "virginia kept nothing");
    let paris = world.host.site("paris").unwrap();
    assert!(
        paris
            .gateway()
            .unwrap()
            .parts
            .engines
            .values()
            .all(|e| e.load().kv_used.0 > 0),
        "paris is resident"
    );
}

#[test]
fn the_holder_asks_again_and_refuses_what_its_own_policy_denies() {
    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    let paris = world.host.site("paris").unwrap();
    let layout = {
        let engines = &paris.gateway().unwrap().parts.engines;
        engines.values().next().unwrap().describe().layout.clone()
    };
    let order = |jurisdiction: &str| KvOrder {
        as_of: paris.gateway().unwrap().parts.validity.place(),
        request: RequestId::from_client("r1").unwrap(),
        tenant: TenantName::new("acme").unwrap(),
        jurisdiction: jurisdiction.into(),
        user_class: "standard".into(),
        model: ModelName::new(MODEL).unwrap(),
        model_version: 1,
        instance: InstanceName::new("v1").unwrap(),
        tokens: (1..50).collect(),
        held: 0,
        retention: Retention::Keep,
        draw: Default::default(),
        fidelity: Default::default(),
        dependencies: Arc::default(),
        fetch_from: Default::default(),
        purpose: Default::default(),
    };
    let clock = portolan::system::SystemClock::start();
    let virginia = SiteName::new("virginia").unwrap();
    let pull = |jurisdiction| {
        let got = receive(paris.transport(), &virginia, order(jurisdiction), &layout, &clock);
        world.runtime.block_on(got)
    };
    let copy = |jurisdiction| {
        let order = KvOrder {
            tokens: (1..129).collect(),
            purpose: OrderPurpose::Fetch,
            ..order(jurisdiction)
        };
        let got = receive(paris.transport(), &virginia, order, &layout, &clock);
        world.runtime.block_on(got)
    };
    assert!(pull("").is_ok());
    for (jurisdiction, phrase) in [("eu", "denies this data to virginia"), ("", "holds 0 tokens")] {
        let refused = copy(jurisdiction).unwrap_err().error.to_string();
        assert!(refused.contains(phrase), "{refused}");
    }
    for (jurisdiction, phrase) in [
        ("eu", "denies this data to virginia"),
        ("us", "to paris"),
        ("mars", "mars"),
    ] {
        match pull(jurisdiction) {
            Err(BrokenOff {
                error: TransferError::Refused { detail, .. },
                ..
            }) => {
                assert!(detail.contains(phrase), "{detail}");
            }
            other => panic!("{jurisdiction}: {other:?}"),
        }
    }
}

#[test]
fn patient_data_stays_in_the_eu_however_hot_its_prefix_is_elsewhere() {
    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    let case = Oracle::of("tiny-qwen3").prompts.remove(2);
    let ask = Ask::tokens(&case.prompt_ids).remote_preferred();
    world.ask(&ask);
    let hot = world.ask(&ask).record;
    assert_eq!(
        (hot.route.unwrap().prefill_site.as_str(), hot.kv.cached_tokens),
        ("virginia", 128),
        "hot in Virginia"
    );

    let before = world.arrived();
    let mut body = ask.body(false);
    body["portolan"] = serde_json::json!({"jurisdiction": "eu"});
    let acme = world.client(ACME);
    let reply = acme.post("/v1/completions", &body).unwrap();
    assert_eq!(
        reply.body["choices"][0]["token_ids"],
        serde_json::json!(case.greedy_ids)
    );
    let id = reply.request_id.unwrap();
    let record = record_of(&acme, &id);
    assert_eq!(record.route.unwrap().prefill_site, "paris");
    assert!(
        record.fetches.is_empty() && record.kv.bytes_moved == 0,
        "nothing came from Virginia"
    );
    assert!(world.arrived() < before + 10_000, "and nothing crossed but pings");

    let path = format!("/v1/portolan/requests/{id}/residency");
    let told = acme.get(&path).unwrap().body;
    assert_eq!(told["jurisdiction"], "eu");
    let sites: Vec<_> = ["site", "placement", "platform", "tenant", "why"]
        .map(|key| told["sites"][1][key].clone())
        .into();
    let expected = serde_json::json!([
        "virginia",
        "denied",
        "denied",
        null,
        "the site lies outside the data's jurisdiction"
    ]);
    assert_eq!(serde_json::json!(sites), expected);
    assert_eq!(told["sites"][0]["placement"], "resident");
    assert!(
        world.client(portolan_tests::world::GLOBEX).get(&path).is_err(),
        "another tenant's request"
    );
    assert!(world.client(ADMIN).get(&path).is_ok());
}

/// Tokens of a tenant's prompt that Virginia thinks Paris' instance holds.
fn heard_in_virginia(world: &World, tenant: &str, prompt: &[u32]) -> u32 {
    let parts = &world.host.site("virginia").unwrap().gateway().unwrap().parts;
    let model = ModelName::new(MODEL).unwrap();
    let version = parts.models[&model].description.layout.model_version;
    let key = TenantKey::derive(&parts.secret, tenant, MODEL, version);
    parts.fleet.held(&model, &BlockHash::chain(&key, prompt))[0]
}

#[test]
fn another_jurisdiction_hears_nothing_of_what_is_held_for_the_eu() {
    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    let prompt = Oracle::of("tiny-qwen3").prompts.remove(2).prompt_ids;
    let globex = portolan_tests::world::GLOBEX;
    world.ask(&Ask::tokens(&prompt).by(globex).local());
    // Told after it: when Virginia has heard of this, it has heard all there is to hear of the other.
    world.ask(&Ask::tokens(&prompt).local());
    let until = Instant::now() + Duration::from_secs(20);
    while heard_in_virginia(&world, "acme", &prompt) == 0 {
        assert!(Instant::now() < until, "nothing is told");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(heard_in_virginia(&world, "globex", &prompt), 0, "bound to the EU");

    let config = r#"{"allow": {"eu": ["us"]}}"#;
    let slot = ("_platform", "residency");
    world.push(ADMIN, slot, &shipped("jurisdiction"), config).unwrap();
    while heard_in_virginia(&world, "globex", &prompt) == 0 {
        assert!(Instant::now() < until, "a policy that lets it is not followed");
        std::thread::sleep(Duration::from_millis(20));
    }
    let config = r#"{"transient": {"eu": ["us"]}}"#;
    world.push(ADMIN, slot, &shipped("jurisdiction"), config).unwrap();
    while heard_in_virginia(&world, "globex", &prompt) > 0 {
        assert!(Instant::now() < until, "it is still known");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(
        heard_in_virginia(&world, "acme", &prompt) > 0,
        "acme's data may lie anywhere"
    );
}

#[test]
fn no_prompt_is_in_a_record_or_in_metrics() {
    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    let secret: Vec<u32> = vec![1234, 1567, 1890, 1432, 1765, 1098, 1321];
    let answer = world.ask(&Ask::tokens(&secret).remote());
    let record = serde_json::to_string(&answer.record).unwrap();
    assert!(
        !record.contains("1567,1890") && !record.contains(&answer.text),
        "{record}"
    );
    let metrics = world.client(ACME).get("/metrics").unwrap().body.to_string();
    assert!(!metrics.contains("1567"), "{metrics}");
}
