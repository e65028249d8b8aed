//! A model whose attention has a window, served by two sites.

use portolan_base::kv::KvWindow;
use portolan_tests::{Ask, Link, World, oracle_folder};

const FAST: Link = Link {
    delay_ms: 1,
    rate_mbps: 0,
};

#[test]
fn only_what_the_window_holds_crosses_and_the_answer_is_that_of_one_site() {
    let prompt: Vec<u32> = (0..400).map(|i| (i * 7919 + 11) % 2000).collect();
    let ask = Ask::tokens(&prompt);
    let world = World::start_changed(&oracle_folder("tiny-qwen3"), FAST, |config| {
        config.models[0].window = Some(KvWindow {
            tokens: 100,
            sinks: 4,
        });
    });
    let there = world.ask(&ask.clone().remote());
    // 2 KiB a token in all layers; token 399 sees 300 and later: whole blocks from 256 on, and the first.
    assert_eq!(there.record.kv.bytes_moved, (64 + 399 - 256) * 2048);
    let again = world.ask(&ask.clone().remote());
    assert_eq!(again.record.kv.bytes_moved, (399 - 384) * 2048, "the increment");
    let here = world.ask(&ask.local());
    assert_eq!(here.record.kv.cached_tokens, 384);
    assert_eq!((&there.tokens, &again.tokens), (&here.tokens, &here.tokens));
    let elsewhere = World::start(&oracle_folder("tiny-qwen3"), FAST);
    let full = elsewhere.ask(&Ask::tokens(&prompt).local());
    assert_ne!(full.tokens, here.tokens, "the window does change what is seen");
}
