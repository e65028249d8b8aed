//! Recorded traffic of real engines through the adapter: what a client wrote reaches the engine, what the engine said
//! reaches the client, byte for byte.

use super::world::*;
use super::*;
use crate::foreign::scrape::scrape;
use crate::load::ModelFiles;
use crate::splice::field;
use bytes::Bytes;
use parking_lot::Mutex;
use portolan_base::Moment;
use portolan_ports::{ChatMessage, TemplateValues};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn recorded(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/conformance")
        .join(path)
}

fn read(path: &str) -> Vec<u8> {
    std::fs::read(recorded(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The head and the body of a recorded answer, without the framing of chunks.
fn parts(raw: &[u8]) -> (String, Vec<u8>) {
    let end = raw.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(raw[..end].to_vec()).unwrap();
    let mut rest = &raw[end + 4..];
    if !head.contains("transfer-encoding: chunked") {
        return (head, rest.to_vec());
    }
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|two| two == b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        rest = &rest[line + 2..];
        if size == 0 {
            return (head, body);
        }
        body.extend_from_slice(&rest[..size]);
        rest = &rest[size + 2..];
    }
}

fn status(head: &str) -> u16 {
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Names of the recorded requests to either inference path.
fn cases() -> BTreeSet<String> {
    let names = std::fs::read_dir(recorded("engines/vllm")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let inference = names.filter(|name| name.starts_with("comp") || name.starts_with("chat"));
    inference
        .filter_map(|name| name.strip_suffix(".req.json").map(str::to_owned))
        .collect()
}

#[tokio::test]
async fn every_recorded_request_and_answer_passes_byte_for_byte() {
    let current: Arc<Mutex<(String, Option<Got>)>> = Arc::default();
    let shown = Arc::clone(&current);
    let (address, _server) = server(move |got, mut stream| {
        let shown = Arc::clone(&shown);
        async move {
            if let Some(answer) = housekeeping(&got) {
                return write(&mut stream, answer).await;
            }
            let name = {
                let mut shown = shown.lock();
                shown.1 = Some(got);
                shown.0.clone()
            };
            // In pieces of awkward sizes: nothing may depend on where the network cuts.
            for piece in read(&format!("engines/vllm/{name}.resp.raw")).chunks(37) {
                write(&mut stream, piece).await;
            }
        }
    })
    .await;
    let instance = up(config(address)).await;
    let mut passed = 0;
    for name in cases() {
        let request = read(&format!("engines/vllm/{name}.req.json"));
        let body = field(&request, "body").unwrap();
        let path = field(&request, "path").unwrap();
        let path = match path.contains("chat") {
            true => WholePath::Chat,
            false => WholePath::Completions,
        };
        current.lock().0.clone_from(&name);
        let job = WholeJob {
            path,
            body: Bytes::copy_from_slice(body.as_bytes()),
            ..job("{}")
        };
        if body.starts_with('"') {
            // No JSON object: the gateway refuses it, and so does the adapter.
            let refused = instance.answer(job, None).await.err();
            assert!(matches!(refused, Some(EngineError::BadJob(_))), "{name}");
            continue;
        }
        let (head, bytes) = all(instance.answer(job, None).await.unwrap()).await.unwrap();
        let (raw_head, raw_body) = parts(&read(&format!("engines/vllm/{name}.resp.raw")));
        assert_eq!(head.status, status(&raw_head), "{name}");
        assert!(bytes == raw_body, "{name}: {}", String::from_utf8_lossy(&bytes));
        let kind = head
            .headers
            .iter()
            .find(|(name, _)| name == "content-type")
            .unwrap();
        let kind = format!("content-type: {}", String::from_utf8_lossy(&kind.1));
        assert!(raw_head.contains(&kind), "{name}: {kind}");
        let got = current.lock().1.take().unwrap();
        assert!(
            got.head.starts_with(&format!("POST {} ", path.as_str())),
            "{name}"
        );
        let sent = String::from_utf8(got.body).unwrap();
        let expected = match field(body.as_bytes(), "cache_salt") {
            Some(own) => body.replace(own, "\"acme\""),
            None => {
                let open = body.strip_suffix('}').unwrap();
                format!("{open},\"cache_salt\":\"acme\"}}")
            }
        };
        assert_eq!(sent, expected, "{name}");
        passed += 1;
    }
    assert!(passed >= 40, "only {passed} requests were recorded");
}

#[tokio::test]
async fn the_recorded_hand_over_passes_verbatim() {
    let sent: Arc<Mutex<Option<Got>>> = Arc::default();
    let answer: Arc<Mutex<String>> = Arc::default();
    let (log, said) = (Arc::clone(&sent), Arc::clone(&answer));
    let (address, _server) = server(move |got, mut stream| {
        let (log, said) = (Arc::clone(&log), Arc::clone(&said));
        async move {
            if let Some(answer) = housekeeping(&got) {
                return write(&mut stream, answer).await;
            }
            *log.lock() = Some(got);
            let body = said.lock().clone();
            let text = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            write(&mut stream, text.as_bytes()).await;
        }
    })
    .await;
    let instance = up(ForeignConfig {
        connector: Some(Connector::Nixl),
        ..config(address)
    })
    .await;
    let body_of = |sent: &Mutex<Option<Got>>| sent.lock().take().unwrap().body;
    for n in 0..3 {
        let file = read(&format!("engines/nixl/seq_{n}.json"));
        let step = |name: &str| field(&file, name).unwrap().to_owned();
        let (to_prefill, prefilled) = (step("1_router_to_prefill"), step("2_prefill_response"));
        let (to_decode, decoded) = (step("3_router_to_decode"), step("4_decode_response"));
        let mut asked: Value = serde_json::from_str(&to_decode).unwrap();
        asked.as_object_mut().unwrap().remove("kv_transfer_params");
        *answer.lock() = prefilled.clone();
        let offer = instance.offer(job(&asked.to_string())).await.unwrap();
        let params = offer.params.expect("what a real engine says is usable");
        assert_eq!(
            &*params,
            field(prefilled.as_bytes(), "kv_transfer_params").unwrap(),
            "verbatim"
        );
        let mut prefill_leg: Value = serde_json::from_slice(&body_of(&sent)).unwrap();
        assert_eq!(
            prefill_leg.as_object_mut().unwrap().remove("cache_salt"),
            Some(json!("acme"))
        );
        assert_eq!(
            prefill_leg,
            serde_json::from_str::<Value>(&to_prefill).unwrap(),
            "{n}"
        );
        *answer.lock() = decoded.clone();
        let (_, bytes) = all(instance
            .answer(job(&asked.to_string()), Some(Arc::clone(&params)))
            .await
            .unwrap())
        .await
        .unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap(), decoded);
        let decode_leg = body_of(&sent);
        assert_eq!(field(&decode_leg, "kv_transfer_params"), Some(&*params));
    }
    let chat = read("engines/nixl/chat_prefill.resp.json");
    assert!(hand_over::read_answer(&chat).params.is_some());
}

#[test]
fn the_recorded_metrics_are_read() {
    let (_, page) = parts(&read("engines/vllm/metrics.resp.raw"));
    let scraped = scrape(Make::Vllm, &String::from_utf8(page).unwrap());
    assert!(scraped.known && scraped.started.is_some());
    assert_eq!(scraped.block_tokens, Some(32));
    let (_, page) = parts(&read("engines/llama-cpp/metrics.resp.raw"));
    assert!(scrape(Make::LlamaCpp, &String::from_utf8(page).unwrap()).known);
}

/// The tokens that a recorded answer of `/tokenize` holds.
fn tokens(name: &str) -> Vec<u32> {
    let (_, body) = parts(&read(&format!("engines/vllm/{name}.resp.raw")));
    let answer: Value = serde_json::from_slice(&body).unwrap();
    serde_json::from_value(answer["tokens"].clone()).unwrap()
}

#[test]
fn text_and_chats_are_cut_as_the_recorded_engine_cut_them() {
    let files = ModelFiles::read(&recorded("oracle/tiny-qwen3")).unwrap();
    let request = |name: &str| -> Value {
        let request: Value = serde_json::from_slice(&read(&format!("engines/vllm/{name}.req.json"))).unwrap();
        request["body"].clone()
    };
    let text = files.text();
    let asked = request("tokenize");
    assert_eq!(
        text.encode(asked["prompt"].as_str().unwrap(), true).unwrap(),
        tokens("tokenize")
    );
    let messages: Vec<ChatMessage> =
        serde_json::from_value(request("tokenize_chat")["messages"].clone()).unwrap();
    let rendered = text
        .render_chat(&messages, &TemplateValues::new(), Moment(0))
        .unwrap();
    assert_eq!(text.encode(&rendered, false).unwrap(), tokens("tokenize_chat"));
}
