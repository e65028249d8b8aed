//! A routing policy that always defers: its request ends soon, and leaves no more behind than any other.

use super::support::{ACME, App, OPERATOR, expect_error, request};
use crate::policies::PolicySlot;
use axum::body::Body;
use axum::http::Method;
use portolan_base::TenantName;
use portolan_decide::deferral::MAX_DEFERRALS;
use portolan_policy::{QuestionKind, Scope};
use serde_json::json;

#[tokio::test]
async fn a_policy_that_always_defers_is_asked_a_few_times_counted_each_and_recorded_once() {
    let app = App::new();
    let slot = "/v1/portolan/tenants/acme/policies/routing";
    let put = app
        .send(request(Method::PUT, slot, ACME, Body::from("defers:for ever")))
        .await;
    assert_eq!(put.status, 201, "{put:?}");
    let prompt = json!({"model": "fake", "prompt": "hello there", "request_id": "d1"});
    let reply = app.complete(prompt).await;
    let expected = (
        503,
        "service_unavailable_error",
        None,
        "held the request for too long",
    );
    expect_error("deferred", &reply, expected);
    assert_eq!(reply.json()["error"]["code"], "deferred");

    let record = app.get(OPERATOR, "/v1/portolan/requests/d1").await.json();
    let asked = |question: &str| {
        let calls = record["policies"].as_array().unwrap().iter();
        calls.filter(|call| call["question"] == question).count()
    };
    assert_eq!((asked("cost"), asked("routing")), (1, 1), "{record}");

    let acme = Scope::Tenant(TenantName::new("acme").unwrap());
    let counts = app
        .site
        .parts
        .desk
        .counts(&PolicySlot::new(acme, QuestionKind::Routing));
    let calls: u64 = counts.values().map(|of_version| of_version.calls).sum();
    assert_eq!(calls, u64::from(MAX_DEFERRALS) + 1);
    let told = String::from_utf8(app.get("", "/metrics").await.body.to_vec()).unwrap();
    let mut lines = told
        .lines()
        .filter(|line| line.starts_with("portolan_policy_calls_total"));
    assert!(
        lines.any(|line| line.contains("routing") && line.ends_with(&format!(" {calls}"))),
        "{told}"
    );
}
