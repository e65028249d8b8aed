//! The policies' admin doors.

use super::support::{ACME, App, GLOBEX, OPERATOR, Reply, request};
use axum::body::Body;
use axum::http::Method;
use portolan_ports::{PolicyStore, StoreCall};
use serde_json::json;

const SLOT: &str = "/v1/portolan/tenants/acme/policies/routing";

async fn put(app: &App, key: &str, path: &str, component: impl Into<Body>) -> Reply {
    app.send(request(Method::PUT, path, key, component.into())).await
}

fn code(reply: &Reply) -> String {
    reply.json()["error"]["code"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[tokio::test]
async fn upload_list_activate_unbind() {
    let app = App::new();
    let first = put(&app, ACME, &format!("{SLOT}?name=mine&reason=first"), "ok:1").await;
    assert_eq!(first.status, 201, "{first:?}");
    let first = first.json();
    let version = first["version"].as_str().unwrap().to_owned();
    assert_eq!(
        (version.len(), &first["generation"], &first["name"]),
        (64, &json!(1), &json!("mine"))
    );
    assert!(first["findings"].is_array());
    let second = put(&app, OPERATOR, &format!("{SLOT}?name=mine"), "ok:2")
        .await
        .json();
    assert_eq!(second["generation"], 2);

    let slot = app.get(ACME, SLOT).await.json();
    assert_eq!(slot["versions"].as_array().unwrap().len(), 2);
    assert_eq!(slot["binding"]["sha256"], second["version"]);
    assert_eq!(slot["binding"]["actor"], "operator");
    let all = app.get(ACME, "/v1/portolan/tenants/acme/policies").await.json();
    let questions: Vec<_> = all["policies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["question"].as_str().unwrap())
        .collect();
    assert_eq!(questions, ["residency", "cost", "routing", "invalidation"]);

    let back = app
        .post(
            &format!("{SLOT}/activate"),
            json!({"version": &version[..8], "reason": "back"}),
        )
        .await;
    assert_eq!(
        (back.status.as_u16(), &back.json()["sha256"]),
        (200, &json!(version))
    );
    let gone = app.send(request(Method::DELETE, SLOT, ACME, Body::empty())).await;
    assert_eq!(gone.status, 204);
    assert!(app.get(ACME, SLOT).await.json()["binding"].is_null());
    let again = app.send(request(Method::DELETE, SLOT, ACME, Body::empty())).await;
    assert_eq!(
        (again.status.as_u16(), code(&again).as_str()),
        (404, "policy_not_found")
    );
    let audit = app.get(OPERATOR, "/v1/portolan/audit?limit=2").await.json();
    assert_eq!(audit["data"][0]["action"], "policy.unbind");
    assert_eq!(audit["data"][1]["reason"], "back");
}

#[tokio::test]
async fn a_version_can_be_stored_without_being_made_active() {
    let app = App::new();
    let stored = put(&app, ACME, &format!("{SLOT}?activate=false"), "ok:1").await;
    assert_eq!(stored.status, 201);
    assert!(stored.json().get("generation").is_none());
    let slot = app.get(ACME, SLOT).await.json();
    assert!(slot["binding"].is_null());
    assert_eq!(slot["versions"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_component_that_the_compiler_had_no_time_for_may_come_again() {
    let app = App::new();
    let busy = put(&app, ACME, SLOT, "busy:1").await;
    assert_eq!(
        (busy.status.as_u16(), code(&busy).as_str()),
        (503, "compiler_busy")
    );
    let body = busy.json();
    assert_eq!(body["error"]["type"], "service_unavailable_error");
    assert!(body.get("findings").is_none(), "nothing was found out: {body}");
    assert!(busy.header("retry-after").parse::<u64>().unwrap() > 0);
    assert!(app.store.bindings().unwrap().is_empty());
}

#[tokio::test]
async fn a_component_that_takes_too_long_to_compile_is_told_that_it_is_the_hosts_limit() {
    let app = App::new();
    let over = put(&app, ACME, SLOT, "endless:1").await;
    assert_eq!(
        (over.status.as_u16(), code(&over).as_str()),
        (413, "compile_limit")
    );
    let body = over.json();
    assert_eq!(body["findings"][0]["code"], "compile-time");
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("this host did not compile"), "{message}");
    assert!(app.store.bindings().unwrap().is_empty());
}

#[tokio::test]
async fn what_is_refused_leaves_nothing_behind() {
    let app = App::new();
    let bad = put(&app, ACME, SLOT, "garbage").await;
    assert_eq!(
        (bad.status.as_u16(), code(&bad).as_str()),
        (422, "policy_rejected")
    );
    let body = bad.json();
    assert_eq!(body["findings"][0]["code"], "no-component");
    assert!(
        body["error"]["message"]
            .as_str()
            .unwrap()
            .contains("no component"),
        "{body}"
    );
    let config = put(&app, ACME, &format!("{SLOT}?config=bad"), "ok:1").await;
    assert_eq!(
        (config.status.as_u16(), &config.json()["findings"][0]["code"]),
        (422, &json!("bad-config"))
    );
    let empty = put(&app, ACME, SLOT, "").await;
    assert_eq!(empty.status, 400);
    let name = put(&app, ACME, &format!("{SLOT}?name=No%20Name"), "ok:1").await;
    assert_eq!(
        (name.status.as_u16(), &name.json()["error"]["param"]),
        (400, &json!("name"))
    );
    let query = put(&app, ACME, &format!("{SLOT}?nmae=x"), "ok:1").await;
    assert_eq!(query.status, 400, "a misspelt parameter is not lost");
    let huge = put(&app, ACME, SLOT, vec![0u8; 100 << 20]).await;
    assert_eq!(
        (huge.status.as_u16(), code(&huge).as_str()),
        (413, "request_too_large")
    );
    app.store.fail(StoreCall::Bind);
    let failed = put(&app, ACME, SLOT, "ok:1").await;
    assert_eq!(
        (failed.status.as_u16(), failed.json()["error"]["type"].as_str()),
        (500, Some("server_error"))
    );
    app.store.heal();
    assert!(app.get(ACME, SLOT).await.json()["binding"].is_null());
    assert!(app.store.bindings().unwrap().is_empty());
}

#[tokio::test]
async fn a_tenant_reads_its_own_policies_log_lines_and_nobody_elses() {
    let app = App::new();
    let log = "/v1/portolan/tenants/acme/policy-log";
    let lines = app.get(ACME, log).await.json()["data"].clone();
    let questions: Vec<_> = lines
        .as_array()
        .unwrap()
        .iter()
        .map(|line| &line["question"])
        .collect();
    assert_eq!(questions, ["routing", "cost"], "the newest first");
    assert_eq!(lines[0]["text"], "of tenant acme");
    let one = app
        .get(ACME, &format!("{log}?question=cost&limit=9"))
        .await
        .json();
    assert_eq!(one["data"].as_array().unwrap().len(), 1);
    assert_eq!(
        app.get(ACME, &format!("{log}?limit=0")).await.json()["data"],
        json!([])
    );
    let platform = "/v1/portolan/tenants/_platform/policy-log";
    for (key, path, status) in [
        ("", log, 401),
        (GLOBEX, log, 403),
        (ACME, platform, 403),
        (OPERATOR, platform, 200),
        (OPERATOR, log, 200),
        (ACME, &format!("{log}?question=weather"), 400),
        (ACME, &format!("{log}?lines=3"), 400),
    ] {
        assert_eq!(app.get(key, path).await.status, status, "{key} {path}");
    }
}

#[tokio::test]
async fn an_upload_without_a_configuration_keeps_the_one_in_force_and_says_so() {
    let app = App::new();
    put(&app, ACME, &format!("{SLOT}?config=%7B%22a%22:1%7D"), "ok:1").await;
    let kept = put(&app, ACME, SLOT, "ok:2").await.json();
    assert_eq!(
        (&kept["config"], &kept["findings"][0]["code"]),
        (&json!("{\"a\":1}"), &json!("configuration-kept"))
    );
    let none = put(&app, ACME, &format!("{SLOT}?config="), "ok:3").await.json();
    assert_eq!((&none["config"], &none["findings"]), (&json!(""), &json!([])));
    assert_eq!(app.get(ACME, SLOT).await.json()["binding"]["config"], "");
}

#[tokio::test]
async fn nobody_opens_another_tenants_slots() {
    let app = App::new();
    let platform = "/v1/portolan/tenants/_platform/policies/cost";
    for (key, path, status) in [
        ("", SLOT, 401),
        (GLOBEX, SLOT, 403),
        (ACME, platform, 403),
        (ACME, "/v1/portolan/tenants/nobody/policies/cost", 403),
        (OPERATOR, "/v1/portolan/tenants/nobody/policies/cost", 404),
        (OPERATOR, "/v1/portolan/tenants/..%2f/policies/cost", 404),
        (ACME, "/v1/portolan/tenants/acme/policies/weather", 404),
        (OPERATOR, platform, 201),
    ] {
        assert_eq!(put(&app, key, path, "ok:1").await.status, status, "{key} {path}");
    }
    let listed = app.get(GLOBEX, "/v1/portolan/tenants/acme/policies").await;
    assert_eq!(listed.status, 403);
}

#[tokio::test]
async fn a_version_is_named_by_enough_of_its_digits() {
    let app = App::new();
    put(&app, ACME, SLOT, "ok:1").await;
    let path = format!("{SLOT}/activate");
    let short = app.post(&path, json!({"version": "ab"})).await;
    assert_eq!(
        (short.status.as_u16(), &short.json()["error"]["param"]),
        (400, &json!("version"))
    );
    let unknown = app.post(&path, json!({"version": "zzzzzzzz"})).await;
    assert_eq!(
        (unknown.status.as_u16(), code(&unknown).as_str()),
        (404, "version_not_found")
    );
    assert_eq!(app.post(&path, json!({"vresion": "abcdefgh"})).await.status, 400);
}

async fn store_version(app: &App, component: &'static str) -> String {
    let stored = put(app, ACME, &format!("{SLOT}?activate=false"), component).await;
    stored.json()["version"].as_str().unwrap().to_owned()
}

async fn change(app: &App, word: &str, body: serde_json::Value) -> Reply {
    app.post(&format!("{SLOT}/{word}"), body).await
}

#[tokio::test]
async fn the_life_of_a_version() {
    let app = App::new();
    let old = put(&app, ACME, SLOT, "ok:1").await.json()["version"].clone();
    let new = store_version(&app, "ok:2").await;
    let shadow = change(&app, "shadow", json!({"version": &new[..8], "reason": "look"})).await;
    assert_eq!(
        (shadow.status.as_u16(), &shadow.json()["trial"]["stage"]),
        (200, &json!("shadow"))
    );
    let canary = json!({"percent": 20, "budget": {"window": 50}, "config": "c"});
    let trial = change(&app, "canary", canary).await.json()["trial"].clone();
    assert_eq!(
        (&trial["sha256"], &trial["stage"], &trial["percent"]),
        (&json!(new), &json!("canary"), &json!(20))
    );
    assert_eq!(
        trial["budget"],
        json!({"window": 50, "max_fault_permille": 50, "max_micros_p99": null})
    );
    let promoted = change(&app, "promote", json!({})).await.json();
    assert_eq!(
        (&promoted["sha256"], &promoted["how"]),
        (&json!(new), &json!("promote"))
    );
    assert_eq!(
        (&promoted["config"], &promoted["generation"]),
        (&json!("c"), &json!(2))
    );
    let back = change(&app, "rollback", json!({"reason": "worse"})).await.json();
    assert_eq!((&back["sha256"], &back["how"]), (&old, &json!("roll-back")));

    let pinned = change(&app, "pin", json!({"reason": "audit week"})).await;
    assert_eq!(pinned.json()["pinned"]["reason"], "audit week");
    let refused = change(&app, "activate", json!({"version": new})).await;
    assert_eq!(
        (refused.status.as_u16(), code(&refused).as_str()),
        (409, "policy_pinned")
    );
    let message = refused.json()["error"]["message"].to_string();
    assert!(
        message.contains("tenant acme") && message.contains("audit week"),
        "{message}"
    );
    assert_eq!(change(&app, "unpin", json!({})).await.status, 200);
    assert_eq!(code(&change(&app, "unpin", json!({})).await), "policy_conflict");
    assert_eq!(change(&app, "disable", json!({})).await.status, 200);
    let slot = app.get(ACME, SLOT).await.json();
    assert_eq!(slot["rollout"]["disabled"]["actor"], "tenant acme");
    assert_eq!(slot["history"].as_array().unwrap().len(), 3);
    assert_eq!(change(&app, "enable", json!({})).await.status, 200);
    let missing = change(&app, "withdraw", json!({})).await;
    assert_eq!(
        (missing.status.as_u16(), code(&missing).as_str()),
        (404, "policy_not_found")
    );
}

#[tokio::test]
async fn a_change_that_cannot_be_meant_is_refused() {
    let app = App::new();
    let new = store_version(&app, "ok:2").await;
    for (word, body, status, param) in [
        ("canary", json!({"version": new}), 400, Some("percent")),
        (
            "canary",
            json!({"version": new, "percent": 0}),
            400,
            Some("percent"),
        ),
        (
            "canary",
            json!({"version": new, "percent": 5, "budget": {"window": 0}}),
            400,
            Some("budget"),
        ),
        (
            "shadow",
            json!({"version": new, "percent": 5}),
            400,
            Some("percent"),
        ),
        ("pin", json!({"version": new}), 400, Some("version")),
        ("canary", json!({"versoin": new, "percent": 5}), 400, None),
        (
            "canary",
            json!({"version": "ffffffff", "percent": 5}),
            404,
            Some("version"),
        ),
        ("canary", json!({"percent": 5}), 404, None),
        ("explode", json!({}), 404, None),
    ] {
        let reply = change(&app, word, body.clone()).await;
        let got = reply.json()["error"]["param"].as_str().map(str::to_owned);
        assert_eq!(
            (reply.status.as_u16(), got.as_deref()),
            (status, param),
            "{word} {body}: {reply:?}"
        );
    }
    let theirs = app.post_as(GLOBEX, &format!("{SLOT}/pin"), json!({})).await;
    assert_eq!(theirs.status, 403);
    assert!(app.store.rollouts().unwrap().is_empty());
}

#[tokio::test]
async fn a_tenants_changes_are_counted_and_the_operators_are_not() {
    let app = App::new();
    put(&app, ACME, SLOT, "ok:a").await;
    let pin = format!("{SLOT}/pin");
    let mut made = 0;
    let refused = loop {
        let reply = app.post_as(ACME, &pin, json!({})).await;
        if reply.status == 429 {
            break reply;
        }
        assert!(made < 300, "no bound");
        made += 1;
    };
    assert_eq!(refused.json()["error"]["code"], "change_quota");
    assert!(
        refused.headers.contains_key("retry-after") && made >= 240,
        "{made}"
    );
    let unbinding = app.send(request(Method::DELETE, SLOT, ACME, Body::empty())).await;
    assert_eq!(unbinding.status, 429);
    assert_eq!(app.get(ACME, SLOT).await.status, 200, "to look is no change");
    assert_eq!(
        app.post_as(OPERATOR, &format!("{SLOT}/unpin"), json!({}))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn a_tenant_with_too_many_policy_calls_waits_and_others_and_the_operator_do_not() {
    let app = App::new();
    let acme = portolan_base::TenantName::new("acme").unwrap();
    let mut taken = Vec::new();
    while let Some(pass) = app.site.at_desk.enter(&acme) {
        taken.push(pass);
    }
    let path = "/v1/portolan/tenants/acme/policies/routing";
    let refused = put(&app, ACME, path, "ok:a").await;
    assert_eq!(
        (refused.status.as_u16(), refused.json()["error"]["code"].clone()),
        (429, "tenant_limit".into())
    );
    let other = put(
        &app,
        GLOBEX,
        "/v1/portolan/tenants/globex/policies/routing",
        "ok:a",
    )
    .await;
    assert_eq!(other.status, 201);
    assert_eq!(
        put(
            &app,
            OPERATOR,
            "/v1/portolan/tenants/_platform/policies/routing",
            "ok:a"
        )
        .await
        .status,
        201
    );
    drop(taken);
    assert_eq!(put(&app, ACME, path, "ok:a").await.status, 201);
}

#[tokio::test]
async fn a_reason_is_a_sentence_not_a_book() {
    let app = App::new();
    let path = format!(
        "/v1/portolan/tenants/acme/policies/routing?reason={}",
        "x".repeat(1025)
    );
    let refused = put(&app, ACME, &path, "ok:a").await;
    assert_eq!(
        (refused.status.as_u16(), refused.json()["error"]["param"].clone()),
        (400, "reason".into())
    );
}
