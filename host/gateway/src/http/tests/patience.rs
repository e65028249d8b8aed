//! Slow and broken instances: the next route, the breakers, the budget of second tries, and taking one out of service.

use super::support::{ACME, App, OPERATOR, expect_error};
use axum::body::Body;
use portolan_decide::{InstanceIndex, RetryConfig, Timeouts};
use portolan_ports::{EngineError, EngineFault, InstanceOutcome, PolicyStore};
use serde_json::{Value, json};
use std::time::Duration;

const E1: InstanceIndex = InstanceIndex(0);

/// An app of these instances, of which the first is the best by far, that waits for nobody longer than a moment.
fn app(instances: &[&str]) -> App {
    app_with(instances, RetryConfig::default())
}

fn app_with(instances: &[&str], retries: RetryConfig) -> App {
    let moment = Duration::from_millis(30);
    let timeouts = Timeouts {
        local_prefill: moment,
        local_decode: moment,
        longest: moment * 10,
        ..Timeouts::default()
    };
    let app = App::patient(instances, timeouts, retries);
    let mut view = (*app.site.parts.fleet.view()).clone();
    for (queue, instance) in (0u32..).zip(&mut view.instances) {
        instance.prefill_queued_tokens = queue * 10_000;
        instance.prefill_ns_per_token = 100_000;
        instance.decode_step_us = 100 + queue * 10_000;
    }
    app.fleet.set_view(view);
    app
}

fn prompt() -> Value {
    json!({"model": "fake", "prompt": "hello", "temperature": 0, "request_id": "r1"})
}

async fn record(app: &App) -> Value {
    app.get(OPERATOR, "/v1/portolan/requests/r1").await.json()
}

#[tokio::test]
async fn a_prefill_that_hangs_is_left_for_the_next_route_and_stopped() {
    let app = app(&["e1", "e2"]);
    app.engine.set_fault(Some(EngineFault::HangPrefill));
    let reply = app.complete(prompt()).await;
    assert_eq!(reply.json()["choices"][0]["text"], "hello", "{reply:?}");
    let fallback = &record(&app).await["fallbacks"][0];
    assert_eq!(fallback["reason"], "prefill at paris/e1 took longer than 30.0ms");
    assert_eq!(fallback["to"], "prefill at paris/e2");
    let mut cancelled = app.engine.cancelled();
    let stopped = cancelled.wait_for(|ids| ids.iter().any(|id| id.as_str() == "r1"));
    tokio::time::timeout(Duration::from_secs(5), stopped)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(app.fleet.outcomes()[0], (E1, InstanceOutcome::Failed));
    let metrics = app.get("", "/metrics").await;
    let metrics = std::str::from_utf8(&metrics.body).unwrap();
    assert!(
        metrics.contains(r#"portolan_fallbacks_total{stage="prefill",reason="slow"} 1"#),
        "{metrics}"
    );
}

#[tokio::test]
async fn the_last_route_is_waited_for_however_slow() {
    let app = app(&["e1"]);
    let slow = Duration::from_millis(150);
    app.engine.set_fault(Some(EngineFault::SlowPrefill(slow)));
    let reply = app.complete(prompt()).await;
    assert_eq!(reply.json()["choices"][0]["text"], "hello", "{reply:?}");
    assert_eq!(record(&app).await["fallbacks"], json!([]));
}

#[tokio::test]
async fn a_first_token_that_does_not_come_comes_from_another_instance() {
    let app = app(&["e1", "e2"]);
    app.engine.set_fault(Some(EngineFault::HangDecode(0)));
    let reply = app.complete(prompt()).await;
    assert_eq!(reply.json()["choices"][0]["text"], "hello", "{reply:?}");
    let record = record(&app).await;
    assert_eq!(record["route"]["decode_instance"], "e2", "{record}");
    assert_eq!(
        record["fallbacks"][0]["reason"],
        "decode at paris/e1 took longer than 30.0ms"
    );
}

#[tokio::test]
async fn an_answer_that_has_begun_is_waited_for_then_ended_with_an_error() {
    let app = app(&["e1", "e2"]);
    app.engine.set_fault(Some(EngineFault::HangDecode(2)));
    let body =
        json!({"model": "fake", "prompt": "hello", "temperature": 0, "request_id": "r1", "stream": true});
    let reply = app.complete(body).await;
    let end = reply.events();
    assert!(end.last().unwrap().contains("error"), "{end:?}");
    let record = record(&app).await;
    let reasons: Vec<_> = record["fallbacks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| &f["to"])
        .collect();
    assert_eq!(reasons, ["waiting on"]);
    assert_eq!(record["error"], "e1 produced no token for 300ms");
}

#[tokio::test]
async fn routes_that_use_what_failed_come_last() {
    let app = app(&["e1", "e2", "e3"]);
    app.engine
        .set_fault(Some(EngineFault::FailPrefill(EngineError::Broken(
            "burnt".into(),
        ))));
    let reply = app.complete(prompt()).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let record = record(&app).await;
    assert_eq!(record["fallbacks"].as_array().unwrap().len(), 1, "{record}");
    let route = &record["route"];
    assert_eq!(
        (&route["prefill_instance"], &route["decode_instance"]),
        (&json!("e2"), &json!("e2"))
    );
}

#[tokio::test]
async fn without_a_budget_there_is_one_last_try_at_this_site() {
    let nothing = RetryConfig {
        percent: 0,
        reserve: 0,
        ..RetryConfig::default()
    };
    let app = app_with(&["e1", "e2"], nothing);
    app.engine.set_fault(Some(EngineFault::HangPrefill));
    let reply = app.complete(prompt()).await;
    assert_eq!(reply.status, 200, "the last resort is not withheld: {reply:?}");
    let record = record(&app).await;
    let last = record["fallbacks"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["reason"], "the retry budget is spent");
    assert_eq!(last["to"], "prefill at paris/e2");
}

#[tokio::test]
async fn a_drained_instance_gets_nothing_more_until_it_is_resumed() {
    let app = app(&["e1", "e2"]);
    let path = |verb| format!("/v1/portolan/instances/e1/{verb}");
    let reply = app
        .post_as(OPERATOR, &path("drain"), json!({"reason": "new card"}))
        .await;
    assert_eq!(reply.json()["standing"], "draining", "{reply:?}");
    assert_eq!(app.complete(prompt()).await.status, 200);
    let drained = record(&app).await;
    assert_eq!(drained["route"]["prefill_instance"], "e2");
    assert_eq!(
        drained["left_out"],
        json!([{"site": "paris", "instance": "e1", "reason": "draining"}])
    );
    let reply = app.post_as(OPERATOR, &path("resume"), json!({})).await;
    assert_eq!(reply.json()["standing"], "ready", "{reply:?}");
    assert_eq!(app.complete(prompt()).await.status, 200);
    assert_eq!(record(&app).await["route"]["prefill_instance"], "e1");
    let audit = app.store.audit(2).unwrap();
    let told: Vec<_> = audit
        .iter()
        .map(|l| (&*l.action, &*l.subject, &*l.reason))
        .collect();
    assert_eq!(
        told,
        [
            ("instance.resume", "instance e1", ""),
            ("instance.drain", "instance e1", "new card")
        ]
    );
}

#[tokio::test]
async fn draining_is_the_operators_and_names_what_there_is() {
    let app = app(&["e1", "e2"]);
    let path = "/v1/portolan/instances/e9/drain";
    let expected = (404, "not_found_error", None, "its instances are e1, e2");
    expect_error("unknown", &app.post_as(OPERATOR, path, json!({})).await, expected);
    let reply = app
        .post_as(ACME, "/v1/portolan/instances/e1/drain", json!({}))
        .await;
    assert_eq!(reply.status, 403);
    let reply = app
        .post_as(OPERATOR, "/v1/portolan/instances/e1/drain", json!({"why": 1}))
        .await;
    assert_eq!(reply.status, 400, "{reply:?}");
    let empty = super::support::request(
        axum::http::Method::POST,
        "/v1/portolan/instances/e1/drain",
        OPERATOR,
        Body::empty(),
    );
    assert_eq!(app.send(empty).await.status, 200);
}
