//! Path records over HTTP: a tenant's own, and nobody else's.

use super::support::{ACME, App, GLOBEX, OPERATOR};
use crate::site::Limits;
use portolan_base::TenantName;
use portolan_ports::FakeText;
use serde_json::json;

async fn serve(app: &App, key: &str, id: &str) -> u16 {
    let body = json!({"model": "fake", "prompt": "hello", "request_id": id, "trace_id": "t-9"});
    app.post_as(key, "/v1/completions", body).await.status.as_u16()
}

#[tokio::test]
async fn a_record_holds_what_scripts_rely_on() {
    let app = App::new();
    assert_eq!(serve(&app, ACME, "r1").await, 200);
    let record = app.get(ACME, "/v1/portolan/requests/r1").await.json();
    for (field, value) in [
        ("request_id", json!("r1")),
        ("trace_id", json!("t-9")),
        ("tenant", json!("acme")),
        ("model", json!("fake")),
        ("status", json!("ok")),
    ] {
        assert_eq!(record[field], value, "{field}");
    }
    let route = json!({
        "prefill_site": "paris", "prefill_instance": "e1", "decode_site": "paris", "decode_instance": "e1",
    });
    assert_eq!(record["route"], route);
    for list in ["candidates", "policies", "stages", "fallbacks"] {
        assert!(record[list].is_array(), "{list}");
    }
    for field in ["question", "name", "version", "source", "micros", "outcome"] {
        assert!(!record["policies"][0][field].is_null(), "{field}: {record}");
    }
    let stages: Vec<_> = record["stages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["name"].as_str().unwrap())
        .collect();
    assert_eq!(stages.first(), Some(&"accept"));
    assert_eq!(stages.last(), Some(&"settle"));
    assert!(record["kv"]["bytes_moved"].is_u64() && record["kv"]["cached_tokens"].is_u64());
    // What the slow loop learns of it.
    let settled = app.fleet.settled_requests();
    let learnt: Vec<_> = settled
        .iter()
        .map(|(uncached, produced)| json!([uncached.0, produced]))
        .collect();
    assert_eq!(
        learnt,
        [json!([
            record["kv"]["computed_tokens"],
            record["completion_tokens"]
        ])]
    );
}

#[tokio::test]
async fn another_tenants_record_does_not_exist() {
    let app = App::new();
    assert_eq!(serve(&app, ACME, "mine").await, 200);
    let path = "/v1/portolan/requests/mine";
    let (hidden, missing) = (
        app.get(GLOBEX, path).await,
        app.get(GLOBEX, "/v1/portolan/requests/none").await,
    );
    assert_eq!(hidden.status, 404);
    assert_eq!(
        hidden.body, missing.body,
        "not even told apart from one that never was"
    );
    assert_eq!(app.get(OPERATOR, path).await.status, 200);
    assert_eq!(app.get("", path).await.status, 401);
    let own = |reply: super::support::Reply| reply.json()["data"].as_array().unwrap().len();
    assert_eq!(own(app.get(GLOBEX, "/v1/portolan/requests").await), 0);
    assert_eq!(own(app.get(OPERATOR, "/v1/portolan/requests").await), 1);
}

#[tokio::test]
async fn two_tenants_may_choose_the_same_id_and_neither_learns_of_the_other() {
    let app = App::new();
    let path = "/v1/portolan/requests/same";
    assert_eq!(serve(&app, ACME, "same").await, 200);
    assert_eq!(app.get(GLOBEX, path).await.status, 404);
    assert_eq!(serve(&app, GLOBEX, "same").await, 200);
    assert_eq!(
        serve(&app, ACME, "same").await,
        200,
        "one's own may be used again, as by a retry"
    );
    assert_eq!(app.get(ACME, path).await.json()["tenant"], "acme");
    assert_eq!(app.get(GLOBEX, path).await.json()["tenant"], "globex");
}

#[tokio::test]
async fn the_newest_come_first_and_no_more_than_asked_for() {
    let app = App::new();
    for id in ["a", "b", "c"] {
        serve(&app, ACME, id).await;
        serve(&app, GLOBEX, &format!("x-{id}")).await;
    }
    let list = app.get(ACME, "/v1/portolan/requests?limit=2").await.json();
    let ids: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["request_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["c", "b"]);
    // A tenant's list looks at its own records alone.
    let acme = TenantName::new("acme").unwrap();
    let own = app.site.records.newest_of(&acme, 2);
    let own: Vec<_> = own.iter().map(|record| record.request_id.as_str()).collect();
    assert_eq!(own, ids);
    let nobody = TenantName::new("nobody").unwrap();
    assert!(app.site.records.newest_of(&nobody, 2).is_empty());
}

#[tokio::test]
async fn one_tenants_burst_takes_its_own_records() {
    let limits = Limits {
        records: 10,
        ..Limits::default()
    };
    let app = App::with(FakeText::new(), limits);
    assert_eq!(serve(&app, ACME, "quiet").await, 200);
    for n in 0..30 {
        assert_eq!(serve(&app, GLOBEX, &format!("burst-{n}")).await, 200);
    }
    assert_eq!(app.get(ACME, "/v1/portolan/requests/quiet").await.status, 200);
    let list = app.get(OPERATOR, "/v1/portolan/requests?limit=100").await.json();
    let ids: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["request_id"].as_str().unwrap().to_owned())
        .collect();
    let newest = (21..30).rev().map(|n| format!("burst-{n}"));
    let expected: Vec<_> = newest.chain(["quiet".to_owned()]).collect();
    assert_eq!(ids, expected);
}

#[tokio::test]
async fn an_id_that_is_used_again_is_the_newest() {
    let app = App::new();
    for (key, id) in [
        (ACME, "again"),
        (GLOBEX, "again"),
        (ACME, "other"),
        (ACME, "again"),
    ] {
        assert_eq!(serve(&app, key, id).await, 200);
    }
    let list = app.get(OPERATOR, "/v1/portolan/requests").await.json();
    let listed: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| (&r["tenant"], &r["request_id"]))
        .collect();
    let named = |tenant: &str, id: &str| (json!(tenant), json!(id));
    let wanted = [
        named("acme", "again"),
        named("acme", "other"),
        named("globex", "again"),
    ];
    assert_eq!(
        listed,
        wanted.iter().map(|(t, i)| (t, i)).collect::<Vec<_>>(),
        "newest first"
    );
    let shown = app.get(OPERATOR, "/v1/portolan/requests/again").await.json();
    assert_eq!(shown["tenant"], "acme", "the operator sees whose it was last");
    assert!(shown["status"] == "ok" && app.site.records.newest(10).len() == 3);
}

#[tokio::test]
async fn ids_that_are_used_again_and_again_take_one_place_each() {
    let limits = Limits {
        records: 3,
        ..Limits::default()
    };
    let app = App::with(FakeText::new(), limits);
    for id in ["a", "b", "a", "a", "b", "c", "a", "d"] {
        assert_eq!(serve(&app, ACME, id).await, 200);
    }
    let kept: Vec<_> = app
        .site
        .records
        .newest(10)
        .iter()
        .map(|r| r.request_id.to_string())
        .collect();
    assert_eq!(kept, ["d", "a", "c"], "the oldest went");
}
