//! A host that is told to stop finishes what it began; one that is full says so.

use portolan_tests::world::{ACME, GLOBEX};
use portolan_tests::{Ask, Link, Oracle, World, oracle_folder};
use serde_json::Value;
use std::sync::mpsc::channel;

const FAST: Link = Link {
    delay_ms: 0,
    rate_mbps: 0,
};

#[test]
fn answers_under_way_finish_when_the_host_is_told_to_stop() {
    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    let case = Oracle::of("tiny-qwen3").prompts.remove(0);
    let (client, body) = (
        world.client(ACME),
        Ask::tokens(&case.prompt_ids).max(600).body(true),
    );
    let (began, begun) = channel();
    let asking = std::thread::spawn(move || {
        let (mut tokens, mut done) = (0, false);
        let streamed = client.stream("/v1/completions", &body, &mut |data| {
            began.send(()).ok();
            done |= data == "[DONE]";
            let event: Value = serde_json::from_str(data).unwrap_or_default();
            tokens += event["choices"][0]["token_ids"].as_array().map_or(0, Vec::len);
            true
        });
        streamed.map(|_| (tokens, done))
    });
    begun.recv().unwrap();
    let World { host, runtime, .. } = world;
    runtime.block_on(host.stop());
    assert_eq!(asking.join().unwrap().unwrap(), (600, true), "the stream was cut");
}

#[test]
fn a_tenant_that_fills_its_share_is_told_to_wait_and_others_are_served() {
    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    let case = Oracle::of("tiny-qwen3").prompts.remove(0);
    let site = world.host.site("paris").unwrap().gateway().unwrap();
    let acme = portolan_base::TenantName::new("acme").unwrap();
    let mut taken = Vec::new();
    while let Some(pass) = site.tenants.enter(&acme) {
        taken.push(pass);
    }
    let refused = world
        .try_ask(&Ask::tokens(&case.prompt_ids))
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("429") && refused.contains("too many requests"),
        "{refused}"
    );
    assert_eq!(
        world.ask(&Ask::tokens(&case.prompt_ids).by(GLOBEX)).tokens,
        case.greedy_ids
    );
    drop(taken);
    assert_eq!(world.ask(&Ask::tokens(&case.prompt_ids)).tokens, case.greedy_ids);
}
