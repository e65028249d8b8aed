//! Answers in one piece, field by field.

use super::support::{ACME, App, GLOBEX, OPERATOR, Reply, merged};
use crate::site::Limits;
use portolan_base::TenantName;
use portolan_ports::FakeText;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// The rendered prompt of [`chat`], which the fake engine repeats.
const RENDERED: &str = "system: You are a cat.\nuser: hé\nthere\nassistant: ";

fn chat(changes: Value) -> Value {
    let body = json!({
        "model": "fake",
        "temperature": 0,
        "max_completion_tokens": 12,
        "messages": [
            {"role": "developer", "content": "You are a cat."},
            {"role": "user", "content": [{"type": "text", "text": "hé"}, {"type": "text", "text": "there"}]},
        ],
    });
    merged(body, changes)
}

fn completion(changes: Value) -> Value {
    let body = json!({"model": "fake", "temperature": 0, "max_tokens": 3, "prompt": "hello"});
    merged(body, changes)
}

#[tokio::test]
async fn a_chat_has_openais_shape() {
    let reply = App::new().chat(chat(json!({"request_id": "r1"}))).await;
    assert_eq!(
        (reply.status.as_u16(), reply.header("content-type")),
        (200, "application/json")
    );
    assert_eq!(reply.header("x-portolan-request-id"), "r1");
    let body = reply.json();
    assert_eq!(
        keys(&body),
        ["choices", "created", "id", "model", "object", "usage"]
    );
    assert_eq!(
        (&body["id"], &body["object"]),
        (&json!("chatcmpl-r1"), &json!("chat.completion"))
    );
    assert_eq!(
        (&body["created"], &body["model"]),
        (&json!(1_767_225_600), &json!("fake"))
    );
    let choice = json!({
        "index": 0,
        "message": {"role": "assistant", "content": &RENDERED[..12], "refusal": null},
        "logprobs": null,
        "finish_reason": "length",
    });
    assert_eq!(body["choices"], json!([choice]));
    let prompt = RENDERED.len();
    let usage = json!({
        "prompt_tokens": prompt,
        "completion_tokens": 12,
        "total_tokens": prompt + 12,
        "prompt_tokens_details": {"cached_tokens": 0},
    });
    assert_eq!(body["usage"], usage);
}

#[tokio::test]
async fn a_completion_has_openais_shape() {
    let body = App::new()
        .complete(completion(json!({"request_id": "r2"})))
        .await
        .json();
    assert_eq!(
        keys(&body),
        ["choices", "created", "id", "model", "object", "usage"]
    );
    assert_eq!(
        (&body["id"], &body["object"]),
        (&json!("cmpl-r2"), &json!("text_completion"))
    );
    let choice = json!({"index": 0, "text": "hel", "logprobs": null, "finish_reason": "length"});
    assert_eq!(body["choices"], json!([choice]));
    assert_eq!(body["usage"]["total_tokens"], 8);
}

#[tokio::test]
async fn defaults_and_ends() {
    let app = App::new();
    let long = completion(json!({"max_tokens": null, "prompt": "abcdefghijklmnopqrstuvwxyz"}));
    let body = app.complete(long).await.json();
    assert_eq!(
        body["choices"][0]["text"], "abcdefghijklmnop",
        "16 tokens unless asked otherwise"
    );
    let body = app.complete(completion(json!({"max_tokens": 90}))).await.json();
    assert_eq!(
        (&body["choices"][0]["text"], &body["choices"][0]["finish_reason"]),
        (&json!("hello"), &json!("stop"))
    );
    let body = app
        .complete(completion(json!({"max_tokens": 90, "stop": "l"})))
        .await
        .json();
    assert_eq!(
        (&body["choices"][0]["text"], &body["choices"][0]["finish_reason"]),
        (&json!("he"), &json!("stop"))
    );
    let body = app
        .complete(completion(json!({"max_tokens": 8, "ignore_eos": true})))
        .await
        .json();
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    let body = app
        .complete(completion(json!({"prompt": "x".repeat(509), "max_tokens": 3})))
        .await
        .json();
    assert_eq!(
        body["usage"]["total_tokens"], 512,
        "the context may be filled to the last token"
    );
}

#[tokio::test]
async fn every_form_of_prompt_means_the_same() {
    let app = App::new();
    let ids: Vec<u32> = b"hello".iter().copied().map(u32::from).collect();
    for prompt in [json!("hello"), json!(["hello"]), json!(ids), json!([ids])] {
        let body = app.complete(completion(json!({"prompt": prompt}))).await.json();
        assert_eq!(body["choices"][0]["text"], "hel", "{prompt}");
    }
}

#[tokio::test]
async fn prompts_and_choices_are_numbered_prompt_by_prompt() {
    let app = App::new();
    let body = completion(json!({
        "prompt": ["abcdef", "uvwxyz"], "n": 2, "temperature": 1, "seed": 1, "max_tokens": 2, "request_id": "b",
    }));
    let body = app.complete(body).await.json();
    let choices = body["choices"].as_array().unwrap();
    let indices: Vec<_> = choices
        .iter()
        .map(|choice| choice["index"].as_u64().unwrap())
        .collect();
    let texts: Vec<_> = choices
        .iter()
        .map(|choice| choice["text"].as_str().unwrap())
        .collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert_eq!(texts, ["bc", "cd", "vw", "wx"], "seeds differ by choice");
    assert_eq!(body["usage"]["prompt_tokens"], 12, "a prompt counts once");
    assert_eq!(body["usage"]["completion_tokens"], 8);
    for (id, text) in [("b-1", "abcdef"), ("b-4", "uvwxyz")] {
        let record = app.get(ACME, &format!("/v1/portolan/requests/{id}")).await.json();
        assert_eq!(record["prompt_tokens"], text.len());
    }
}

#[tokio::test]
async fn token_ids_come_when_asked_for() {
    let app = App::new();
    let ids = |text: &str| json!(text.bytes().collect::<Vec<_>>());
    let body = app
        .complete(completion(json!({"return_token_ids": true})))
        .await
        .json();
    assert_eq!(body["choices"][0]["token_ids"], ids("hel"));
    assert_eq!(body["choices"][0]["prompt_token_ids"], ids("hello"));
    let body = app.chat(chat(json!({"return_token_ids": true}))).await.json();
    assert_eq!(body["choices"][0]["token_ids"], ids(&RENDERED[..12]));
    assert_eq!(body["prompt_token_ids"], ids(RENDERED));
}

#[tokio::test]
async fn fields_that_ask_for_nothing_are_taken() {
    let harmless = json!({
        "logprobs": null, "echo": false, "suffix": "", "best_of": 1, "logit_bias": {}, "presence_penalty": 0,
        "frequency_penalty": 0.0, "user": "someone", "store": false, "metadata": {"a": 1}, "service_tier": "auto",
        "top_k": -1, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "made_up": [1, 2],
    });
    assert_eq!(App::new().complete(completion(harmless)).await.status, 200);
}

#[tokio::test]
async fn a_stop_token_of_the_clients_ends_the_answer() {
    let ids: Vec<u32> = "l".bytes().map(u32::from).collect();
    let body = json!({"max_tokens": 5, "stop_token_ids": ids, "min_p": 0.1, "repetition_penalty": 1.2, "min_tokens": 1});
    let answer = App::new().complete(completion(body)).await.json();
    assert_eq!(answer["choices"][0]["text"], "he");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn a_repeated_prompt_is_cached() {
    let app = App::new();
    let body = || completion(json!({"prompt": "a prompt of more than thirty-two tokens", "max_tokens": 1}));
    let cached = |reply: Reply| reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!(cached(app.complete(body()).await), 0);
    assert_eq!(cached(app.complete(body()).await), 32);
}

#[tokio::test]
async fn a_long_body_is_accepted_off_the_serving_threads() {
    let padding = "x".repeat(64 << 10);
    let body = App::new()
        .complete(completion(json!({"metadata": {"padding": padding}})))
        .await
        .json();
    assert_eq!(body["choices"][0]["text"], "hel");
}

#[tokio::test]
async fn long_bodies_of_one_tenant_wait_for_each_other_and_keep_no_other_tenant_waiting() {
    let app = Arc::new(App::new());
    let long = || completion(json!({"metadata": {"padding": "x".repeat(64 << 10)}}));
    let acme = TenantName::new("acme").unwrap();
    let turn = app.site.tokenising.take(Some(acme)).await;
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let (app, body) = (Arc::clone(&app), long());
            tokio::spawn(async move { app.complete(body).await.status })
        })
        .collect();
    let soon = Duration::from_secs(20);
    let other = tokio::time::timeout(soon, app.post_as(GLOBEX, "/v1/completions", long())).await;
    assert_eq!(other.expect("another tenant's turn comes").status, 200);
    assert!(
        waiting.iter().all(|request| !request.is_finished()),
        "its own wait"
    );
    drop(turn);
    for request in waiting {
        assert_eq!(tokio::time::timeout(soon, request).await.unwrap().unwrap(), 200);
    }
}

#[tokio::test]
async fn a_tenant_has_no_more_requests_read_at_once_than_it_may_have_in_flight() {
    let limits = Limits {
        tenant_in_flight: 1,
        ..Limits::default()
    };
    let app = App::with(FakeText::new(), limits);
    let acme = TenantName::new("acme").unwrap();
    let reading = app.site.reading.enter(&acme).unwrap();
    let refused = app.complete(completion(json!({}))).await;
    assert_eq!(
        (refused.status.as_u16(), refused.header("retry-after")),
        (429, "1")
    );
    assert_eq!(refused.json()["error"]["code"], "tenant_limit");
    let other = app
        .post_as(GLOBEX, "/v1/completions", completion(json!({})))
        .await;
    assert_eq!(other.status, 200);
    drop(reading);
    assert_eq!(app.complete(completion(json!({}))).await.status, 200);
}

#[tokio::test]
async fn models_health_and_metrics() {
    let app = App::new();
    let card = json!({
        "id": "fake", "object": "model", "created": 1_700_000_000, "owned_by": "portolan", "max_model_len": 512,
    });
    assert_eq!(
        app.get(ACME, "/v1/models").await.json(),
        json!({"object": "list", "data": [card]})
    );
    assert_eq!(app.get(ACME, "/v1/models/fake").await.json(), card);
    assert_eq!(app.get("", "/health").await.status, 200);
    app.complete(completion(json!({}))).await;
    app.complete(completion(json!({"model": "nope"}))).await;
    let metrics = app.get("", "/metrics").await;
    assert!(
        metrics
            .header("content-type")
            .starts_with("application/openmetrics-text; version=1.0.0")
    );
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    for line in [
        "portolan_requests_total{tenant=\"acme\",model=\"fake\",outcome=\"ok\"} 1",
        "portolan_prompt_tokens_total{tenant=\"acme\",model=\"fake\"} 5",
        "portolan_completion_tokens_total{tenant=\"acme\",model=\"fake\"} 3",
        "portolan_time_to_first_token_seconds_count{tenant=\"acme\",model=\"fake\"} 1",
        "portolan_stage_duration_seconds_count{stage=\"decode\"} 1",
        "portolan_http_errors_total{kind=\"not_found\"} 1",
        "# EOF",
    ] {
        assert!(text.contains(line), "{line} is missing:\n{text}");
    }
}

#[tokio::test]
async fn the_fleet_is_the_operators_to_see() {
    let app = App::new();
    let fleet = app.get(OPERATOR, "/v1/portolan/fleet").await.json();
    assert_eq!(
        fleet["sites"],
        json!([{"name": "paris", "region": "europe", "jurisdiction": "eu"}])
    );
    assert_eq!(fleet["instances"][0]["site"], "paris");
    assert_eq!(fleet["instances"][0]["model"], "fake");
    let quarantine = app.get(OPERATOR, "/v1/portolan/kv/quarantine").await.json();
    assert_eq!(quarantine, json!({"object": "list", "data": []}));
    for path in [
        "/v1/portolan/fleet",
        "/v1/portolan/audit",
        "/v1/portolan/kv/quarantine",
    ] {
        assert_eq!(app.get(ACME, path).await.status, 403, "{path}");
        assert_eq!(app.get("", path).await.status, 401, "{path}");
    }
}
