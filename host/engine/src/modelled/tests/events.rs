//! Cache events as a subscriber gets them.

use super::*;
use crate::kv_events::{Replayed, decode, live, replay};
use portolan_kv::index::event::CacheEvent;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

fn ports() -> EventPorts {
    EventPorts {
        publish: "tcp://127.0.0.1:0".to_owned(),
        replay: Some("tcp://127.0.0.1:0".to_owned()),
        topic: "kv@m0@tiny".to_owned(),
    }
}

async fn next(socket: &mut impl SocketRecv) -> Vec<bytes::Bytes> {
    let message = tokio::time::timeout(Duration::from_secs(5), socket.recv()).await;
    message.expect("a message comes").unwrap().into_vec()
}

fn frames(message: &[bytes::Bytes]) -> Vec<&[u8]> {
    message.iter().map(AsRef::as_ref).collect()
}

#[tokio::test]
async fn blocks_of_prompts_and_answers_are_told_live_and_again_on_demand() {
    let (engine, client) = start_with(quick(), Some(ports())).await;
    let mut subscriber = SubSocket::new();
    subscriber.connect(engine.events().unwrap()).await.unwrap();
    subscriber.subscribe("").await.unwrap();
    // A subscription takes effect at the publisher some time after it was sent.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let prompt = "0123456789abcdef0123456789abcde";
    let ask = completion(prompt, json!({"cache_salt": "s", "max_tokens": 20}));
    client.json("/v1/completions", &ask).await;
    let mut tokens = Vec::new();
    let mut numbers = Vec::new();
    while tokens.len() < 48 {
        let message = next(&mut subscriber).await;
        let live = live(&frames(&message)).unwrap();
        numbers.push(live.sequence);
        for event in decode(live.payload).unwrap().events {
            let CacheEvent::Stored(stored) = event else {
                panic!("{event:?}")
            };
            assert_eq!(stored.parent.is_none(), tokens.is_empty());
            assert_eq!(
                !stored.extra.is_empty(),
                tokens.is_empty(),
                "the salt is on the first block"
            );
            tokens.extend(stored.tokens);
        }
    }
    assert_eq!(tokens[..31], prompt.bytes().map(u32::from).collect::<Vec<_>>());
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());

    let mut dealer = DealerSocket::new();
    dealer.connect(engine.replay().unwrap()).await.unwrap();
    let mut ask = ZmqMessage::from(bytes::Bytes::new());
    ask.push_back(bytes::Bytes::copy_from_slice(&1u64.to_be_bytes()));
    dealer.send(ask).await.unwrap();
    let mut replayed = Vec::new();
    loop {
        let message = next(&mut dealer).await;
        match replay(&frames(&message)).unwrap() {
            Replayed::Batch(batch) => replayed.push(batch.sequence),
            Replayed::End => break,
        }
    }
    assert_eq!(replayed, numbers[1..]);
}

#[tokio::test]
async fn a_lost_batch_leaves_a_gap_and_a_reset_is_told() {
    let faults = Faults {
        lose_events_permille: 1000,
        ..Faults::default()
    };
    let (engine, client) = start_with(Profile { faults, ..quick() }, Some(ports())).await;
    client
        .json("/v1/completions", &completion("0123456789abcdefg", json!({})))
        .await;
    assert_eq!(client.post("/reset_prefix_cache", &json!({})).await.0, 200);
    let mut dealer = DealerSocket::new();
    dealer.connect(engine.replay().unwrap()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut ask = ZmqMessage::from(bytes::Bytes::new());
    ask.push_back(bytes::Bytes::copy_from_slice(&0u64.to_be_bytes()));
    dealer.send(ask).await.unwrap();
    let mut seen = Vec::new();
    loop {
        let message = next(&mut dealer).await;
        match replay(&frames(&message)).unwrap() {
            Replayed::Batch(batch) => seen.extend(decode(batch.payload).unwrap().events),
            Replayed::End => break,
        }
    }
    assert!(matches!(seen.first(), Some(CacheEvent::Stored(_))));
    assert!(matches!(seen.last(), Some(CacheEvent::Cleared)), "{seen:?}");
}
