//! SGLang: its page, its cache events, and the fields that its two legs meet by, against a server that says what SGLang
//! was recorded or is documented to say, and requests that its own router was recorded to send. The real one was not run.

use super::kv::Index;
use super::world::*;
use super::*;
use crate::splice::{Edit, field, splice};
use bytes::Bytes;
use portolan_base::Role;
use rmp::encode::{write_array_len, write_f64, write_map_len, write_nil, write_str, write_uint};
use std::net::SocketAddr;
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

const PAGE: &str = "sglang:num_running_reqs{tp_rank=\"0\"} 2.0\nsglang:num_queue_reqs{tp_rank=\"0\"} 5.0\n\
                    sglang:token_usage{tp_rank=\"0\"} 0.5\n";

/// What SGLang answers a request without a room where it was started as one half of two.
const NO_ROOM: &str = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 87\r\n\r\n\
                       {\"object\":\"error\",\"message\":\"Disaggregated request received without bootstrap room id\"}";

/// A server that answers each request with what it was sent, and says so much of its load.
async fn sglang() -> (SocketAddr, JoinSet<()>) {
    served(false).await
}

/// The same, as one `half` of two or alone.
async fn served(half: bool) -> (SocketAddr, JoinSet<()>) {
    server(move |got, mut stream| async move {
        let line = got.head.lines().next().unwrap_or_default().to_owned();
        let room = field(&got.body, "bootstrap_room").is_some_and(|room| room.parse::<i64>().is_ok());
        if half && line.contains("/v1/") && !room {
            return write(&mut stream, NO_ROOM.as_bytes()).await;
        }
        let body = match line.contains("/metrics") {
            true => PAGE.to_owned(),
            false => {
                let usage = json!({"prompt_tokens_details": {"cached_tokens": 64}});
                let body = String::from_utf8_lossy(&got.body);
                json!({"got": body, "head": got.head, "usage": usage}).to_string()
            }
        };
        let said = format!(
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let own = housekeeping(&got).filter(|_| !line.contains("/metrics"));
        write(&mut stream, own.unwrap_or(said.as_bytes())).await;
    })
    .await
}

async fn instance(address: SocketAddr, role: Role, bootstrap: Option<&str>) -> ForeignInstance {
    let mut config = config(address);
    config.description.role = role;
    up(ForeignConfig {
        make: Make::Sglang,
        connector: Some(Connector::Bootstrap {
            server: bootstrap.map(|url| EngineUrl::parse(url).unwrap()),
        }),
        ..config
    })
    .await
}

/// What the engine was sent.
async fn sent(instance: &ForeignInstance, body: &str, params: Option<Arc<str>>) -> String {
    let (_, bytes) = all(instance.answer(job(body), params).await.unwrap())
        .await
        .unwrap();
    let answer: Value = serde_json::from_slice(&bytes).unwrap();
    answer["got"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn both_legs_get_the_clients_request_and_the_room_they_meet_in() {
    let (address, _server) = served(true).await;
    let prefill = instance(address, Role::Prefill, Some("http://10.0.0.7:9001")).await;
    let decode = instance(address, Role::Decode, None).await;
    let body = r#"{"model":"tiny","prompt":"a prompt of some length","odd":12345678901234567890123,"bootstrap_room":1}"#;
    let offer = prefill.offer(job(body)).await.unwrap();
    let params = offer.params.clone().unwrap();
    assert_eq!(offer.prefilling.await.unwrap().cached, Some(64));
    let got = sent(&decode, body, Some(Arc::clone(&params))).await;
    let room: Value = serde_json::from_str(&params).unwrap();
    assert_eq!(
        (room["bootstrap_host"].as_str(), room["bootstrap_port"].as_u64()),
        (Some("10.0.0.7"), Some(9001))
    );
    let number = room["bootstrap_room"].as_u64().unwrap();
    assert!(
        i64::try_from(number).is_ok() && number != 1,
        "63 bits, and not the client's"
    );
    let expected = format!(
        r#"{{"model":"tiny","prompt":"a prompt of some length","odd":12345678901234567890123,"bootstrap_room":{number},"bootstrap_host":"10.0.0.7","bootstrap_port":9001,"cache_salt":"acme"}}"#
    );
    assert_eq!(got, expected);
    let other = prefill.offer(job(body)).await.unwrap().params.unwrap();
    assert_ne!(params, other, "a room each");
}

#[tokio::test]
async fn a_client_names_no_room_and_load_is_read() {
    let (address, _server) = sglang().await;
    let alone = instance(address, Role::Both, None).await;
    let body =
        r#"{"model":"tiny","prompt":"x","bootstrap_host":"evil","bootstrap_port":1,"bootstrap_room":7}"#;
    let got = sent(&alone, body, None).await;
    assert_eq!(got, r#"{"model":"tiny","prompt":"x","cache_salt":"acme"}"#);
    let mut headed = job(body);
    headed.headers = ["x-override-bootstrap-room", "x-own"]
        .map(|name| (name.to_owned(), "7".to_owned()))
        .into();
    let (_, answer) = all(alone.answer(headed, None).await.unwrap()).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    let head = answer["head"].as_str().unwrap();
    assert!(
        head.contains("x-own: 7") && !head.contains("x-override"),
        "{head}"
    );
    let load = alone.load();
    assert_eq!((load.prefill_queued_requests, load.decode_running), (5, 2));
}

#[tokio::test]
async fn neither_half_is_asked_alone_whatever_the_request() {
    let (address, _server) = served(true).await;
    let prefill = instance(address, Role::Prefill, None).await;
    let decode = instance(address, Role::Decode, None).await;
    for more in [
        json!({}),
        json!({"n": 2}),
        json!({"echo": true}),
        json!({"max_tokens": 1}),
    ] {
        let body = completion("short", more);
        assert!(prefill.is_parted(&job(&body), 5), "{body}");
        let params = prefill.offer(job(&body)).await.unwrap().params;
        let got = sent(&decode, &body, params).await;
        assert!(field(got.as_bytes(), "bootstrap_room").is_some(), "{got}");
        // Without a prefill instance there is nothing that it could answer.
        let alone = decode.answer(job(&body), None).await.err();
        assert!(matches!(alone, Some(EngineError::Full(_))), "{alone:?}");
    }
}

/// What its own router was recorded to send to both engines of a request, which this host says as well: every byte of the
/// client's, and the same three fields with values of the same kinds.
#[tokio::test]
async fn both_legs_are_those_that_sglangs_router_was_recorded_to_send() {
    let (address, _server) = served(true).await;
    let prefill = instance(address, Role::Prefill, None).await;
    let decode = instance(address, Role::Decode, None).await;
    for n in 0..4 {
        let path = format!(
            "{}/../../tests/conformance/engines/sglang/parted_{n}.json",
            env!("CARGO_MANIFEST_DIR")
        );
        let recorded: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let legs: Vec<&str> = recorded["legs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|leg| leg.as_str().unwrap())
            .collect();
        assert_eq!(legs[0], legs[1], "both get the same");
        let own = hand_over::ROOM.map(Edit::Remove);
        let client = String::from_utf8(splice(legs[0].as_bytes(), &own).unwrap()).unwrap();
        let offer = prefill.offer(job(&client)).await.unwrap();
        let params = offer.params.clone().unwrap();
        offer.prefilling.await.unwrap();
        let got = sent(&decode, &client, Some(params)).await;
        let (before, after) = got.split_at(client.len() - 1);
        assert_eq!(before, client.strip_suffix('}').unwrap(), "the client's bytes");
        assert!(after.contains("\"cache_salt\":\"acme\""), "{after}");
        let (ours, theirs): (Value, Value) = (
            serde_json::from_str(&got).unwrap(),
            serde_json::from_str(legs[0]).unwrap(),
        );
        assert!(ours["bootstrap_host"].is_string() && theirs["bootstrap_host"].is_string());
        for leg in [&ours, &theirs] {
            let room = leg["bootstrap_room"].as_u64().unwrap();
            assert!(i64::try_from(room).is_ok(), "63 bits: {room}");
        }
        // A router that was told no port sends null, which an engine takes for the same.
        assert_eq!(
            (
                ours["bootstrap_port"].as_u64(),
                theirs["bootstrap_port"].is_null()
            ),
            (Some(8998), true)
        );
    }
}

/// A batch of one stored run of blocks, as SGLang packs it: tagged arrays with a map behind the medium, or maps.
fn stored(prompt: &str, tagged: bool, page: usize) -> Vec<u8> {
    let blocks = prompt.len() / page;
    let mut out = Vec::new();
    write_array_len(&mut out, 3).unwrap();
    write_f64(&mut out, 1.5).unwrap();
    write_array_len(&mut out, 1).unwrap();
    let hashes = |out: &mut Vec<u8>| {
        write_array_len(out, blocks as u32).unwrap();
        (0..blocks).for_each(|n| {
            write_uint(out, 0xfeed_0000 + prompt.len() as u64 * 64 + n as u64).unwrap();
        });
    };
    let tokens = |out: &mut Vec<u8>| {
        write_array_len(out, (page * blocks) as u32).unwrap();
        prompt.bytes().take(page * blocks).for_each(|byte| {
            write_uint(out, byte.into()).unwrap();
        });
    };
    let text = |out: &mut Vec<u8>, text: &str| write_str(out, text).unwrap();
    match tagged {
        true => {
            write_array_len(&mut out, 8).unwrap();
            text(&mut out, "BlockStored");
            hashes(&mut out);
            write_nil(&mut out).unwrap();
            tokens(&mut out);
            write_uint(&mut out, page as u64).unwrap();
            write_nil(&mut out).unwrap();
            text(&mut out, "GPU");
            write_map_len(&mut out, 1).unwrap();
            text(&mut out, "cache_salt");
            text(&mut out, "acme");
        }
        false => {
            write_map_len(&mut out, 7).unwrap();
            text(&mut out, "type");
            text(&mut out, "BlockStored");
            text(&mut out, "block_hashes");
            hashes(&mut out);
            text(&mut out, "parent_block_hash");
            write_nil(&mut out).unwrap();
            text(&mut out, "token_ids");
            tokens(&mut out);
            text(&mut out, "block_size");
            write_uint(&mut out, page as u64).unwrap();
            text(&mut out, "medium");
            text(&mut out, "GPU");
            text(&mut out, "cache_salt");
            text(&mut out, "acme");
        }
    }
    write_nil(&mut out).unwrap();
    out
}

#[tokio::test]
async fn its_cache_events_are_in_the_index_of_the_tenant_whose_salt_they_bear() {
    let (address, _server) = sglang().await;
    let mut publisher = PubSocket::new();
    let endpoint = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
    let instance = up(ForeignConfig {
        make: Make::Sglang,
        events: Some(EventsConfig {
            endpoint,
            replay: None,
            ranks: 1,
        }),
        ..config(address)
    })
    .await;
    let mut index = Index::of(&instance);
    instance.expect(&salt("acme"));
    let prompts = [
        "0123456789abcdef0123456789abcdef and",
        "the newer form of it in 32 tokens",
    ];
    let mut sequence = 0u64;
    let latest = Instant::now() + Duration::from_secs(10);
    // Whoever subscribes late misses what was said before.
    while prompts.iter().any(|prompt| index.held("acme", prompt) < 32) {
        for (prompt, tagged) in prompts.into_iter().zip([true, false]) {
            let mut message = ZmqMessage::from(Bytes::from_static(b"kv-events"));
            message.push_back(Bytes::copy_from_slice(&sequence.to_be_bytes()));
            message.push_back(stored(prompt, tagged, 16).into());
            publisher.send(message).await.unwrap();
            sequence += 1;
        }
        assert!(Instant::now() < latest, "they never come");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(index.held("globex", prompts[0]), 0);
    let refused = || {
        instance
            .shared
            .counts
            .refused_events
            .load(std::sync::atomic::Ordering::Relaxed)
    };
    assert_eq!(refused(), 0);
    // Pages of one token, as it has them unless told otherwise.
    let mut message = ZmqMessage::from(Bytes::from_static(b"kv-events"));
    message.push_back(Bytes::copy_from_slice(&sequence.to_be_bytes()));
    message.push_back(stored("another prompt", true, 1).into());
    publisher.send(message).await.unwrap();
    until("that shows", || refused() > 0).await;
}
