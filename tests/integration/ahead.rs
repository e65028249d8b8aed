//! A conversation that goes back and forth between two sites finds its prefix at the next one before it comes there; what
//! may not go there does not.

use portolan::client::Client;
use portolan::config::{Config, PrewarmConfig};
use portolan_decide::PathRecord;
use portolan_tests::world::{ACME, ADMIN, record_of};
use portolan_tests::{Ask, Link, World, oracle_folder};
use serde_json::{Value, json};

const FAST: Link = Link {
    delay_ms: 0,
    rate_mbps: 0,
};

/// Tokens that each turn adds: more than four of the pool's blocks.
const TURN: u32 = 300;

fn world(model: &str) -> World {
    World::start_changed(&oracle_folder(model), FAST, |config: &mut Config| {
        config.kv.prewarm = Some(PrewarmConfig::default());
        let instances = config.sites.iter_mut().flat_map(|site| &mut site.instances);
        instances.for_each(|instance| instance.kv_pool_mib = 64);
    })
}

fn client(world: &World, site: &str, key: &str) -> Client {
    let http = world.host.site(site).unwrap().http();
    Client::new(&format!("http://{http}"), key)
}

/// The conversation's turn number `turn`, from 1, at a site.
fn turn(world: &World, site: &str, turn: u32, portolan: &Value) -> (Vec<u32>, PathRecord) {
    let prompt: Vec<u32> = (0..turn * TURN).map(|i| (i * 4001 + 17) % 2000).collect();
    let mut body = Ask::tokens(&prompt).local().max(4).body(false);
    body["portolan"] = portolan.clone();
    let client = client(world, site, ACME);
    let reply = client.post("/v1/completions", &body).unwrap();
    let tokens = serde_json::from_value(reply.body["choices"][0]["token_ids"].clone()).unwrap();
    let record = record_of(&client, reply.request_id.as_deref().unwrap());
    assert_eq!(record.status, "ok");
    (tokens, record)
}

fn prewarms(world: &World, site: &str, key: &str) -> u64 {
    let stats = client(world, site, ADMIN)
        .get("/v1/portolan/kv/stats")
        .unwrap()
        .body;
    stats["prewarms"][key].as_u64().unwrap()
}

/// Five turns, at paris, virginia, paris, virginia, paris.
fn back_and_forth(world: &World, portolan: &Value) {
    for (number, site) in (1..).zip(["paris", "virginia", "paris", "virginia", "paris"]) {
        turn(world, site, number, portolan);
        // The other site is told within a tenth of a second.
        std::thread::sleep(std::time::Duration::from_millis(250));
    }
}

fn goes_ahead(model: &str) {
    let talk = json!({"session": "talk"});
    let world = world(model);
    back_and_forth(&world, &talk);
    world.wait("the prefix went ahead", || prewarms(&world, "paris", "made") == 1);
    let (tokens, record) = turn(&world, "virginia", 6, &talk);
    let whole = 5 * TURN / 64 * 64;
    assert!(
        record.kv.cached_tokens >= whole,
        "all of the fifth turn is there, {whole} tokens: {:?}",
        record.kv
    );
    assert!(record.kv.computed_tokens < 2 * TURN, "{:?}", record.kv);
    world.wait("it is counted", || prewarms(&world, "virginia", "used") == 1);
    assert_eq!(prewarms(&world, "virginia", "foreseen"), 1);
    assert_eq!(
        prewarms(&world, "virginia", "moved"),
        3,
        "of the turns 2, 4 and 6"
    );
    let page = client(&world, "virginia", ADMIN).get("/metrics").unwrap().body;
    let page = page.as_str().unwrap();
    for line in [
        "portolan_prewarm_precision_permille 1000",
        "portolan_prewarm_recall_permille 333",
        r#"portolan_prewarms_arrived_total{use="used"} 1"#,
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
    // A site that never heard of the conversation gives the same answer.
    let fresh = World::start(&oracle_folder(model), FAST);
    assert_eq!(turn(&fresh, "virginia", 6, &talk).0, tokens);
}

#[test]
fn a_conversation_that_moves_is_computed_on_where_it_comes() {
    goes_ahead("tiny-qwen3");
}

#[test]
fn a_recurrent_state_goes_ahead_too() {
    goes_ahead("tiny-qwen3_5");
}

#[test]
fn what_may_not_go_there_is_neither_sent_nor_told() {
    let world = world("tiny-qwen3");
    for (number, site) in (1..).zip(["paris", "virginia"].repeat(3)) {
        let portolan = match site {
            "paris" => json!({"session": "talk", "jurisdiction": "eu"}),
            _ => json!({"session": "talk"}),
        };
        turn(&world, site, number, &portolan);
        std::thread::sleep(std::time::Duration::from_millis(250));
    }
    turn(
        &world,
        "paris",
        6,
        &json!({"session": "talk", "jurisdiction": "eu"}),
    );
    std::thread::sleep(std::time::Duration::from_millis(800));
    for key in ["made", "failed", "under_way", "bytes"] {
        assert_eq!(prewarms(&world, "paris", key), 0, "{key}");
    }
    assert_eq!(
        prewarms(&world, "virginia", "moved"),
        0,
        "virginia heard of no turn at paris"
    );
    assert!(
        prewarms(&world, "paris", "moved") >= 3,
        "paris heard of those at virginia"
    );
}

#[test]
fn nothing_is_watched_or_sent_unless_it_is_asked_for() {
    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    back_and_forth(&world, &json!({"session": "talk"}));
    let stats = client(&world, "paris", ADMIN)
        .get("/v1/portolan/kv/stats")
        .unwrap()
        .body;
    assert_eq!(stats["prewarms"], Value::Null);
}
