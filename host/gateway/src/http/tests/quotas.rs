//! What a tenant may upload and keep, and what it is told of it.

use super::support::{ACME, App, GLOBEX, OPERATOR, Reply, request};
use axum::body::Body;
use axum::http::Method;
use portolan_ports::{PolicyStore, Quotas, StoreCall};
use serde_json::{Value, json};

const SLOT: &str = "/v1/portolan/tenants/acme/policies/routing";
const USAGE: &str = "/v1/portolan/tenants/acme/usage";

fn app(quotas: Quotas) -> App {
    App::bounded(quotas)
}

async fn put(app: &App, key: &str, query: &str, body: impl Into<Body>) -> Reply {
    app.send(request(Method::PUT, &format!("{SLOT}?{query}"), key, body.into()))
        .await
}

async fn delete(app: &App, key: &str, path: &str) -> Reply {
    app.send(request(Method::DELETE, path, key, Body::empty())).await
}

fn code(reply: &Reply) -> Value {
    reply.json()["error"]["code"].clone()
}

#[tokio::test]
async fn a_tenants_uploads_are_counted_refused_ones_too_and_the_operators_are_not() {
    let app = app(Quotas {
        uploads_per_hour: 2,
        ..Quotas::default()
    });
    assert_eq!(put(&app, ACME, "", "ok:1").await.status, 201);
    assert_eq!(put(&app, ACME, "", "no policy").await.status, 422);
    let third = put(&app, ACME, "", "ok:2").await;
    assert_eq!(
        (third.status.as_u16(), code(&third)),
        (429, json!("upload_quota"))
    );
    let wait: u64 = third.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((3500..=3660).contains(&wait), "{wait}");
    let message = third.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("2 components an hour") && message.contains("min"),
        "{message}"
    );
    assert_eq!(put(&app, OPERATOR, "", "ok:2").await.status, 201);
    let used = app.get(ACME, USAGE).await.json();
    assert_eq!(used["uploads_last_hour"], json!({"used": 2, "limit": 2}));
}

#[tokio::test]
async fn an_upload_that_the_host_had_no_room_for_does_not_count_and_one_that_it_compiled_in_vain_does() {
    let app = app(Quotas {
        uploads_per_hour: 1,
        ..Quotas::default()
    });
    let used = async || app.get(ACME, USAGE).await.json()["uploads_last_hour"]["used"].clone();
    for _ in 0..2 {
        assert_eq!(put(&app, ACME, "", "busy:1").await.status, 503);
        assert_eq!(put(&app, ACME, "activate=false", "busy:1").await.status, 503);
    }
    assert_eq!(used().await, 0);
    app.store.fail(StoreCall::PutVersion);
    assert_eq!(put(&app, ACME, "", "ok:1").await.status, 500);
    assert_eq!(used().await, 0);
    app.store.heal();
    assert_eq!(put(&app, ACME, "", "endless:1").await.status, 413);
    assert_eq!(used().await, 1);
    assert_eq!(put(&app, ACME, "", "ok:1").await.status, 429);
}

#[tokio::test]
async fn a_key_sees_the_usage_of_those_it_may_see() {
    let app = App::new();
    let listed = async |key: &str| -> Vec<String> {
        let reply = app.get(key, "/v1/portolan/usage").await.json();
        let data = reply["data"].as_array().unwrap().iter();
        data.map(|usage| {
            assert_eq!(usage["log_lines"], json!({"written": 0, "dropped": 0}));
            usage["tenant"].as_str().unwrap().to_owned()
        })
        .collect()
    };
    assert_eq!(listed(ACME).await, ["acme"]);
    assert_eq!(listed(OPERATOR).await, ["_platform", "acme", "globex", "lost"]);
    assert_eq!(app.get("nobody", "/v1/portolan/usage").await.status, 401);
}

#[tokio::test]
async fn the_oldest_version_that_nothing_needs_makes_room_and_what_is_needed_stays() {
    let app = app(Quotas {
        stored_versions: 4,
        ..Quotas::default()
    });
    for n in 1..=4 {
        assert_eq!(put(&app, ACME, "", format!("ok:{n}")).await.status, 201);
    }
    let versions = |slot: Value| -> Vec<Value> {
        let versions = slot["versions"].as_array().unwrap().iter();
        versions.map(|version| version["sha256"].clone()).collect()
    };
    let before = versions(app.get(ACME, SLOT).await.json());
    assert_eq!(put(&app, ACME, "", "ok:5").await.status, 201);
    let after = versions(app.get(ACME, SLOT).await.json());
    assert_eq!(after[..3], before[1..], "the oldest went");
    assert!(
        app.store.component(before[0].as_str().unwrap()).is_err(),
        "and its bytes"
    );
    let log = app.get(OPERATOR, "/v1/portolan/audit?tenant=acme").await.json();
    let pruned = log["data"]
        .as_array()
        .unwrap()
        .iter()
        .find(|line| line["action"] == "policy.prune");
    assert!(
        pruned.unwrap()["subject"]
            .to_string()
            .contains(before[0].as_str().unwrap())
    );

    // Three bindings can be gone back to; the fourth version is on trial.
    let trial = json!({"version": after[0], "reason": "try"});
    assert_eq!(app.post(&format!("{SLOT}/shadow"), trial).await.status, 200);
    let full = put(&app, ACME, "", "ok:6").await;
    assert_eq!((full.status.as_u16(), code(&full)), (409, json!("stored_quota")));
    let message = full.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("policy remove") && message.contains("4 versions"),
        "{message}"
    );
    assert_eq!(
        versions(app.get(ACME, SLOT).await.json()),
        after,
        "what is refused changes nothing"
    );
    assert_eq!(
        put(&app, ACME, "", "ok:5").await.status,
        201,
        "the same bytes need no room"
    );
}

#[tokio::test]
async fn a_version_is_removed_by_hand_unless_it_is_bound() {
    let app = App::new();
    let first = put(&app, ACME, "", "ok:1").await.json()["version"]
        .as_str()
        .unwrap()
        .to_owned();
    let second = put(&app, ACME, "", "ok:2").await.json()["version"]
        .as_str()
        .unwrap()
        .to_owned();
    let bound = delete(&app, ACME, &format!("{SLOT}/versions/{second}")).await;
    assert_eq!(
        (bound.status.as_u16(), code(&bound)),
        (409, json!("policy_conflict"))
    );
    let others = delete(&app, GLOBEX, &format!("{SLOT}/versions/{first}")).await;
    assert_eq!(others.status, 403);
    assert_eq!(
        delete(&app, ACME, &format!("{SLOT}/versions/{}", &first[..8]))
            .await
            .status,
        204
    );
    assert_eq!(
        delete(&app, ACME, &format!("{SLOT}/versions/{first}"))
            .await
            .status,
        404
    );
    let back = app.post(&format!("{SLOT}/rollback"), json!({})).await;
    assert_eq!(back.status, 404, "what was removed cannot come back: {back:?}");
}

#[tokio::test]
async fn the_same_bytes_under_another_name_are_answered_with_that_name() {
    let app = App::new();
    assert_eq!(put(&app, ACME, "name=one", "ok:1").await.json()["name"], "one");
    assert_eq!(
        put(&app, ACME, "name=two&activate=false", "ok:1").await.json()["name"],
        "two"
    );
    let slot = app.get(ACME, SLOT).await.json();
    assert_eq!(slot["versions"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&slot["versions"][0]["name"], &slot["binding"]["name"]),
        (&json!("two"), &json!("one"))
    );
    let version = slot["versions"][0]["sha256"].clone();
    let active = app
        .post(&format!("{SLOT}/activate"), json!({"version": version}))
        .await;
    assert_eq!(active.json()["name"], "two", "the later name counts");
}

#[tokio::test]
async fn a_long_configuration_travels_at_the_beginning_of_the_body() {
    let app = App::new();
    let config = format!("{{\"table\": \"{}\"}}", "x".repeat((64 << 10) - 13));
    assert_eq!(config.len(), 64 << 10);
    let query = format!("config_bytes={}", config.len());
    let sent = put(&app, ACME, &query, format!("{config}ok:1")).await;
    assert_eq!(sent.status, 201, "{sent:?}");
    let slot = app.get(ACME, SLOT).await.json();
    assert_eq!(slot["binding"]["config"], json!(config));
    assert_eq!(slot["versions"][0]["bytes"], 4);
    for (query, body) in [
        ("config_bytes=9", "ok:1"),
        ("config_bytes=1&config=x", "xok:1"),
        ("config_bytes=-1", "ok:1"),
    ] {
        assert_eq!(put(&app, ACME, query, body).await.status, 400, "{query}");
    }
    let long = put(&app, ACME, "config_bytes=65537", format!("{} ok:1", config)).await;
    assert_eq!(long.status, 400, "one byte too many");
}

#[tokio::test]
async fn an_upload_may_bring_its_budget() {
    let app = App::new();
    let sent = put(&app, ACME, "budget=%7B%22window%22%3A%2050%7D", "ok:1").await;
    assert_eq!(sent.status, 201, "{sent:?}");
    assert_eq!(
        app.get(ACME, SLOT).await.json()["binding"]["budget"]["window"],
        50
    );
    let bad = put(&app, ACME, "budget=%7B%22windows%22%3A%2050%7D", "ok:1").await;
    assert_eq!(
        (bad.status.as_u16(), &bad.json()["error"]["param"]),
        (400, &json!("budget"))
    );
}

#[tokio::test]
async fn an_upload_may_say_whether_its_instances_are_kept() {
    let app = App::new();
    assert_eq!(put(&app, ACME, "reuse=warm", "ok:1").await.status, 201);
    let slot = app.get(ACME, SLOT).await.json();
    assert_eq!(slot["binding"]["reuse"], "warm");
    let version = &slot["binding"]["sha256"];
    let body = json!({"version": version, "reuse": "fresh"});
    let again = app.post(&format!("{SLOT}/activate"), body).await;
    assert_eq!(again.json()["reuse"], "fresh", "{again:?}");
    let bad = put(&app, ACME, "reuse=hot", "ok:1").await;
    assert_eq!(
        (bad.status.as_u16(), &bad.json()["error"]["param"]),
        (400, &json!("reuse"))
    );
}

#[tokio::test]
async fn usage_is_the_tenants_own_and_the_operators() {
    let app = App::new();
    put(&app, ACME, "name=mine", "ok:12").await;
    let used = app.get(ACME, USAGE).await.json();
    assert_eq!(used["stored_versions"]["used"], 1);
    assert_eq!(used["stored_bytes"]["used"], 5);
    assert_eq!(used["tenant"], "acme");
    assert_eq!(app.get(OPERATOR, USAGE).await.json(), used);
    assert_eq!(app.get(GLOBEX, USAGE).await.status, 403);
    let platform = app
        .get(OPERATOR, "/v1/portolan/tenants/_platform/usage")
        .await
        .json();
    assert!(platform["stored_bytes"]["limit"].is_null());
    assert_eq!(
        app.get(ACME, "/v1/portolan/tenants/_platform/usage").await.status,
        403
    );
}

#[tokio::test]
async fn the_audit_log_can_be_asked_about_one_tenant_and_some_time() {
    let app = App::new();
    put(&app, ACME, "", "ok:1").await;
    let platform = "/v1/portolan/tenants/_platform/policies/cost";
    app.send(request(Method::PUT, platform, OPERATOR, "ok:2".into()))
        .await;
    let actions = |log: Value| -> Vec<String> {
        let lines = log["data"].as_array().unwrap().iter();
        lines
            .map(|line| format!("{} {}", line["action"], line["subject"]))
            .collect()
    };
    let of = async |query: &str| {
        actions(
            app.get(OPERATOR, &format!("/v1/portolan/audit?{query}"))
                .await
                .json(),
        )
    };
    let (acme, globex) = (of("tenant=acme").await, of("tenant=globex").await);
    assert!(
        acme.iter().any(|line| line.contains("policy.activate")),
        "{acme:?}"
    );
    assert!(acme.iter().all(|line| line.contains("acme")), "{acme:?}");
    assert!(!globex.iter().any(|line| line.contains("policy.")), "{globex:?}");
    assert_eq!(of("tenant=_platform").await.len(), 2);
    assert!(of("since_s=600").await.len() >= 4);
    assert_eq!(of("tenant=acme&limit=1").await.len(), 1);
}
