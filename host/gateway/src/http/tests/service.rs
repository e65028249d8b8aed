//! A whole site is taken out of service, and back.

use super::support::{ACME, App, OPERATOR, expect_error};
use portolan_decide::Standing;
use portolan_ports::{Engine, EngineFault, Fleet, PolicyStore};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

fn prompt() -> Value {
    json!({"model": "fake", "prompt": "hello", "temperature": 0})
}

#[tokio::test]
async fn a_drained_site_ends_what_it_has_and_takes_nothing_new_until_it_returns() {
    let app = Arc::new(App::new());
    app.engine
        .set_fault(Some(EngineFault::SlowPrefill(Duration::from_secs(1))));
    let asking = Arc::clone(&app);
    let under_way = tokio::spawn(async move { asking.complete(prompt()).await });
    let seen = async {
        while app.get(OPERATOR, "/v1/portolan/site").await.json()["in_flight"] != 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), seen)
        .await
        .expect("it is under way");
    let reply = app
        .post_as(OPERATOR, "/v1/portolan/site/drain", json!({"reason": "power"}))
        .await;
    let told = reply.json();
    assert_eq!(
        (&told["service"], &told["idle"]),
        (&json!("draining"), &json!(false)),
        "{told}"
    );
    let refused = app.complete(prompt()).await;
    expect_error(
        "drained",
        &refused,
        (
            503,
            "service_unavailable_error",
            None,
            "is being taken out of service",
        ),
    );
    assert_eq!(refused.json()["error"]["code"], "site_draining");
    assert!(!refused.header("retry-after").is_empty());
    assert_eq!(
        app.get("", "/health").await.status,
        503,
        "a load balancer goes elsewhere"
    );
    assert_eq!(under_way.await.unwrap().status, 200, "what had begun ends");
    assert_eq!(app.get(OPERATOR, "/v1/portolan/site").await.json()["idle"], true);

    let reply = app.post_as(OPERATOR, "/v1/portolan/site/return", json!({})).await;
    assert_eq!(reply.json()["service"], "open");
    assert_eq!(app.complete(prompt()).await.status, 200);
    assert_eq!(app.get("", "/health").await.status, 200);
    let audit = app.store.audit(10).unwrap();
    let seen: Vec<_> = audit
        .iter()
        .map(|line| (line.action.as_str(), line.subject.as_str()))
        .collect();
    assert!(
        seen.contains(&("instance.drain", "site paris")) && seen.contains(&("instance.resume", "site paris"))
    );
}

#[tokio::test]
async fn what_was_drained_by_name_stays_drained_until_it_is_resumed_by_name() {
    let app = App::new();
    let instance = app.engine.describe().instance.clone();
    let of = |verb: &str| format!("/v1/portolan/instances/{instance}/{verb}");
    let standing = async |path: &str| {
        let reply = app.post_as(OPERATOR, path, json!({})).await;
        assert_eq!(reply.status, 200, "{path}");
        reply.json()["standing"].as_str().unwrap_or("-").to_owned()
    };
    let drains = || {
        let view = app.fleet.view();
        let found = view.instances.iter().find(|known| known.name == instance);
        found.unwrap().standing == Standing::Draining
    };
    assert_eq!(standing(&of("drain")).await, "draining");
    standing("/v1/portolan/site/drain").await;
    standing("/v1/portolan/site/return").await;
    assert!(drains(), "the site came back, the instance was never resumed");
    assert_ne!(standing(&of("resume")).await, "draining");

    standing("/v1/portolan/site/drain").await;
    assert_eq!(standing(&of("resume")).await, "draining", "its site drains");
    standing("/v1/portolan/site/return").await;
    assert!(!drains());
    assert_eq!(app.complete(prompt()).await.status, 200);
}

#[tokio::test]
async fn only_the_operator_may() {
    let app = App::new();
    for (path, key) in [
        ("/v1/portolan/site/drain", ACME),
        ("/v1/portolan/site/return", ACME),
    ] {
        assert_eq!(app.post_as(key, path, json!({})).await.status, 403);
    }
    assert_eq!(app.complete(prompt()).await.status, 200);
}
