//! Captured messages, decoded exactly as the reference reader decodes them, and what they make the index say.

use super::*;

#[test]
fn captured_messages_are_read_exactly() {
    for file in ["smoke.jsonl", "life.jsonl", "hybrid.jsonl"] {
        for message in captured(file) {
            let batch = decode(&message.payload).unwrap();
            // The reader of the expectation rounds its last bit.
            let seconds = message.decoded[0].as_f64().unwrap();
            assert!(
                (batch.timestamp - seconds).abs() < 1e-6,
                "{file} {}",
                message.number
            );
            assert_eq!(batch.rank, Some(0));
            assert_eq!(batch.skipped, Skipped::default());
            assert_eq!(
                batch.events,
                expected(&message.decoded),
                "{file} {}",
                message.number
            );
        }
    }
}

/// The engine's own count of cached tokens, when each prompt was sent again at that time, is what the index says.
#[test]
fn the_index_follows_a_captured_life() {
    let mut fed = Fed::new();
    let stored = |number: u64| -> Vec<u32> {
        let messages = captured("life.jsonl");
        let message = messages.iter().find(|message| message.number == number).unwrap();
        let mut events = expected(&message.decoded).into_iter();
        events
            .find_map(|event| match event {
                CacheEvent::Stored(stored) => Some(stored.tokens),
                _ => None,
            })
            .unwrap()
    };
    let a = [stored(6), stored(7)].concat();
    let b = [&a[..64], &stored(8)].concat();
    let salted = stored(10);
    let mut said = Vec::new();
    for message in captured("life.jsonl") {
        let wanted = fed.live(message.live()).unwrap();
        if message.number == 6 {
            assert_eq!(wanted, Wanted::Replay { from: 0 });
            fed.replay_ended();
        }
        said.push([
            fed.held("none", &a),
            fed.held("none", &b),
            fed.held("tenantA", &salted),
            fed.held("tenantB", &salted),
            fed.held("none", &salted),
        ]);
    }
    let expected = [
        [96, 64, 0, 0, 64],
        [192, 64, 0, 0, 64],
        [192, 96, 0, 0, 64],
        [192, 96, 0, 0, 64],
        [192, 96, 64, 0, 64],
        [192, 96, 64, 64, 64],
        [192, 96, 64, 64, 64],
        [192, 96, 64, 64, 64],
    ];
    assert_eq!(said[..8], expected, "prompts 6 to 13");
    assert_eq!(
        said[8],
        [0, 0, 32, 64, 0],
        "evicted: all of a and b, the end of tenantA's"
    );
    assert_eq!(said[10], [96, 64, 0, 0, 64], "reset, and the first prompt again");
    assert_eq!(fed.feed.refused().unknown_removals, 0);
}

#[test]
fn a_hybrid_life_counts_where_states_are_kept() {
    let mut fed = Fed::new();
    let messages = captured("hybrid.jsonl");
    let prompt = |message: &Captured| match expected(&message.decoded).pop() {
        Some(CacheEvent::Stored(stored)) => stored.tokens,
        other => panic!("{other:?}"),
    };
    for message in &messages[..3] {
        assert_eq!(fed.live(message.live()), Ok(Wanted::Nothing));
        assert_eq!(fed.held("none", &prompt(message)), 384);
    }
    let clearing = &messages[3];
    assert_eq!(clearing.number, 13);
    assert_eq!(fed.live(clearing.live()), Ok(Wanted::Replay { from: 3 }));
    fed.replay_ended();
    assert_eq!(fed.held("none", &prompt(&messages[1])), 0, "cleared");
    assert_eq!(fed.held("none", &prompt(clearing)), 384);
    assert!(fed.feed.is_complete(), "after a reset nothing older matters");
}
