//! A prompt that is computed ahead, and the requests that begin with it.

use super::support::{ACME, App, GLOBEX, OPERATOR, expect_error};
use crate::accepted::Accepted;
use crate::stage::accept::{Call, Endpoint, accept};
use axum::http::HeaderMap;
use portolan_base::{RequestId, TenantName, Tokens};
use portolan_ports::{EngineFault, Principal};
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

/// What the host understands of a request of acme's.
fn accepted(app: &App, body: &Value) -> Accepted {
    let call = Call {
        endpoint: Endpoint::Completion,
        principal: Principal::Tenant(TenantName::new("acme").unwrap()),
        headers: HeaderMap::new(),
        body: body.to_string().into(),
        id: RequestId::from_client("r1").unwrap(),
        at: app.site.parts.clock.now(),
    };
    accept(&app.site, &call).unwrap().requests.remove(0)
}

#[tokio::test]
async fn who_goes_on_from_it_is_bound_as_it_was() {
    let app = App::new();
    let bound = json!({"jurisdiction": "eu", "user_class": "sensitive",
                       "dependencies": [{"kind": "document", "name": "h", "version": "7"}]});
    let told = warm(
        &app,
        json!({"model": "fake", "prompt": "about a patient", "cache_salt": "s", "portolan": bound}),
    )
    .await;
    let with = |more: Value| {
        let mut hints = json!({"cache_id": told["id"]});
        hints
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"model": "fake", "prompt": "x", "portolan": hints})
    };
    let request = accepted(&app, &with(json!({})));
    assert_eq!(
        (
            request.tenant.jurisdiction.as_str(),
            request.tenant.user_class.as_str()
        ),
        ("eu", "sensitive")
    );
    assert_eq!(request.cache_salt.as_deref(), Some("s"));
    let named = |request: &Accepted| {
        let named = request.dependencies.iter();
        named
            .map(|d| format!("{} {}", d.name, d.version))
            .collect::<Vec<_>>()
    };
    assert_eq!(named(&request), ["h 7"]);
    let more =
        json!({"user_class": "secret", "dependencies": [{"kind": "document", "name": "g", "version": "1"}]});
    let request = accepted(&app, &with(more));
    assert_eq!(request.tenant.user_class, "secret", "it may narrow further");
    assert_eq!(named(&request), ["g 1", "h 7"]);

    for elsewhere in ["us", "any"] {
        let reply = app.complete(with(json!({"jurisdiction": elsewhere}))).await;
        let expected = (
            403,
            "permission_error",
            Some("portolan.jurisdiction"),
            "stays in eu",
        );
        expect_error(elsewhere, &reply, expected);
    }
    let newer = json!({"dependencies": [{"kind": "document", "name": "h", "version": "8"}]});
    let expected = (
        400,
        "invalid_request_error",
        Some("portolan.dependencies"),
        "at version 7",
    );
    expect_error("another version", &app.complete(with(newer)).await, expected);

    // What is computed ahead on top of it is bound as well.
    let on_top = warm(&app, with(json!({}))).await;
    let request = accepted(
        &app,
        &json!({"model": "fake", "prompt": "y", "portolan": {"cache_id": on_top["id"]}}),
    );
    assert_eq!(
        (request.tenant.jurisdiction.as_str(), named(&request)),
        ("eu", vec!["h 7".to_owned()])
    );
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
    let acme = TenantName::new("acme").unwrap();
    assert_eq!(
        app.site.outputs.expected(&acme, 100),
        100,
        "it is no answer of none"
    );
    assert_eq!(
        (app.fleet.settled_requests(), app.fleet.decided_requests()),
        (vec![], vec![])
    );
    let asked = json!({"model": "fake", "prompt": "hello", "temperature": 0, "max_tokens": 2});
    assert_eq!(app.complete(asked).await.status, 200);
    assert_eq!(app.site.outputs.expected(&acme, 100), 2);
    assert_eq!(app.fleet.settled_requests().len(), 1);
    assert_eq!(
        app.fleet.decided_requests(),
        [Tokens(5)],
        "once, however often the index is asked"
    );
    let broken = portolan_ports::EngineError::Broken("burnt".to_owned());
    app.engine.set_fault(Some(EngineFault::FailPrefill(broken)));
    let reply = app
        .post_as(ACME, DOOR, json!({"model": "fake", "prompt": "hello"}))
        .await;
    assert_eq!(reply.status, 503, "{reply:?}");
}

#[tokio::test]
async fn what_concerns_the_answer_is_read_and_binds_nothing() {
    let app = App::new();
    let body = json!({"model": "fake", "prompt": "the beginning", "n": 3, "stream": true, "max_tokens": 100_000,
                      "min_tokens": 50, "temperature": 0.5, "stop": ["x"]});
    assert_eq!(
        warm(&app, body).await["prompt_tokens"],
        "the beginning".len() as u64
    );
    let expected = (400, "invalid_request_error", Some("n"), "at least 1");
    let reply = app
        .post(DOOR, json!({"model": "fake", "prompt": "a", "n": 0}))
        .await;
    expect_error("read, all the same", &reply, expected);
    let reply = app
        .post(DOOR, json!({"model": "fake", "prompt": ["a", "b"]}))
        .await;
    let expected = (400, "invalid_request_error", Some("prompt"), "one prompt");
    expect_error("two prompts", &reply, expected);
}
