//! Signatures and four eyes at the doors.

use super::support::{ACME, App, OPERATOR, Reply, request};
use crate::policies::FourEyes;
use axum::body::Body;
use axum::http::Method;
use portolan_ports::FakeSignatures;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const SLOT: &str = "/v1/portolan/tenants/acme/policies/routing";
const PLATFORM: &str = "/v1/portolan/tenants/_platform/policies/routing";
const PROPOSALS: &str = "/v1/portolan/proposals";
const ALICE: &str = "key-alice";
const BOB: &str = "key-bob";
const KEY: &str = "aaaaaaaaaaaaaaaa";

fn line(key: &str, digit: &str) -> String {
    format!("portolan-signature-1 ed25519 {key} {}", digit.repeat(128))
}

async fn put(app: &App, (key, path): (&str, &str), component: &'static str, signature: &str) -> Reply {
    let mut request = request(Method::PUT, path, key, Body::from(component));
    if !signature.is_empty() {
        let value = signature.parse().unwrap();
        request.headers_mut().insert("x-portolan-signature", value);
    }
    app.send(request).await
}

fn code(reply: &Reply) -> String {
    let body = reply.json();
    let finding = body["findings"][0]["code"].as_str();
    let code = finding.or_else(|| body["error"]["code"].as_str());
    code.unwrap_or_default().to_owned()
}

#[tokio::test]
async fn the_signature_comes_in_a_header_and_is_kept_with_the_version() {
    let app = App::ruled(|desk| {
        desk.demanding(Arc::new(FakeSignatures {
            trusted: vec![KEY.to_owned()],
        }))
    });
    for (signature, expected) in [
        (String::new(), "unsigned"),
        (line("bbbbbbbbbbbbbbbb", "1"), "unknown-key"),
        (line(KEY, "0"), "bad-signature"),
        ("nonsense".to_owned(), "bad-signature"),
    ] {
        let reply = put(&app, (ACME, SLOT), "ok:1", &signature).await;
        assert_eq!((reply.status.as_u16(), &*code(&reply)), (422, expected));
    }
    let both = format!("{}, {}", line("bbbbbbbbbbbbbbbb", "1"), line(KEY, "1"));
    let reply = put(&app, (ACME, SLOT), "ok:1", &both).await;
    assert_eq!(reply.status, 201, "{reply:?}");
    let slot = app.get(ACME, SLOT).await.json();
    let keys: Vec<_> = slot["versions"][0]["signatures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|signature| signature["key_id"].as_str().unwrap())
        .collect();
    assert_eq!(keys, ["bbbbbbbbbbbbbbbb", KEY]);
    assert!(slot.get("signature_findings").is_none(), "nothing is the matter");
}

fn four_eyes() -> App {
    let expiry = Duration::from_secs(3600);
    App::ruled(|desk| desk.with_four_eyes(FourEyes { expiry }))
}

#[tokio::test]
async fn a_platform_upload_is_proposed_and_another_operator_approves_it() {
    let app = four_eyes();
    let reply = put(&app, (ALICE, &format!("{PLATFORM}?reason=faster")), "ok:1", "").await;
    assert_eq!(reply.status, 202, "{reply:?}");
    let body = reply.json();
    assert_eq!(body["generation"], json!(null));
    assert_eq!(body["proposal"]["actor"], "operator alice");
    let approve = format!("{PROPOSALS}/{}/approve", body["proposal"]["id"]);

    for (key, status, expected) in [
        (ALICE, 403, "own_proposal"),
        (OPERATOR, 403, "unnamed_key"),
        (ACME, 403, ""),
        ("", 401, "invalid_api_key"),
    ] {
        let reply = app.post_as(key, &approve, json!({})).await;
        assert_eq!(reply.status, status, "{key}");
        assert!(
            expected.is_empty() || code(&reply) == expected,
            "{key}: {reply:?}"
        );
    }
    assert_eq!(app.get(ACME, PROPOSALS).await.status, 403);
    let list = app.get(BOB, PROPOSALS).await.json();
    assert_eq!(
        (&list["data"][0]["state"], &list["data"][0]["change"]),
        (&json!("pending"), &json!("activate"))
    );
    assert!(app.get(BOB, PLATFORM).await.json()["binding"].is_null());

    let decided = app.post_as(BOB, &approve, json!({ "reason": "read it" })).await;
    assert_eq!(decided.status, 200, "{decided:?}");
    assert_eq!(decided.json()["binding"]["sha256"], body["version"]);
    let slot = app.get(BOB, PLATFORM).await.json();
    assert_eq!(slot["binding"]["actor"], "operator alice, with operator bob");
    let again = app.post_as(BOB, &approve, json!({})).await;
    assert_eq!((again.status.as_u16(), &*code(&again)), (409, "policy_conflict"));
}

#[tokio::test]
async fn every_change_of_the_platform_answers_202_and_a_tenants_none() {
    let app = four_eyes();
    let reply = put(&app, (ALICE, PLATFORM), "ok:1", "").await;
    let id = reply.json()["proposal"]["id"].clone();
    app.post_as(BOB, &format!("{PROPOSALS}/{id}/approve"), json!({}))
        .await;
    let second = put(&app, (ALICE, &format!("{PLATFORM}?activate=false")), "ok:2", "").await;
    assert_eq!(second.status, 201, "to keep a version changes nothing");
    let version = second.json()["version"].clone();
    for (change, body) in [
        ("activate", json!({ "version": version })),
        ("canary", json!({ "version": version, "percent": 5 })),
        ("shadow", json!({ "version": version })),
        ("pin", json!({})),
    ] {
        let reply = app.post_as(ALICE, &format!("{PLATFORM}/{change}"), body).await;
        assert_eq!(reply.status, 202, "{change}: {reply:?}");
    }
    let unbound = app
        .send(request(Method::DELETE, PLATFORM, ALICE, Body::empty()))
        .await;
    assert_eq!(unbound.status, 202);
    let disabled = app
        .post_as(ALICE, &format!("{PLATFORM}/disable"), json!({}))
        .await;
    assert_eq!(disabled.status, 200, "an emergency waits for nobody");
    assert_eq!(put(&app, (ACME, SLOT), "ok:1", "").await.status, 201);

    let unknown = app
        .post_as(BOB, &format!("{PROPOSALS}/99/approve"), json!({}))
        .await;
    assert_eq!(unknown.status, 404);
    for path in ["x/approve", "1/applaud"] {
        let reply = app.post_as(BOB, &format!("{PROPOSALS}/{path}"), json!({})).await;
        assert_eq!(reply.status, 404, "{path}");
    }
}
