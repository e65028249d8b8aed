//! Path records over HTTP: a tenant's own, and nobody else's.

use super::cancel::until_status;
use super::support::{ACME, App, GLOBEX, OPERATOR};
use crate::site::Limits;
use portolan_base::RequestId;
use portolan_decide::PathRecord;
use portolan_ports::{EngineFault, FakeText};
use serde_json::{Value, json};

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

/// The ids of a list, and where the next one begins.
async fn listed(app: &App, key: &str, query: &str) -> (Vec<String>, Value) {
    let path = format!("/v1/portolan/requests?{query}");
    let list = app.get(key, &path).await.json();
    let records = list["data"].as_array().unwrap_or_else(|| panic!("{list}")).iter();
    let ids = records.map(|record| record["request_id"].as_str().unwrap().to_owned());
    (ids.collect(), list["next"].clone())
}

#[tokio::test]
async fn pages_follow_one_another_to_the_oldest_whatever_comes_meanwhile() {
    for (key, query, wanted) in [
        (ACME, "", vec!["a4", "a3", "a2", "a1", "a0"]),
        (OPERATOR, "&tenant=globex", vec!["g4", "g3", "g2", "g1", "g0"]),
        (
            OPERATOR,
            "",
            vec!["g4", "a4", "g3", "a3", "g2", "a2", "g1", "a1", "g0", "a0"],
        ),
    ] {
        let app = App::new();
        for n in 0..5 {
            serve(&app, ACME, &format!("a{n}")).await;
            serve(&app, GLOBEX, &format!("g{n}")).await;
        }
        let (mut seen, mut before) = (Vec::new(), String::new());
        loop {
            let (ids, next) = listed(&app, key, &format!("limit=2{query}{before}")).await;
            assert!(ids.len() == 2 || next.is_null(), "{ids:?}");
            seen.extend(ids);
            if next.is_null() {
                break;
            }
            before = format!("&before={next}");
            assert_eq!(serve(&app, ACME, "later").await, 200);
        }
        assert_eq!(seen, wanted, "{query}");
    }
}

#[tokio::test]
async fn a_tenants_numbers_tell_nothing_of_others() {
    let app = App::new();
    for n in 0..3 {
        serve(&app, ACME, &format!("a{n}")).await;
    }
    let before = listed(&app, ACME, "limit=1").await;
    for n in 0..3 {
        serve(&app, GLOBEX, &format!("g{n}")).await;
    }
    assert_eq!(listed(&app, ACME, "limit=1").await, before);
    serve(&app, ACME, "a3").await;
    let (_, next) = listed(&app, ACME, "limit=1").await;
    assert_eq!(
        next.as_u64().unwrap(),
        before.1.as_u64().unwrap() + 1,
        "its own requests are counted, no others"
    );
    assert_eq!(
        app.get(ACME, "/v1/portolan/requests?tenant=globex").await.status,
        403
    );
    assert_eq!(
        app.get(ACME, "/v1/portolan/requests?tenant=nobody").await.status,
        403
    );
    assert_eq!(listed(&app, ACME, "tenant=acme").await.0.len(), 4);
}

#[tokio::test]
async fn records_are_chosen_by_tenant_status_and_site() {
    let app = App::new();
    serve(&app, ACME, "good").await;
    serve(&app, GLOBEX, "other").await;
    app.engine.set_fault(Some(EngineFault::HangDecode(2)));
    let asking = json!({"model": "fake", "prompt": "hello", "request_id": "cut"});
    tokio::join!(
        async { assert_eq!(app.complete(asking).await.status, 503) },
        async {
            until_status(&app, "running").await;
            assert_eq!(listed(&app, OPERATOR, "status=running").await.0, ["cut"]);
            app.site.cut_answers();
        }
    );
    for (query, wanted) in [
        ("status=ok", vec!["other", "good"]),
        ("status=failed", vec!["cut"]),
        ("status=ok&tenant=acme", vec!["good"]),
        ("status=cancelled", vec![]),
        ("site=paris&status=ok", vec!["other", "good"]),
        ("site=oslo", vec![]),
        ("tenant=nobody", vec![]),
        ("limit=0", vec![]),
    ] {
        assert_eq!(
            listed(&app, OPERATOR, query).await,
            (named(wanted), Value::Null),
            "{query}"
        );
    }
    for (query, param) in [
        ("status=bad", json!("status")),
        ("tenant=No%20Name", json!("tenant")),
    ] {
        let bad = app.get(OPERATOR, &format!("/v1/portolan/requests?{query}")).await;
        assert_eq!(
            (bad.status.as_u16(), &bad.json()["error"]["param"]),
            (400, &param),
            "{query}"
        );
    }
    for path in [
        "requests?tenants=acme",
        "requests?before=-1",
        "audit?tenants=acme",
    ] {
        let lost = app.get(OPERATOR, &format!("/v1/portolan/{path}")).await;
        assert_eq!(lost.status, 400, "{path}: what is not understood is not left out");
    }
}

fn named(ids: Vec<&str>) -> Vec<String> {
    ids.into_iter().map(str::to_owned).collect()
}

#[tokio::test]
async fn what_is_looked_for_is_found_behind_thousands_that_are_not() {
    let limits = Limits {
        records: 3000,
        ..Limits::default()
    };
    let app = App::with(FakeText::new(), limits);
    serve(&app, ACME, "first").await;
    serve(&app, ACME, "second").await;
    let template = app.site.records.newest(1).remove(0);
    for n in 0..2500 {
        let record = PathRecord {
            request_id: RequestId::from_client(&format!("n{n}")).unwrap(),
            status: "running".to_owned(),
            ..PathRecord::clone(&template)
        };
        app.site.records.put(record);
    }
    let (ids, next) = listed(&app, OPERATOR, "status=ok&limit=1").await;
    assert_eq!(ids, ["second"]);
    let rest = listed(&app, OPERATOR, &format!("status=ok&limit=1&before={next}")).await;
    assert_eq!(rest, (vec!["first".to_owned()], Value::Null));
}
