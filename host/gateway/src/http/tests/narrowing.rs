//! What a key may ask for: narrower than its tenant, never wider; and the same said in headers.

use super::bad_input::{INVALID, completion};
use super::support::{ACME, App, GLOBEX, OPERATOR, expect_error, request};
use axum::body::Body;
use axum::http::Method;
use serde_json::{Value, json};

#[tokio::test]
async fn a_key_may_narrow_and_never_widen() {
    let app = App::new();
    let portolan = |hints: Value| completion(json!({"portolan": hints}));
    for good in [
        json!({"jurisdiction": "eu"}),
        json!({"user_class": "sensitive"}),
        json!({"user_class": "secret"}),
        json!({}),
    ] {
        let reply = app
            .post_as(GLOBEX, "/v1/completions", portolan(good.clone()))
            .await;
        assert_eq!(reply.status, 200, "{good}: {reply:?}");
    }
    for (hints, field) in [
        (json!({"jurisdiction": "us"}), "portolan.jurisdiction"),
        (json!({"jurisdiction": "any"}), "portolan.jurisdiction"),
        (json!({"user_class": "standard"}), "portolan.user_class"),
    ] {
        let reply = app.post_as(GLOBEX, "/v1/completions", portolan(hints)).await;
        expect_error("widening", &reply, (403, "permission_error", Some(field), field));
    }
    let reply = app
        .post_as("key-lost", "/v1/completions", completion(json!({})))
        .await;
    expect_error(
        "a tenant whose jurisdiction no site knows",
        &reply,
        (500, "server_error", None, "operator"),
    );
}

#[tokio::test]
async fn the_operator_infers_only_as_a_tenant() {
    let app = App::new();
    let reply = app
        .post_as(OPERATOR, "/v1/completions", completion(json!({})))
        .await;
    expect_error(
        "no tenant",
        &reply,
        (
            403,
            "permission_error",
            Some("tenant_id"),
            "name one in tenant_id",
        ),
    );
    let reply = app
        .post_as(
            OPERATOR,
            "/v1/completions",
            completion(json!({"tenant_id": "nobody"})),
        )
        .await;
    expect_error(
        "unknown tenant",
        &reply,
        (404, "not_found_error", Some("tenant_id"), "no tenant"),
    );
    let body = completion(json!({"tenant_id": "acme", "request_id": "as-acme"}));
    assert_eq!(app.post_as(OPERATOR, "/v1/completions", body).await.status, 200);
    assert_eq!(app.get(ACME, "/v1/portolan/requests/as-acme").await.status, 200);
}

#[tokio::test]
async fn headers_say_the_same_as_the_body_or_are_refused() {
    let app = App::new();
    let send = async |headers: &[(&str, &str)], body: Value| {
        let mut request = request(
            Method::POST,
            "/v1/completions",
            ACME,
            Body::from(body.to_string()),
        );
        for (name, value) in headers {
            request.headers_mut().append(
                axum::http::HeaderName::try_from(*name).unwrap(),
                value.parse().unwrap(),
            );
        }
        app.send(request).await
    };
    let all = [
        ("x-portolan-session", "s1"),
        ("x-portolan-user-class", "sensitive"),
        ("x-portolan-priority", "3"),
        ("x-portolan-ttft-slo-ms", "250"),
        ("x-portolan-batch", "true"),
        ("x-portolan-jurisdiction", "eu"),
        ("x-portolan-label-team", "blue"),
        ("x-portolan-request-id", "from-header"),
    ];
    let reply = send(
        &all,
        completion(json!({"portolan": {"jurisdiction": "eu", "labels": {"team": "blue"}}})),
    )
    .await;
    assert_eq!(
        (reply.status.as_u16(), reply.header("x-portolan-request-id")),
        (200, "from-header")
    );
    let disagree = completion(json!({"portolan": {"jurisdiction": "us"}}));
    let reply = send(&all, disagree).await;
    expect_error(
        "disagreement",
        &reply,
        (400, INVALID, Some("portolan.jurisdiction"), "send it once"),
    );
    for (name, value, phrase) in [
        ("x-portolan-jurisdcition", "eu", "is unknown"),
        ("x-portolan-priority", "high", "whole number"),
        ("x-portolan-batch", "maybe", "true or false"),
        ("x-portolan-session", "\u{e9}", "printable ASCII"),
    ] {
        let reply = send(&[(name, value)], completion(json!({}))).await;
        expect_error(name, &reply, (400, INVALID, Some(name), phrase));
    }
    let twice = [("x-portolan-session", "a"), ("x-portolan-session", "b")];
    let reply = send(&twice, completion(json!({}))).await;
    expect_error(
        "twice",
        &reply,
        (400, INVALID, Some("x-portolan-session"), "more than once"),
    );
}
