//! A prompt that is computed ahead, and the requests that begin with it.

use super::support::{ACME, App, GLOBEX, OPERATOR, expect_error};
use portolan_ports::EngineFault;
use serde_json::{Value, json};

const DOOR: &str = "/v1/portolan/prewarm";

async fn warm(app: &App, body: Value) -> Value {
    let reply = app.post(DOOR, body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

#[tokio::test]
async fn a_prompt_is_computed_and_named_and_a_request_goes_on_from_it() {
    let app = App::new();
    let text = "the long beginning of every prompt of this application, which never changes";
    let body = json!({"model": "fake", "prompt": text, "portolan": {"ttl_s": 60}});
    let told = warm(&app, body).await;
    assert_eq!(told["object"], "prewarm");
    assert_eq!(
        (&told["site"], &told["instance"]),
        (&json!("paris"), &json!("e1"))
    );
    let tokens = told["prompt_tokens"].as_u64().unwrap();
    assert_eq!(
        told["computed_tokens"],
        tokens - 1,
        "decode runs the last one: {told}"
    );
    assert_eq!(told["expires_at"], 1_767_225_660);
    let id = told["id"].as_str().unwrap();
    assert!(id.starts_with("cache-"), "{id}");
    let next = json!({"model": "fake", "prompt": " and its end", "temperature": 0, "max_tokens": 200,
                      "portolan": {"cache_id": id}});
    let answer = app.complete(next).await.json();
    let whole = json!({"model": "fake", "prompt": format!("{text} and its end"), "temperature": 0, "max_tokens": 200});
    let expected = app.complete(whole).await.json();
    assert_eq!(
        answer["choices"][0]["text"], expected["choices"][0]["text"],
        "as if sent in one piece"
    );
    assert_eq!(
        answer["usage"]["prompt_tokens"],
        expected["usage"]["prompt_tokens"]
    );
}

#[tokio::test]
async fn messages_go_behind_messages_and_ids_behind_ids() {
    let app = App::new();
    let system = json!([{"role": "system", "content": "be brief"}]);
    let told = warm(&app, json!({"model": "fake", "messages": system})).await;
    let id = &told["id"];
    let user = json!([{"role": "user", "content": "hello"}]);
    let body = json!({"model": "fake", "messages": user, "portolan": {"cache_id": id}});
    let answer = app.chat(body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.json()["usage"]["prompt_tokens"].as_u64() > told["prompt_tokens"].as_u64());
    let other = json!({"model": "fake", "prompt": "hello", "portolan": {"cache_id": id}});
    let expected = (
        400,
        "invalid_request_error",
        Some("portolan.cache_id"),
        "another kind",
    );
    expect_error("text behind messages", &app.complete(other).await, expected);
    let told = warm(&app, json!({"model": "fake", "prompt": [1, 2, 3]})).await;
    let body = json!({"model": "fake", "prompt": [4, 5], "portolan": {"cache_id": told["id"]}});
    assert_eq!(app.complete(body).await.json()["usage"]["prompt_tokens"], 5);
}

#[tokio::test]
async fn nobody_elses_and_nothing_unknown_is_gone_on_from() {
    let app = App::new();
    let told = warm(&app, json!({"model": "fake", "prompt": "secret beginning"})).await;
    let body = json!({"model": "fake", "prompt": "x", "portolan": {"cache_id": told["id"]}});
    let expected = (
        404,
        "not_found_error",
        Some("portolan.cache_id"),
        "names no prompt of yours",
    );
    expect_error(
        "globex",
        &app.post_as(GLOBEX, "/v1/completions", body).await,
        expected,
    );
    let body = json!({"model": "fake", "prompt": "x", "portolan": {"cache_id": "cache-0"}});
    expect_error("unknown", &app.complete(body).await, expected);
}

#[tokio::test]
async fn what_cannot_be_computed_ahead_is_said() {
    let app = App::new();
    for (what, body, param, phrase) in [
        (
            "several",
            json!({"model": "fake", "prompt": ["a", "b"]}),
            "prompt",
            "one prompt",
        ),
        (
            "n",
            json!({"model": "fake", "prompt": "a", "n": 2}),
            "prompt",
            "one prompt",
        ),
        (
            "far",
            json!({"model": "fake", "prompt": "a", "prefill_policy": "remote_required"}),
            "prefill_policy",
            "local_only",
        ),
        (
            "long",
            json!({"model": "fake", "prompt": "a", "portolan": {"ttl_s": 3601}}),
            "portolan.ttl_s",
            "3600",
        ),
    ] {
        let expected = (400, "invalid_request_error", Some(param), phrase);
        expect_error(what, &app.post(DOOR, body).await, expected);
    }
    let asked = json!({"model": "fake", "prompt": "a", "portolan": {"ttl_s": 60}});
    let expected = (
        400,
        "invalid_request_error",
        Some("portolan.ttl_s"),
        "/v1/portolan/prewarm",
    );
    expect_error("a life for a request", &app.complete(asked).await, expected);
    assert_eq!(app.post_as("wrong", DOOR, json!({})).await.status, 401);
}

#[tokio::test]
async fn its_record_says_what_was_asked_and_a_failure_leaves_no_id() {
    let app = App::new();
    let body = json!({"model": "fake", "prompt": "hello", "request_id": "w1"});
    warm(&app, body).await;
    let record = app.get(OPERATOR, "/v1/portolan/requests/w1").await.json();
    assert_eq!(record["status"], "ok", "{record}");
    assert_eq!(record["request"]["kind"], 2, "{record}");
    assert_eq!(
        (&record["completion_tokens"], &record["ttft_ms"]),
        (&json!(0), &Value::Null)
    );
    let broken = portolan_ports::EngineError::Broken("burnt".to_owned());
    app.engine.set_fault(Some(EngineFault::FailPrefill(broken)));
    let reply = app
        .post_as(ACME, DOOR, json!({"model": "fake", "prompt": "hello"}))
        .await;
    assert_eq!(reply.status, 503, "{reply:?}");
}
