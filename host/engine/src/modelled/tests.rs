//! The modelled engine from outside: HTTP and ZeroMQ.

mod client;
mod events;
mod transfers;

use super::*;
use client::Client;
use portolan_base::Moment;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

struct Wall;

impl Clock for Wall {
    fn now(&self) -> Moment {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        Moment(since.as_micros() as u64)
    }
}

struct Counting(std::sync::atomic::AtomicU64);

impl Random for Counting {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }
}

fn quick() -> Profile {
    Profile::shipped("quick").unwrap()
}

async fn start(profile: Profile) -> (ModelledEngine, Client) {
    start_with(profile, None).await
}

async fn start_with(profile: Profile, events: Option<EventPorts>) -> (ModelledEngine, Client) {
    let engine = ModelledEngine::start(ModelledConfig {
        profile,
        model: "tiny".to_owned(),
        listen: "127.0.0.1:0".parse().unwrap(),
        text: None,
        events,
        clock: Arc::new(Wall),
        random: Arc::new(Counting(1.into())),
    })
    .await
    .unwrap();
    let client = Client(engine.address());
    (engine, client)
}

fn completion(prompt: &str, more: Value) -> Value {
    let mut body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0});
    let Value::Object(more) = more else {
        panic!("fields are an object: {more}");
    };
    body.as_object_mut().unwrap().extend(more);
    body
}

fn text_of(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap()
}

#[tokio::test]
async fn the_same_prompt_gets_the_same_answer_and_its_prefix_is_cached_within_a_salt() {
    let (_engine, client) = start(quick()).await;
    let prompt = "the quick brown fox jumps over the lazy dog";
    let first = client
        .json("/v1/completions", &completion(prompt, json!({"cache_salt": "a"})))
        .await;
    let again = client
        .json("/v1/completions", &completion(prompt, json!({"cache_salt": "a"})))
        .await;
    let other = client
        .json("/v1/completions", &completion(prompt, json!({"cache_salt": "b"})))
        .await;
    assert_eq!(text_of(&first), text_of(&again));
    assert_eq!(text_of(&first), text_of(&other));
    assert_eq!((cached(&first), cached(&again), cached(&other)), (0, 32, 0));
    assert_eq!(first["usage"]["completion_tokens"], 8);
    assert_eq!(first["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn a_stream_holds_what_the_whole_answer_holds_in_vllms_shapes() {
    let (_engine, client) = start(quick()).await;
    let messages = json!([{"role": "user", "content": "hello"}]);
    let ask = json!({"model": "tiny", "messages": messages, "max_tokens": 6, "temperature": 0});
    let whole = client.json("/v1/chat/completions", &ask).await;
    let mut streamed = ask.clone();
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let (status, head, body) = client.post("/v1/chat/completions", &streamed).await;
    assert_eq!((status, head.as_str()), (200, "text/event-stream; charset=utf-8"));
    let events: Vec<&str> = body.split("\n\n").filter(|e| !e.is_empty()).collect();
    assert_eq!(events.last(), Some(&"data: [DONE]"));
    let read = |event: &&str| serde_json::from_str::<Value>(event.strip_prefix("data: ").unwrap()).unwrap();
    let pieces: Vec<Value> = events[..events.len() - 1].iter().map(read).collect();
    assert_eq!(
        pieces[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    let said: String = pieces
        .iter()
        .filter_map(|p| p["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(said, whole["choices"][0]["message"]["content"].as_str().unwrap());
    let usage = pieces.last().unwrap();
    assert_eq!(
        (&usage["choices"], &usage["usage"]["completion_tokens"]),
        (&json!([]), &json!(6))
    );
    assert!(pieces.iter().all(|p| p["id"] == pieces[0]["id"]));
}

#[tokio::test]
async fn several_answers_stop_texts_and_mistakes_are_as_vllms() {
    let (_engine, client) = start(quick()).await;
    let drawn = json!({"temperature": 1, "seed": 7, "n": 2});
    let two = client.json("/v1/completions", &completion("hi", drawn)).await;
    assert_ne!(two["choices"][0]["text"], two["choices"][1]["text"]);
    let full = client.json("/v1/completions", &completion("hi", json!({}))).await;
    let stop = &text_of(&full)[3..5];
    let stopped = client
        .json(
            "/v1/completions",
            &completion("hi", json!({"stop": [stop], "max_tokens": 64})),
        )
        .await;
    assert_eq!(text_of(&stopped), text_of(&full).split(stop).next().unwrap());
    assert_eq!(stopped["choices"][0]["stop_reason"], *stop);
    let (status, _, body) = client
        .post("/v1/completions", &json!({"model": "nope", "prompt": "x"}))
        .await;
    assert_eq!(status, 404);
    assert!(body.contains("The model `nope` does not exist."), "{body}");
    for (field, value) in [
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-1)),
        ("n", json!(0)),
        ("temperature", json!(-1)),
        ("temperature", json!(2.5)),
        ("min_tokens", json!(9)),
        ("stop", json!(["a", ""])),
        ("stop", json!("")),
        ("stream_options", json!({"include_usage": true})),
        ("prompt", json!("")),
        ("max_tokens", json!(100_000)),
    ] {
        let (status, _, body) = client
            .post("/v1/completions", &completion("x", json!({field: value})))
            .await;
        assert_eq!(status, 400, "{body}");
        assert!(serde_json::from_str::<Value>(&body).unwrap()["error"]["code"] == 400);
    }
    let tokens = client
        .json("/tokenize", &json!({"model": "tiny", "prompt": "ab"}))
        .await;
    assert_eq!(tokens["tokens"], json!([97, 98]));
}

#[tokio::test]
async fn time_is_the_profiles_and_cached_tokens_take_none() {
    let (_engine, client) = start(Profile {
        prefill_ms: vec![(100, 50.0)],
        ..quick()
    })
    .await;
    let prompt = "x".repeat(600);
    let timed = async |prompt: &str| {
        let begun = Instant::now();
        client
            .json("/v1/completions", &completion(prompt, json!({"max_tokens": 1})))
            .await;
        begun.elapsed()
    };
    let cold = timed(&prompt).await;
    let warm = timed(&prompt).await;
    assert!(cold >= Duration::from_millis(290), "{cold:?}");
    assert!(warm < cold / 3, "{warm:?} after {cold:?}");
}

#[tokio::test]
async fn what_nobody_reads_is_cancelled_and_its_room_is_free() {
    let (_engine, client) = start(quick()).await;
    let endless = completion(
        "go on",
        json!({"stream": true, "max_tokens": 4000, "ignore_eos": true}),
    );
    let reading = client.begin("/v1/completions", &endless).await;
    client.until_metric("vllm:num_requests_running", 1.0).await;
    drop(reading);
    client.until_metric("vllm:num_requests_running", 0.0).await;
    client.until_metric("vllm:kv_cache_usage_perc", 0.0).await;
}

#[tokio::test]
async fn faults_come_as_asked() {
    let (_engine, client) = start(Profile {
        faults: Faults {
            refuse_permille: 1000,
            ..Faults::default()
        },
        ..quick()
    })
    .await;
    assert_eq!(
        client
            .post("/v1/completions", &completion("x", json!({})))
            .await
            .0,
        503
    );
    let (_engine, client) = start(Profile {
        faults: Faults {
            break_permille: 1000,
            ..Faults::default()
        },
        ..quick()
    })
    .await;
    let cut = client
        .try_post("/v1/completions", &completion("x", json!({"stream": true})))
        .await;
    assert!(cut.is_err(), "a stream that breaks has no end: {cut:?}");
    let (engine, client) = start(Profile {
        faults: Faults {
            die_after: 1,
            ..Faults::default()
        },
        ..quick()
    })
    .await;
    assert_eq!(
        client
            .post("/v1/completions", &completion("x", json!({})))
            .await
            .0,
        200
    );
    let last = client
        .try_post("/v1/completions", &completion("x", json!({})))
        .await;
    assert!(last.is_err() || last.is_ok_and(|(status, _, _)| status == 500));
    let end = tokio::time::timeout(Duration::from_secs(5), engine.wait())
        .await
        .unwrap();
    assert!(matches!(end, Err(ModelledError::Died(_))));
}
