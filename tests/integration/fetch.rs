//! The beginning of a prompt that another site holds is fetched instead of computed, when that is cheaper, allowed and
//! works; the answer is the same in every case.

use portolan::client::Client;
use portolan::config::Config;
use portolan_base::{BlockHash, ModelName, TenantKey};
use portolan_decide::PathRecord;
use portolan_tests::world::{ACME, GLOBEX, MODEL, record_of, shipped};
use portolan_tests::{Ask, Link, World, oracle_folder};

const FAST: Link = Link {
    delay_ms: 0,
    rate_mbps: 0,
};

/// What `PROMPT` tokens leave in whole blocks: the last token is never prefilled.
const PROMPT: u32 = 1000;
const BLOCKS: u32 = 960;

fn prompt() -> Vec<u32> {
    (0..PROMPT).map(|i| (i * 7919 + 11) % 2000).collect()
}

/// Links that are said to be so fast that no model is too small for a fetch to pay, and pools with room for states.
fn eager(config: &mut Config) {
    config
        .links
        .iter_mut()
        .for_each(|link| link.capacity_mbps = 100_000);
    let instances = config.sites.iter_mut().flat_map(|site| &mut site.instances);
    instances.for_each(|instance| instance.kv_pool_mib = 64);
}

/// acme's prompt was computed in virginia, for a request of virginia's own, and paris has been told so.
fn computed_in_virginia(world: &World) {
    let http = world.host.site("virginia").unwrap().http();
    let client = Client::new(&format!("http://{http}"), ACME);
    let ask = Ask::tokens(&prompt()).local().max(1);
    client.post("/v1/completions", &ask.body(false)).unwrap();
    let paris = world.host.site("paris").unwrap().gateway().unwrap();
    let model = ModelName::new(MODEL).unwrap();
    let version = paris.parts.models[&model].description.layout.model_version;
    let key = TenantKey::derive(&paris.parts.secret, "acme", MODEL, version);
    let chain = BlockHash::chain(&key, &prompt());
    world.wait("paris was told", || {
        paris.parts.fleet.held(&model, &chain).iter().max() >= Some(&BLOCKS)
    });
}

fn fallback_of(record: &PathRecord) -> (&str, &str) {
    let found = record.fallbacks.iter().find(|fallback| fallback.stage == "fetch");
    let found = found.unwrap_or_else(|| panic!("no fallback of a fetch: {record:?}"));
    (&found.to, &found.reason)
}

#[test]
fn what_another_site_computed_is_fetched_and_gives_the_same_tokens() {
    for model in ["tiny-qwen3", "tiny-qwen3_5", "tiny-qwen3_5-h128"] {
        let world = World::start_changed(&oracle_folder(model), FAST, eager);
        let ask = Ask::tokens(&prompt()).local();
        let alone = world.ask(&ask.clone().by(GLOBEX));
        assert_eq!((alone.record.kv.bytes_moved, alone.record.fetches.len()), (0, 0));
        computed_in_virginia(&world);

        let fetched = world.ask(&ask);
        let record = &fetched.record;
        assert_eq!(fetched.tokens, alone.tokens, "{model}");
        assert!(record.fallbacks.is_empty(), "{model}: {:?}", record.fallbacks);
        let [fetch] = record.fetches.as_slice() else {
            panic!("{model}: one fetch: {record:?}")
        };
        assert_eq!((fetch.site.as_str(), fetch.instance.as_str()), ("virginia", "v1"));
        assert_eq!((fetch.wanted_tokens, fetch.tokens), (BLOCKS, BLOCKS), "{model}");
        assert_eq!(fetch.bytes, record.kv.bytes_moved, "nothing else crossed");
        assert!(fetch.bytes > 0 && fetch.took_ms > 0.0 && fetch.estimated_ms < fetch.computing_ms);
        if model == "tiny-qwen3" {
            assert_eq!(fetch.bytes, u64::from(BLOCKS) * 2048);
        }
        let kv = &record.kv;
        assert_eq!(
            (kv.cached_tokens, kv.computed_tokens),
            (BLOCKS, PROMPT - 1 - BLOCKS)
        );

        let again = world.ask(&ask);
        assert_eq!(again.tokens, alone.tokens, "{model}");
        assert_eq!(
            (again.record.fetches.len(), again.record.kv.bytes_moved),
            (0, 0),
            "it is here"
        );
    }
}

#[test]
fn only_what_is_missing_is_fetched() {
    let world = World::start_changed(&oracle_folder("tiny-qwen3"), FAST, eager);
    let beginning = Ask::tokens(&prompt()[..257]).local();
    assert_eq!(world.ask(&beginning).record.kv.computed_tokens, 256);
    computed_in_virginia(&world);
    let ask = Ask::tokens(&prompt()).local();
    let fetched = world.ask(&ask);
    let moved = fetched.record.fetches[0].bytes;
    assert_eq!(moved, u64::from(BLOCKS - 256) * 2048);
    assert_eq!(fetched.record.kv.cached_tokens, BLOCKS);
    assert_eq!(fetched.tokens, world.ask(&ask.by(GLOBEX)).tokens);
}

#[test]
fn what_residency_denies_is_computed_and_no_byte_of_it_moves() {
    let world = World::start_changed(&oracle_folder("tiny-qwen3"), FAST, eager);
    computed_in_virginia(&world);
    let config = r#"{"deny_sites": ["virginia"]}"#;
    world
        .push(ACME, ("acme", "residency"), &shipped("jurisdiction"), config)
        .unwrap();
    let ask = Ask::tokens(&prompt()).local();
    let computed = world.ask(&ask);
    let kv = &computed.record.kv;
    assert_eq!((kv.bytes_moved, kv.computed_tokens), (0, PROMPT - 1));
    assert!(computed.record.fetches.is_empty());
    assert_eq!(computed.tokens, world.ask(&ask.by(GLOBEX)).tokens);
}

#[test]
fn a_holder_that_is_killed_while_it_sends_costs_latency_only() {
    // 1.9 MB on this link: two seconds, so that there is a middle to kill in.
    let slow = Link {
        delay_ms: 1,
        rate_mbps: 8,
    };
    let mut world = World::start_changed(&oracle_folder("tiny-qwen3"), slow, eager);
    let ask = Ask::tokens(&prompt()).local();
    let expected = world.ask(&ask.clone().by(GLOBEX)).tokens;
    computed_in_virginia(&world);
    let (client, body) = (world.client(ACME), ask.body(false));
    let before = world.arrived();
    let asking = std::thread::spawn(move || client.post("/v1/completions", &body));
    world.wait("some KV arrived", || world.arrived() > before + 60_000);
    world.runtime.block_on(world.host.kill("virginia"));
    let reply = asking.join().unwrap().unwrap();
    let tokens: Vec<u32> = serde_json::from_value(reply.body["choices"][0]["token_ids"].clone()).unwrap();
    assert_eq!(tokens, expected);
    let record = record_of(&world.client(ACME), reply.request_id.as_deref().unwrap());
    let came = record.fetches[0].tokens;
    assert!(fallback_of(&record).0.contains("computing"), "{record:?}");
    assert_eq!((record.status.as_str(), came % 64), ("ok", 0));
    assert_eq!(record.kv.computed_tokens, PROMPT - 1 - came);
}

/// 32 Mbit/s carry about half of the prompt's KV in the 250 ms that a fetch this fast is waited for.
#[test]
fn of_a_fetch_that_is_late_what_came_whole_is_kept_and_the_rest_computed() {
    let slow = Link {
        delay_ms: 1,
        rate_mbps: 32,
    };
    for (model, partial) in [("tiny-qwen3", true), ("tiny-qwen3_5", false)] {
        let world = World::start_changed(&oracle_folder(model), slow, eager);
        computed_in_virginia(&world);
        let ask = Ask::tokens(&prompt()).local();
        let answer = world.ask(&ask);
        let (fetch, kv) = (&answer.record.fetches[0], &answer.record.kv);
        let reason = fetch
            .failed
            .as_deref()
            .unwrap_or_else(|| panic!("{model}: {fetch:?}"));
        assert!(reason.contains("did not come within 250ms"), "{model}: {reason}");
        assert_eq!(
            fetch.tokens > 0,
            partial,
            "states are of the whole length: {model}: {fetch:?}"
        );
        assert!(
            fetch.tokens < BLOCKS && fetch.tokens.is_multiple_of(64),
            "{model}: {fetch:?}"
        );
        assert_eq!(
            (kv.cached_tokens, kv.computed_tokens),
            (fetch.tokens, PROMPT - 1 - fetch.tokens)
        );
        let expected = world.ask(&ask.clone().by(GLOBEX)).tokens;
        assert_eq!(answer.tokens, expected, "{model}");
        assert_eq!(world.ask(&ask).tokens, expected, "{model}: from what was kept");
    }
}

#[test]
fn a_fetch_that_takes_much_longer_than_thought_is_given_up() {
    let slow = Link {
        delay_ms: 1,
        rate_mbps: 1,
    };
    let world = World::start_changed(&oracle_folder("tiny-qwen3"), slow, eager);
    computed_in_virginia(&world);
    let ask = Ask::tokens(&prompt()).local();
    let answer = world.ask(&ask);
    let record = &answer.record;
    assert!(
        fallback_of(record).1.contains("did not come within 250ms"),
        "{record:?}"
    );
    let fetch = &record.fetches[0];
    assert!(fetch.took_ms >= 250.0 && fetch.tokens == 0, "{fetch:?}");
    assert_eq!(fetch.bytes, record.kv.bytes_moved, "what came in vain is counted");
    assert_eq!(record.kv.computed_tokens, PROMPT - 1);
    assert_eq!(answer.tokens, world.ask(&ask.by(GLOBEX)).tokens);
}
