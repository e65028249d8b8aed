//! A request crosses two sites, and its answer is token for token what the reference implementation says: wherever
//! the prompt was computed, however much of it was cached, whatever happened on the way.

use portolan_decide::PathRecord;
use portolan_tests::world::{ACME, GLOBEX, record_of};
use portolan_tests::{Ask, Link, Oracle, World, oracle_folder};
use portolan_transport::fault_proxy::{Direction, Fault, FaultKind};

const FAST: Link = Link {
    delay_ms: 1,
    rate_mbps: 0,
};

fn prefill_site(record: &PathRecord) -> &str {
    record.route.as_ref().map_or("-", |route| &route.prefill_site)
}

#[test]
fn the_answer_is_the_same_here_there_and_half_cached() {
    for model in ["tiny-qwen3", "tiny-qwen3_5", "tiny-qwen3_5-h128"] {
        let world = World::start(&oracle_folder(model), FAST);
        for case in Oracle::of(model).prompts {
            let ask = Ask::tokens(&case.prompt_ids);
            let there = world.ask(&ask.clone().remote());
            assert_eq!(there.tokens, case.greedy_ids, "{model}, prefill there");
            assert_eq!(prefill_site(&there.record), "virginia");
            assert!(there.record.kv.bytes_moved > 0, "{:?}", there.record.kv);

            let here = world.ask(&ask.clone().by(GLOBEX).local());
            assert_eq!(here.tokens, case.greedy_ids, "{model}, prefill here");
            assert_eq!(
                (prefill_site(&here.record), here.record.kv.bytes_moved),
                ("paris", 0)
            );
            assert_eq!(here.record.kv.cached_tokens, 0, "another tenant's KV was used");

            let again = world.ask(&ask.by(GLOBEX).local());
            assert_eq!(again.tokens, case.greedy_ids, "{model}, half cached");
            // The last token is always computed, and only whole blocks of 64 are kept.
            let reusable = (case.prompt_ids.len() as u32 - 1) / 64 * 64;
            assert_eq!(again.record.kv.cached_tokens, reusable);
        }
    }
}

#[test]
fn kv_that_crossed_is_reused_at_home_and_only_the_rest_crosses_again() {
    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    let case = Oracle::of("tiny-qwen3").prompts.remove(2);
    let ask = Ask::tokens(&case.prompt_ids);
    let first = world.ask(&ask.clone().remote());
    let second = world.ask(&ask.clone().remote());
    assert_eq!(
        (&first.tokens, &second.tokens),
        (&case.greedy_ids, &case.greedy_ids)
    );
    assert!(
        second.record.kv.bytes_moved < first.record.kv.bytes_moved,
        "only the increment crosses"
    );
    let home = world.ask(&ask.local());
    assert_eq!(home.tokens, case.greedy_ids);
    assert_eq!(home.record.kv.cached_tokens, 128);
}

#[test]
fn a_flipped_bit_on_the_wire_is_noticed_and_costs_a_resend_only() {
    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    let case = Oracle::of("tiny-qwen3").prompts.remove(2);
    let proxy = world
        .host
        .proxy("virginia", "paris")
        .expect("the link is simulated");
    // 3 kB into a direction is inside the payload of a lane's first chunk, which has 32 kB.
    let after = 3_000;
    proxy.inject(Fault {
        connection: None,
        direction: Direction::ToClient,
        after,
        kind: FaultKind::FlipBit(3),
    });
    let answer = world.ask(&Ask::tokens(&case.prompt_ids).remote());
    assert_eq!(proxy.pending(), 0, "the bit was flipped");
    assert_eq!(answer.tokens, case.greedy_ids);
    assert_eq!(
        prefill_site(&answer.record),
        "virginia",
        "{:?}",
        answer.record.fallbacks
    );
    assert_eq!(answer.record.kv.chunks_resent, 1);
}

#[test]
fn a_prefill_site_killed_mid_transfer_costs_latency_only() {
    // 137 tokens of KV are 280 kB: half a second on this link, so that there is a middle to kill in.
    let mut world = World::start(
        &oracle_folder("tiny-qwen3"),
        Link {
            delay_ms: 5,
            rate_mbps: 4,
        },
    );
    let case = Oracle::of("tiny-qwen3").prompts.remove(2);
    let (client, body) = (
        world.client(ACME),
        Ask::tokens(&case.prompt_ids).remote_preferred().body(false),
    );
    let before = world.arrived();
    let asking = std::thread::spawn(move || client.post("/v1/completions", &body));
    world.wait("some KV arrived", || world.arrived() > before + 40_000);
    world.runtime.block_on(world.host.kill("virginia"));
    let reply = asking.join().unwrap().unwrap();
    let tokens: Vec<u32> = serde_json::from_value(reply.body["choices"][0]["token_ids"].clone()).unwrap();
    assert_eq!(tokens, case.greedy_ids);
    let record = record_of(&world.client(ACME), reply.request_id.as_deref().unwrap());
    assert_eq!((record.status.as_str(), prefill_site(&record)), ("ok", "paris"));
    let fallback = record
        .fallbacks
        .first()
        .expect("the record says what was fallen back from");
    assert!(
        fallback.from.contains("virginia") && fallback.to.contains("paris"),
        "{fallback:?}"
    );

    world.runtime.block_on(world.host.revive("virginia")).unwrap();
    world.wait("virginia serves again", || {
        let answer = world.try_ask(&Ask::tokens(&case.prompt_ids).remote());
        answer.is_ok_and(|a| a.tokens == case.greedy_ids && prefill_site(&a.record) == "virginia")
    });
}

#[test]
fn without_a_policy_data_that_must_stay_in_the_eu_stays() {
    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    let case = Oracle::of("tiny-qwen3").prompts.remove(0);
    let refused = world
        .try_ask(&Ask::tokens(&case.prompt_ids).by(GLOBEX).remote())
        .unwrap_err();
    assert!(refused.to_string().contains("residency"), "{refused}");
    let served = world.ask(&Ask::tokens(&case.prompt_ids).by(GLOBEX).remote_preferred());
    assert_eq!(
        (prefill_site(&served.record), served.tokens),
        ("paris", case.greedy_ids)
    );
}

#[test]
fn a_client_that_leaves_frees_the_engine() {
    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    let case = Oracle::of("tiny-qwen3").prompts.remove(0);
    let site = world.host.site("paris").unwrap().gateway().unwrap();
    let free = site.permits.available_permits();
    for _ in 0..20 {
        let ask = Ask::tokens(&case.prompt_ids).max(1500);
        let mut pieces = 0;
        // Leaving after three pieces drops the connection.
        let left = world
            .client(ACME)
            .stream("/v1/completions", &ask.body(true), &mut |_| {
                pieces += 1;
                pieces < 3
            });
        left.unwrap();
    }
    world.wait("every request is settled", || {
        site.permits.available_permits() == free
    });
    let newest = site.records.newest(20);
    assert!(
        newest.iter().all(|r| r.status == "cancelled"),
        "{:?}",
        newest.iter().map(|r| &r.status).collect::<Vec<_>>()
    );
    assert!(newest.iter().all(|r| r.completion_tokens < 1500));
}
