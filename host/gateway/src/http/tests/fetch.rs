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
    let body = json!({
        "model": "fake", "prompt": "x".repeat(300), "request_id": "r", "max_tokens": 4,
        "prefill_policy": "local_only",
    });
    assert_eq!(
        app.post_as(key, "/v1/completions", body).await.status.as_u16(),
        200
    );
    app.get(key, "/v1/portolan/requests/r").await.json()
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
    let blamed = (portolan_decide::SiteIndex(1), InstanceOutcome::Failed);
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
