//! KV that crosses in fewer bits: told wherever an operator or a client looks, never kept, and never for whom it is
//! forbidden.

use portolan::config::LinkCompression;
use portolan_base::kv::KvQuant;
use portolan_tests::world::ACME;
use portolan_tests::{Ask, Link, Oracle, World, oracle_folder};

const FAST: Link = Link {
    delay_ms: 1,
    rate_mbps: 0,
};

/// Two sites whose links quantise to four bits; the forbidding is up to acme.
fn world(model: &str, exact_kv: bool) -> World {
    World::start_changed(&oracle_folder(model), FAST, |config| {
        for link in &mut config.links {
            link.compression = LinkCompression::Int4;
        }
        config.tenants[0].exact_kv = exact_kv;
    })
}

#[test]
fn quantised_kv_is_told_and_is_not_kept_for_the_next_request() {
    let world = world("tiny-qwen3", false);
    let case = Oracle::of("tiny-qwen3").prompts.remove(2);
    let ask = Ask::tokens(&case.prompt_ids);
    let plain = 4 * 2 * 2 * 32 * 4 * (case.prompt_ids.len() as u64 - 1);
    let there = world.ask(&ask.clone().remote());
    let kv = there.record.kv;
    assert_eq!(kv.quantised, Some(KvQuant::Int4));
    assert!(
        kv.bytes_moved > plain / 10 && kv.bytes_moved < plain / 5,
        "{} of {plain}",
        kv.bytes_moved
    );
    let reply = world
        .client(ACME)
        .post("/v1/completions", &ask.clone().remote().body(false))
        .unwrap();
    assert_eq!(
        reply.body["usage"]["prompt_tokens_details"]["kv_quantised"],
        "int4"
    );
    // Whoever is served at home computes it, exactly, and is told so.
    let here = world.ask(&ask.local());
    assert_eq!(
        (here.record.kv.cached_tokens, here.record.kv.quantised),
        (0, None)
    );
    assert_eq!(here.tokens, case.greedy_ids);
}

#[test]
fn who_may_not_have_quantised_kv_gets_the_reference_tokens_over_the_same_link() {
    for model in ["tiny-qwen3", "tiny-qwen3_5"] {
        let world = world(model, true);
        for case in Oracle::of(model).prompts {
            let there = world.ask(&Ask::tokens(&case.prompt_ids).remote());
            assert_eq!(there.record.kv.quantised, None);
            assert_eq!(there.tokens, case.greedy_ids, "{model}");
        }
    }
}
