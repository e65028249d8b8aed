//! Residency is asked again before anything is fetched, and its no is final.

use super::support::{ACME, App, OPERATOR, request};
use axum::body::Body;
use axum::http::Method;
use portolan_base::{BitsPerSecond, InstanceName, Permille, SiteName};
use portolan_decide::{InstanceView, LinkFigures, LinkView, SiteIndex, SiteView};
use portolan_ports::{Fleet, InstanceOutcome};
use serde_json::{Value, json};
use std::time::Duration;

/// An app at paris beside a virginia that holds all of every prompt, on a link without delay.
fn beside_virginia() -> App {
    let app = App::new();
    let mut view = app.fleet.view().as_ref().clone();
    view.sites.push(SiteView {
        name: SiteName::new("virginia").unwrap(),
        jurisdiction: 2,
    });
    view.instances.push(InstanceView {
        name: InstanceName::new("v1").unwrap(),
        site: SiteIndex(1),
        ..view.instances[0].clone()
    });
    let link = LinkView {
        up: true,
        rtt: Duration::ZERO,
        capacity: BitsPerSecond(100_000_000_000),
        busy: Permille(0),
        loss: Permille(0),
        price_micros_per_gib: 0,
        measured: LinkFigures::default(),
    };
    view.links.insert((SiteIndex(1), SiteIndex(0)), link);
    app.fleet.set_view(view);
    app.fleet.set_held(vec![0, 10_000]);
    app
}

/// Asks for a prompt of 300 tokens to be prefilled at home; the path record.
async fn ask(app: &App, key: &str) -> Value {
    ask_as(app, key, "r").await
}

async fn ask_as(app: &App, key: &str, id: &str) -> Value {
    let body = json!({
        "model": "fake", "prompt": "x".repeat(300), "request_id": id, "max_tokens": 4,
        "prefill_policy": "local_only",
    });
    assert_eq!(
        app.post_as(key, "/v1/completions", body).await.status.as_u16(),
        200
    );
    app.get(key, &format!("/v1/portolan/requests/{id}")).await.json()
}

async fn bind(app: &App, key: &str, scope: &str, component: &str) {
    let path = format!("/v1/portolan/tenants/{scope}/policies/residency");
    let reply = app.send(request(Method::PUT, &path, key, Body::from(component.to_owned())));
    let status = reply.await.status;
    assert!(status.is_success(), "{status}");
}

fn residency_calls(record: &Value) -> usize {
    let calls = record["policies"].as_array().unwrap().iter();
    calls.filter(|call| call["question"] == "residency").count()
}

#[tokio::test]
async fn a_fetch_that_fails_is_computed_and_blames_the_link() {
    let app = beside_virginia();
    let record = ask(&app, ACME).await;
    // The fake has no links: the order went out and found no peer.
    let fallback = &record["fallbacks"][0];
    assert_eq!(
        (&fallback["stage"], &fallback["reason"]),
        (&json!("fetch"), &json!("no link to site virginia"))
    );
    assert_eq!(record["fetches"][0]["wanted_tokens"], 288);
    assert_eq!(record["kv"]["computed_tokens"], 299);
    let blamed = (SiteIndex(1), InstanceOutcome::Failed);
    assert_eq!(
        app.fleet.link_outcomes(),
        [blamed],
        "the instance behind the link is not blamed"
    );
}

#[tokio::test]
async fn the_platform_and_the_tenant_are_both_asked_and_either_may_forbid_it() {
    for (platform, tenant) in [("no-copies:1", "ok:1"), ("ok:1", "no-copies:1")] {
        let app = beside_virginia();
        bind(&app, OPERATOR, "_platform", platform).await;
        bind(&app, ACME, "acme", tenant).await;
        let record = ask(&app, ACME).await;
        assert_eq!(residency_calls(&record), 4, "twice each: {record}");
        let reason = record["fallbacks"][0]["reason"].as_str().unwrap();
        assert!(
            reason.contains("residency answer") && reason.contains("virginia"),
            "{reason}"
        );
        assert_eq!(
            record["fallbacks"].as_array().unwrap().len(),
            1,
            "no order went out: {record}"
        );
        assert_eq!(
            (&record["fetches"][0]["bytes"], &record["kv"]["bytes_moved"]),
            (&json!(0), &json!(0))
        );
        assert_eq!(record["kv"]["computed_tokens"], 299);
    }
}

#[tokio::test]
async fn data_bound_to_the_home_jurisdiction_is_not_asked_for_abroad() {
    let app = beside_virginia();
    let record = ask(&app, super::support::GLOBEX).await;
    assert!(
        record.get("fetches").is_none() && record["fallbacks"] == json!([]),
        "{record}"
    );
}

/// What is said of replicas once one of the three asks made one due and that is over.
async fn replicas_after_three_asks(app: &App) -> Value {
    // The fake's predictions have no end.
    app.fleet.disbelieve_predictions();
    for id in ["r1", "r2", "r3"] {
        ask_as(app, ACME, id).await;
    }
    for _ in 0..2_000 {
        let stats = app.get(OPERATOR, "/v1/portolan/kv/stats").await.json();
        let replicas = &stats["replicas"];
        if replicas["recent"][0].is_object() {
            return replicas.clone();
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("no copy was due");
}

#[tokio::test]
async fn a_copy_that_the_platform_or_the_tenant_forbids_is_never_ordered() {
    for (platform, tenant) in [("no-copies:1", "ok:1"), ("ok:1", "no-copies:1")] {
        let app = beside_virginia();
        bind(&app, OPERATOR, "_platform", platform).await;
        bind(&app, ACME, "acme", tenant).await;
        let replicas = replicas_after_three_asks(&app).await;
        assert_eq!(
            (&replicas["forbidden"], &replicas["ordered"]),
            (&json!(1), &json!(0)),
            "{replicas}"
        );
        let recent = &replicas["recent"][0];
        assert_eq!((&recent["bytes"], &recent["tokens"]), (&json!(0), &json!(0)));
        assert!(
            recent["failed"].as_str().unwrap().contains("residency answer"),
            "{recent}"
        );
        for id in ["r4", "r5", "r6", "r7"] {
            ask_as(&app, ACME, id).await;
        }
        let again = app.get(OPERATOR, "/v1/portolan/kv/stats").await.json();
        assert_eq!(
            again["replicas"]["forbidden"], 1,
            "it is not asked about with every request"
        );
    }
}

#[tokio::test]
async fn what_the_instance_turns_out_to_have_is_not_ordered() {
    // The index says that nothing is here; the engine has computed the first of them.
    let app = beside_virginia();
    app.fleet.disbelieve_predictions();
    for id in ["r1", "r2", "r3"] {
        ask_as(&app, ACME, id).await;
    }
    let mut replicas = Value::Null;
    for _ in 0..2_000 {
        let stats = app.get(OPERATOR, "/v1/portolan/kv/stats").await.json();
        replicas = stats["replicas"].clone();
        if replicas["under_way"] == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    for key in ["under_way", "ordered", "failed", "forbidden"] {
        assert_eq!(replicas[key], 0, "{replicas}");
    }
    assert_eq!(replicas["recent"], json!([]));
    let page = app.get("", "/metrics").await;
    let page = String::from_utf8_lossy(&page.body).into_owned();
    assert!(
        page.contains(r#"portolan_kv_replicas_total{outcome="failed"} 0"#),
        "{page}"
    );
}

#[tokio::test]
async fn data_bound_to_the_home_jurisdiction_is_not_copied_from_abroad() {
    let app = beside_virginia();
    app.fleet.disbelieve_predictions();
    for id in ["r1", "r2", "r3", "r4"] {
        ask_as(&app, super::support::GLOBEX, id).await;
    }
    let stats = app.get(OPERATOR, "/v1/portolan/kv/stats").await.json();
    for key in ["forbidden", "failed", "ordered", "under_way", "held_back"] {
        assert_eq!(stats["replicas"][key], 0, "{stats}");
    }
}
