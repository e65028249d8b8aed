//! SGLang: its page, its cache events' salt, and the fields that its two legs meet by, against a server that says what SGLang
//! was recorded or is documented to say. The real one was not run.

use super::world::*;
use super::*;
use std::net::SocketAddr;

const PAGE: &str = "sglang:num_running_reqs{tp_rank=\"0\"} 2.0\nsglang:num_queue_reqs{tp_rank=\"0\"} 5.0\n\
                    sglang:token_usage{tp_rank=\"0\"} 0.5\n";

/// A server that answers each request with what it was sent, and says so much of its load.
async fn sglang() -> (SocketAddr, JoinSet<()>) {
    server(|got, mut stream| async move {
        let line = got.head.lines().next().unwrap_or_default().to_owned();
        let body = match line.contains("/metrics") {
            true => PAGE.to_owned(),
            false => {
                let usage = json!({"prompt_tokens_details": {"cached_tokens": 64}});
                json!({"got": String::from_utf8_lossy(&got.body), "usage": usage}).to_string()
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

async fn instance(address: SocketAddr, bootstrap: Option<&str>) -> ForeignInstance {
    up(ForeignConfig {
        make: Make::Sglang,
        connector: Some(Connector::Bootstrap {
            server: bootstrap.map(|url| EngineUrl::parse(url).unwrap()),
        }),
        ..config(address)
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
    let (address, _server) = sglang().await;
    let prefill = instance(address, Some("http://10.0.0.7:9001")).await;
    let decode = instance(address, None).await;
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
    let alone = instance(address, None).await;
    let body =
        r#"{"model":"tiny","prompt":"x","bootstrap_host":"evil","bootstrap_port":1,"bootstrap_room":7}"#;
    let got = sent(&alone, body, None).await;
    assert_eq!(got, r#"{"model":"tiny","prompt":"x","cache_salt":"acme"}"#);
    let load = alone.load();
    assert_eq!((load.prefill_queued_requests, load.decode_running), (5, 2));
}
