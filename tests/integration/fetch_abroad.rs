//! Three sites: a prompt that tokyo holds is asked for at paris and prefilled at virginia. Virginia fetches from tokyo what
//! it lacks, where that is cheaper and allowed; the answer is the same in every case.

use portolan::client::Client;
use portolan::config::{Config, SimulatedWan};
use portolan_base::{
    BlockHash, InstanceName, ModelName, Provenance, RequestId, SiteName, TenantKey, TenantName,
};
use portolan_decide::{InstanceIndex, PathRecord};
use portolan_gateway::Site;
use portolan_gateway::receive::receive;
use portolan_ports::{KvOrder, OrderPurpose, Retention};
use portolan_tests::world::{ACME, ADMIN, GLOBEX, MODEL, record_of, shipped};
use portolan_tests::{Ask, Link, World, oracle_folder};
use portolan_transport::fault_proxy::{Direction, Fault, FaultKind};
use std::sync::Arc;

const FAST: Link = Link {
    delay_ms: 0,
    rate_mbps: 0,
};

/// What `PROMPT` tokens leave in whole blocks: the last token is never prefilled.
const PROMPT: u32 = 1000;
const BLOCKS: u32 = 960;

fn prompt() -> Vec<u32> {
    (0..PROMPT).map(|i| (i * 6007 + 5) % 2000).collect()
}

/// A third site, tokyo. Every link is said to be fast, but for the one from tokyo to paris: what tokyo holds is of use to
/// paris through virginia only.
fn with_tokyo(config: &mut Config) {
    let mut tokyo = config.sites[1].clone();
    tokyo.name = SiteName::new("tokyo").unwrap();
    tokyo.instances[0].name = InstanceName::new("t1").unwrap();
    config.sites.push(tokyo);
    let instances = config.sites.iter_mut().flat_map(|site| &mut site.instances);
    instances.for_each(|instance| instance.kv_pool_mib = 64);
    for (from, to) in [("tokyo", "virginia"), ("tokyo", "paris"), ("paris", "tokyo")] {
        let mut link = config.links[0].clone();
        link.from = SiteName::new(from).unwrap();
        link.to = SiteName::new(to).unwrap();
        config.links.push(link);
    }
    for link in &mut config.links {
        let slow = (link.from.as_str(), link.to.as_str()) == ("tokyo", "paris");
        link.capacity_mbps = if slow { 1 } else { 100_000 };
    }
}

fn world(model: &str) -> World {
    started(World::start_changed(&oracle_folder(model), FAST, with_tokyo))
}

/// The same, where the link from tokyo to virginia really carries so many Mbit/s.
fn world_with_rate(mbps: u64) -> World {
    started(World::start_changed(
        &oracle_folder("tiny-qwen3"),
        FAST,
        |config| {
            with_tokyo(config);
            let simulate = SimulatedWan {
                one_way_delay_ms: 1,
                rate_mbps: Some(mbps),
            };
            config.links[2].simulate = Some(simulate);
        },
    ))
}

fn started(world: World) -> World {
    world.wait("every site reported its load", || {
        let fleet = world.client(ADMIN).get("/v1/portolan/fleet").unwrap().body;
        let instances = fleet["instances"].as_array().unwrap();
        instances.len() == 3 && instances.iter().all(|instance| instance["ready"] == true)
    });
    world
}

fn gateway<'w>(world: &'w World, site: &str) -> &'w Arc<Site> {
    world.host.site(site).unwrap().gateway().unwrap()
}

/// Tokens of acme's prompt that `site` thinks each instance holds: of p1, v1, t1.
fn held(world: &World, site: &str) -> Vec<u32> {
    let site = gateway(world, site);
    let model = ModelName::new(MODEL).unwrap();
    site.parts.fleet.held(&model, &chain(site))
}

/// Whose the prompt is.
fn acme() -> Provenance {
    Provenance::of(
        TenantName::new("acme").unwrap(),
        ModelName::new(MODEL).unwrap(),
        1,
    )
}

fn chain(site: &Site) -> Vec<BlockHash> {
    let version = site.parts.models[&ModelName::new(MODEL).unwrap()]
        .description
        .layout
        .model_version;
    let key = TenantKey::derive(&site.parts.secret, "acme", MODEL, version);
    BlockHash::chain(&key, &prompt())
}

/// acme's prompt was computed in tokyo, for a request of tokyo's own, and the others have been told so.
fn computed_in_tokyo(world: &World) {
    let http = world.host.site("tokyo").unwrap().http();
    let ask = Ask::tokens(&prompt()).local().max(1);
    Client::new(&format!("http://{http}"), ACME)
        .post("/v1/completions", &ask.body(false))
        .unwrap();
    for site in ["paris", "virginia"] {
        world.wait("it was told", || held(world, site)[2] >= BLOCKS);
    }
}

fn remote() -> Ask {
    Ask::tokens(&prompt()).remote()
}

/// The tokens that one site alone answers with.
fn expected(world: &World) -> Vec<u32> {
    world.ask(&Ask::tokens(&prompt()).local().by(GLOBEX)).tokens
}

fn prefill_site(record: &PathRecord) -> &str {
    &record.route.as_ref().expect("something served it").prefill_site
}

#[test]
fn a_prefill_abroad_fetches_what_a_third_site_holds() {
    for model in ["tiny-qwen3", "tiny-qwen3_5"] {
        let world = world(model);
        let expected = expected(&world);
        computed_in_tokyo(&world);
        let answer = world.ask(&remote());
        let record = &answer.record;
        assert_eq!(
            (prefill_site(record), &answer.tokens),
            ("virginia", &expected),
            "{model}"
        );
        assert!(record.fallbacks.is_empty(), "{model}: {:?}", record.fallbacks);
        let [fetch] = record.fetches.as_slice() else {
            panic!("{model}: one fetch: {record:?}")
        };
        assert_eq!((fetch.site.as_str(), fetch.instance.as_str()), ("tokyo", "t1"));
        assert_eq!(
            (fetch.to_site.as_str(), fetch.to_instance.as_str()),
            ("virginia", "v1")
        );
        assert_eq!((fetch.wanted_tokens, fetch.tokens), (BLOCKS, BLOCKS), "{model}");
        assert!(
            fetch.bytes > 0 && record.kv.bytes_moved > fetch.bytes,
            "{record:?}"
        );
        let kv = &record.kv;
        assert_eq!(
            (kv.cached_tokens, kv.computed_tokens),
            (BLOCKS, PROMPT - 1 - BLOCKS)
        );

        let again = world.ask(&remote());
        assert_eq!(again.tokens, expected);
        assert!(
            again.record.fetches.is_empty(),
            "virginia kept it: {:?}",
            again.record.fetches
        );
    }
}

#[test]
fn a_third_site_that_residency_denies_is_not_asked() {
    let world = world("tiny-qwen3");
    computed_in_tokyo(&world);
    let config = r#"{"deny_sites": ["tokyo"]}"#;
    world
        .push(ACME, ("acme", "residency"), &shipped("jurisdiction"), config)
        .unwrap();
    let answer = world.ask(&remote());
    assert_eq!(prefill_site(&answer.record), "virginia");
    assert!(answer.record.fetches.is_empty(), "{:?}", answer.record.fetches);
    assert_eq!(answer.record.kv.computed_tokens, PROMPT - 1);
    assert_eq!(answer.tokens, expected(&world));

    // An order that claims to be allowed to: virginia asks its own policies.
    let paris = world.host.site("paris").unwrap();
    let layout = Arc::clone(
        &gateway(&world, "paris").parts.models[&ModelName::new(MODEL).unwrap()]
            .description
            .layout,
    );
    let other: Vec<u32> = prompt().into_iter().take(999).collect();
    world.runtime.block_on(async {
        let order = KvOrder {
            as_of: gateway(&world, "paris").parts.validity.place(),
            request: RequestId::from_client("forged").unwrap(),
            tenant: TenantName::new("acme").unwrap(),
            jurisdiction: String::new(),
            user_class: "standard".into(),
            model: ModelName::new(MODEL).unwrap(),
            model_version: layout.model_version,
            instance: InstanceName::new("v1").unwrap(),
            tokens: other.into(),
            held: 0,
            retention: Retention::Keep,
            draw: Default::default(),
            fidelity: Default::default(),
            dependencies: Arc::default(),
            fetch_from: [SiteName::new("tokyo").unwrap()].into(),
            purpose: OrderPurpose::Serve,
        };
        // What virginia computed for the request above is forgotten, so that a fetch would pay again.
        let forget = serde_json::json!({ "all": true });
        let http = world.host.site("virginia").unwrap().http();
        let evict = move || {
            Client::new(&format!("http://{http}"), ADMIN)
                .post("/v1/portolan/kv/evict", &forget)
                .unwrap()
        };
        tokio::task::spawn_blocking(evict).await.unwrap();
        let clock = portolan::system::SystemClock::start();
        let virginia = SiteName::new("virginia").unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        loop {
            let got = receive(paris.transport(), &virginia, order.clone(), &layout, &clock).await;
            let report = got.unwrap().report.prefill;
            if let [fetch] = report.fetches.as_slice() {
                let failed = fetch.failed.as_deref().unwrap();
                assert!(failed.contains("residency answer"), "{failed}");
                assert_eq!((fetch.bytes, fetch.tokens), (0, 0));
                break;
            }
            // Its index may not yet know what was forgotten.
            assert!(std::time::Instant::now() < deadline, "{report:?}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
}

#[test]
fn a_third_site_that_dies_while_it_sends_costs_latency_only() {
    let mut world = world_with_rate(8);
    let expected = expected(&world);
    computed_in_tokyo(&world);
    let (client, body) = (world.client(ACME), remote().body(false));
    let sent = |world: &World| {
        let proxy = world.host.proxy("tokyo", "virginia").unwrap();
        proxy.forwarded(Direction::ToClient)
    };
    let before = sent(&world);
    let asking = std::thread::spawn(move || client.post("/v1/completions", &body));
    world.wait("some KV left tokyo", || sent(&world) > before + 60_000);
    world.runtime.block_on(world.host.kill("tokyo"));
    let reply = asking.join().unwrap().unwrap();
    let tokens: Vec<u32> = serde_json::from_value(reply.body["choices"][0]["token_ids"].clone()).unwrap();
    assert_eq!(tokens, expected);
    let record = record_of(&world.client(ACME), reply.request_id.as_deref().unwrap());
    assert_eq!(
        (record.status.as_str(), prefill_site(&record)),
        ("ok", "virginia")
    );
    let fetch = &record.fetches[0];
    assert!(fetch.failed.is_some() && fetch.tokens < BLOCKS, "{fetch:?}");
    assert_eq!(
        record.kv.computed_tokens,
        PROMPT - 1 - fetch.tokens,
        "the rest was computed"
    );
    assert_eq!(record.fallbacks[0].stage, "fetch");
}

#[test]
fn a_bit_that_flips_between_two_other_sites_changes_no_token() {
    let world = world_with_rate(1000);
    let expected = expected(&world);
    computed_in_tokyo(&world);
    let proxy = world.host.proxy("tokyo", "virginia").unwrap();
    proxy.inject(Fault {
        connection: None,
        direction: Direction::ToClient,
        after: 3_000,
        kind: FaultKind::FlipBit(3),
    });
    let answer = world.ask(&remote());
    assert_eq!(proxy.pending(), 0, "the bit was flipped");
    assert_eq!(answer.tokens, expected);
    assert_eq!(answer.record.fetches[0].tokens, BLOCKS);
}

#[test]
fn the_next_best_holder_is_asked_when_the_first_has_nothing() {
    let world = started(World::start_changed(
        &oracle_folder("tiny-qwen3"),
        FAST,
        |config| {
            with_tokyo(config);
            // Paris is the better one to fetch from, by more than round trips differ on a busy machine.
            config.links[2].capacity_mbps = 300;
        },
    ));
    let expected = expected(&world);
    computed_in_tokyo(&world);
    let virginia = gateway(&world, "virginia");
    // Virginia takes paris to hold it, which is not so.
    virginia
        .parts
        .fleet
        .predict(&[InstanceIndex(0)], &chain(virginia), &acme());
    let http = world.host.site("virginia").unwrap().http();
    let client = Client::new(&format!("http://{http}"), ACME);
    let reply = client
        .post("/v1/completions", &Ask::tokens(&prompt()).local().body(false))
        .unwrap();
    let tokens: Vec<u32> = serde_json::from_value(reply.body["choices"][0]["token_ids"].clone()).unwrap();
    assert_eq!(tokens, expected);
    let record = record_of(&client, reply.request_id.as_deref().unwrap());
    let [first, second] = record.fetches.as_slice() else {
        panic!("two were asked: {record:?}")
    };
    assert_eq!((first.site.as_str(), first.tokens), ("paris", 0));
    assert!(
        first.failed.as_deref().unwrap().contains("holds 0 tokens"),
        "{first:?}"
    );
    assert_eq!(
        (second.site.as_str(), second.tokens, &second.failed),
        ("tokyo", BLOCKS, &None)
    );
    assert_eq!(record.fallbacks[0].to, "asking tokyo/t1");
    assert_eq!(record.kv.computed_tokens, PROMPT - 1 - BLOCKS);
}
