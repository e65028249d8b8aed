//! The door of invalidations, where there is no control stream: who may order what, and that nothing is claimed.

use super::support::{ACME, App, OPERATOR};
use axum::http::StatusCode;
use portolan_ports::PolicyStore;
use serde_json::json;

const PATH: &str = "/v1/portolan/invalidate";

#[tokio::test]
async fn an_order_that_nobody_acknowledges_is_an_error_and_says_so() {
    let app = App::new();
    let order = json!({"tenant": "acme", "wait": true});
    let reply = app.post_as(OPERATOR, PATH, order.clone()).await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    let error = &reply.json()["error"];
    assert_eq!(error["code"], "not_acknowledged");
    assert!(
        error["message"].as_str().unwrap().contains("control stream"),
        "{error}"
    );
    let log = app.store.audit(1).unwrap();
    assert_eq!(
        log[0].action, "kv.invalidate",
        "who asked is written down before it is done"
    );
    let reply = app.post_as(ACME, PATH, order).await;
    let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(!message.contains("control stream"), "{message}");
}

#[tokio::test]
async fn an_order_names_one_thing_that_its_giver_may_name() {
    let app = App::new();
    for (key, order, status) in [
        ("nobody", json!({"tenant": "acme"}), StatusCode::UNAUTHORIZED),
        (ACME, json!({"tenant": "globex"}), StatusCode::FORBIDDEN),
        (ACME, json!({"model": "m"}), StatusCode::FORBIDDEN),
        (OPERATOR, json!({"model": "no-such-model"}), StatusCode::NOT_FOUND),
        (OPERATOR, json!({"tenant": "acmee"}), StatusCode::NOT_FOUND),
        (OPERATOR, json!({}), StatusCode::BAD_REQUEST),
        (
            OPERATOR,
            json!({"tenant": "acme", "prefix": "00"}),
            StatusCode::BAD_REQUEST,
        ),
        (
            OPERATOR,
            json!({"prefix": "not hexadecimal"}),
            StatusCode::BAD_REQUEST,
        ),
        (
            OPERATOR,
            json!({"tenant": "acme", "later": true}),
            StatusCode::BAD_REQUEST,
        ),
        (
            OPERATOR,
            json!({"dependency": {"kind": "", "name": "n", "version": "1"}}),
            StatusCode::BAD_REQUEST,
        ),
        (
            OPERATOR,
            json!({"dependency": {"kind": "document", "name": "a\nb", "version": "1"}}),
            StatusCode::BAD_REQUEST,
        ),
        (
            OPERATOR,
            json!({"tenant": "acme", "reason": "x".repeat(501)}),
            StatusCode::BAD_REQUEST,
        ),
        (
            OPERATOR,
            json!({"tenant": "acme", "dry_run": true}),
            StatusCode::OK,
        ),
    ] {
        let reply = app.post_as(key, PATH, order.clone()).await;
        assert_eq!(reply.status, status, "{order}");
    }
    assert!(
        app.store
            .audit(1)
            .unwrap()
            .iter()
            .all(|line| line.action != "kv.invalidate")
    );
}

#[tokio::test]
async fn a_tenant_gives_no_more_orders_than_sites_can_remember() {
    let app = App::new();
    let order = json!({"tenant": "acme", "dry_run": true});
    let mut given = 0;
    let refused = loop {
        let reply = app.post_as(ACME, PATH, order.clone()).await;
        if reply.status != StatusCode::OK {
            break reply;
        }
        given += 1;
        assert!(given < 500, "no end of it");
    };
    assert!(given >= 50, "{given}");
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.json()["error"]["code"], "tenant_limit");
    let others = json!({"tenant": "acme", "dry_run": true});
    let reply = app.post_as(OPERATOR, PATH, others).await;
    assert_eq!(reply.status, StatusCode::OK, "the operator is not slowed by it");
}
