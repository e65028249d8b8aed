//! A site of three is emptied: what it is asked for is at the sites that take over, as far as residency lets it.

use portolan::client::Client;
use portolan::config::{Config, SimulatedWan, SiteConfig};
use portolan_base::{InstanceName, SiteName};
use portolan_tests::world::{ACME, ADMIN, GLOBEX, record_of};
use portolan_tests::{Ask, Link, World, oracle_folder};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const FAST: Link = Link {
    delay_ms: 0,
    rate_mbps: 0,
};

const PROMPT: u32 = 1000;
const BLOCKS: u32 = 960;

fn prompt(salt: u32) -> Vec<u32> {
    (0..PROMPT).map(|i| (i * 4001 + 17 + salt * 77) % 2000).collect()
}

/// Paris and munich in the EU, virginia; each reaches each.
fn world(model: &str, change: impl FnOnce(&mut Config)) -> World {
    let world = World::start_changed(&oracle_folder(model), FAST, |config| {
        let mut munich = config.sites[0].clone();
        munich.name = SiteName::new("munich").unwrap();
        munich.instances[0].name = InstanceName::new("m1").unwrap();
        config.sites.push(munich);
        let instances = config.sites.iter_mut().flat_map(|site| &mut site.instances);
        instances.for_each(|instance| instance.kv_pool_mib = 64);
        for (from, to) in [
            ("munich", "paris"),
            ("paris", "munich"),
            ("munich", "virginia"),
            ("virginia", "munich"),
        ] {
            let mut link = config.links[0].clone();
            link.from = SiteName::new(from).unwrap();
            link.to = SiteName::new(to).unwrap();
            config.links.push(link);
        }
        change(config);
    });
    for site in ["paris", "munich", "virginia"] {
        world.wait("every site hears of the others", || {
            let fleet = client(&world, site, ADMIN)
                .get("/v1/portolan/fleet")
                .unwrap()
                .body;
            let instances = fleet["instances"].as_array().unwrap();
            instances.len() == 3 && instances.iter().all(|instance| instance["ready"] == true)
        });
    }
    world
}

fn client(world: &World, site: &str, key: &str) -> Client {
    let http = world.host.site(site).unwrap().http();
    Client::new(&format!("http://{http}"), key)
}

/// Asks a site; gives the tokens of the prompt that were cached, those that were fetched, and the answer's.
fn ask(world: &World, site: &str, key: &str, salt: u32) -> (u32, u32, Vec<u32>) {
    let client = client(world, site, key);
    let body = Ask::tokens(&prompt(salt)).local().max(4).body(false);
    let reply = client.post("/v1/completions", &body).unwrap();
    let record = record_of(&client, reply.request_id.as_deref().unwrap());
    let fetched = record.fetches.iter().map(|fetch| fetch.tokens).sum();
    let tokens = serde_json::from_value(reply.body["choices"][0]["token_ids"].clone()).unwrap();
    (record.kv.cached_tokens, fetched, tokens)
}

/// Empties paris; what it says of itself once nothing is left to try.
fn emptied(world: &World, order: &Value) -> Value {
    let paris = client(world, "paris", ADMIN);
    paris.post("/v1/portolan/site/evacuate", order).unwrap();
    let begun = Instant::now();
    loop {
        let told = paris.get("/v1/portolan/site").unwrap().body;
        if told["evacuation"]["ended"] == true {
            return told;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{told}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_a_site_is_asked_for_is_elsewhere_once_it_is_emptied() {
    // Of a hybrid model nothing stays where a prefill from abroad is only decoded, and states move too.
    for model in ["tiny-qwen3", "tiny-qwen3_5"] {
        let world = world(model, |_| {});
        let expected: Vec<_> = [1, 2].map(|salt| ask(&world, "paris", GLOBEX, salt).2).into();
        for salt in [1, 1, 2] {
            ask(&world, "paris", ACME, salt);
        }
        let told = emptied(&world, &json!({"reason": "power"}));
        let evacuation = &told["evacuation"];
        assert_eq!(
            (&told["service"], &told["idle"]),
            (&json!("draining"), &json!(true)),
            "{told}"
        );
        assert_eq!(evacuation["moved"], 4, "{told}");
        assert_eq!(evacuation["not_moved"], json!([]), "{told}");
        assert_eq!(evacuation["tokens"], 4 * BLOCKS, "{told}");
        // globex' data stays in the EU: munich alone may have it. acme's is at either.
        let at = |site, key, salt| {
            let (cached, fetched, tokens) = ask(&world, site, key, salt);
            assert_eq!(tokens, expected[salt as usize - 1], "{site}");
            cached - fetched
        };
        for salt in [1, 2] {
            assert_eq!(at("munich", GLOBEX, salt), BLOCKS, "{told}");
            let here = [at("munich", ACME, salt), at("virginia", ACME, salt)];
            assert!(here.contains(&BLOCKS), "{here:?}");
        }
        let log = client(&world, "paris", ADMIN)
            .get("/v1/portolan/audit")
            .unwrap()
            .body;
        let line = &log["data"][0];
        assert_eq!(
            (&line["action"], &line["reason"]),
            (&json!("instance.drain"), &json!("power")),
            "{line}"
        );
    }
}

#[test]
fn what_cannot_be_moved_is_named_with_the_reason() {
    let world = world("tiny-qwen3", |config| {
        let lonely = |site: &mut SiteConfig| {
            if site.name.as_str() == "munich" {
                site.jurisdiction = "ch".to_owned();
            }
        };
        config.sites.iter_mut().for_each(lonely);
    });
    ask(&world, "paris", GLOBEX, 1);
    ask(&world, "paris", ACME, 1);
    let told = emptied(&world, &json!({"mib": 0}));
    let evacuation = &told["evacuation"];
    assert_eq!(
        (&evacuation["moved"], &evacuation["bytes"]),
        (&json!(0), &json!(0)),
        "{told}"
    );
    let not_moved = evacuation["not_moved"].as_array().unwrap();
    let why = |tenant: &str| {
        let one = not_moved
            .iter()
            .find(|one| one["tenant"] == tenant)
            .expect("it is named");
        assert_eq!(
            (one["tokens"].as_u64(), one["asks"].as_u64()),
            (Some(u64::from(BLOCKS)), Some(1))
        );
        let block = one["block"].as_str().unwrap();
        let shown = client(&world, "paris", ADMIN).get(&format!("/v1/portolan/kv/blocks/{block}"));
        assert_eq!(shown.unwrap().body["data"][0]["tenant"], tenant);
        one["why"].as_str().unwrap().to_owned()
    };
    assert!(why("globex").contains("residency answer"), "{told}");
    assert!(why("acme").contains("left of the bound"), "{told}");

    // Back, and emptied again with room for it.
    client(&world, "paris", ADMIN)
        .post("/v1/portolan/site/return", &json!({}))
        .unwrap();
    assert_eq!(ask(&world, "paris", ACME, 1).0, BLOCKS);
    let told = emptied(&world, &json!({}));
    assert_eq!(told["evacuation"]["moved"], 1, "{told}");
    assert_eq!(
        told["evacuation"]["not_moved"].as_array().unwrap().len(),
        1,
        "{told}"
    );
    let again = emptied(&world, &json!({}));
    assert_eq!(again["evacuation"]["there_already"], 1, "{again}");
}

#[test]
fn the_time_bounds_what_is_moved() {
    let slow = |config: &mut Config| {
        for link in &mut config.links {
            link.simulate = Some(SimulatedWan {
                one_way_delay_ms: 1,
                rate_mbps: Some(1),
            });
        }
    };
    let world = world("tiny-qwen3", slow);
    for salt in 0..6 {
        ask(&world, "paris", ACME, salt);
    }
    let begun = Instant::now();
    let told = emptied(&world, &json!({"within_s": 2}));
    assert!(begun.elapsed() < Duration::from_secs(20), "{told}");
    let evacuation = &told["evacuation"];
    let not_moved = evacuation["not_moved"].as_array().unwrap();
    assert_eq!(evacuation["prefixes"], 6, "{told}");
    assert!(!not_moved.is_empty(), "{told}");
    assert_eq!(
        evacuation["moved"].as_u64().unwrap() + not_moved.len() as u64,
        6,
        "{told}"
    );
    assert!(
        not_moved
            .iter()
            .any(|one| one["why"].as_str().unwrap().contains("the time was over")),
        "{told}"
    );
    assert_eq!(told["service"], "draining");
}
