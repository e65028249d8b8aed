//! Engines of several makes behind one gateway.

use super::*;
use std::collections::BTreeSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mixed_fleet_serves_each_request_where_it_can_be_served_and_finds_its_prefix_there() {
    let (first, second) = (engine(true).await, engine(true).await);
    let paris = Paris::start(&[native("n1"), found("v1", &first, ""), found("v2", &second, "")]).await;
    let routes = |record: &PathRecord| -> BTreeSet<(String, String)> {
        let route = |c: &portolan_decide::CandidateRecord| {
            (c.route.prefill_instance.clone(), c.route.decode_instance.clone())
        };
        record.candidates.iter().map(route).collect()
    };
    let pair = |name: &str| (name.to_owned(), name.to_owned());

    // Anyone's: every engine is a candidate, and none with another's KV.
    let (_, record) = paris.ask(ACME, "any-1", anyones(&prompt(1, 200))).await;
    assert_eq!(
        routes(&record),
        BTreeSet::from([pair("n1"), pair("v1"), pair("v2")])
    );
    // Theirs: only those that answer whole requests.
    let (answer, record) = paris.ask(ACME, "whole-1", theirs(&prompt(2, 200))).await;
    assert_eq!(routes(&record), BTreeSet::from([pair("v1"), pair("v2")]));
    assert_eq!(answer["object"], "text_completion");
    let chosen = record.route.unwrap().decode_instance;
    assert!(chosen.starts_with('v'), "{chosen}");

    // The same prefix again goes where its blocks are, for the tenant whose they are.
    let mut longer = prompt(2, 200);
    longer.extend(prompt(9, 30));
    let until = Instant::now() + PATIENCE;
    let mut n = 0;
    let record = loop {
        n += 1;
        let (answer, record) = paris.ask(ACME, &format!("again-{n}"), theirs(&longer)).await;
        let cached = record
            .candidates
            .iter()
            .map(|c| c.facts.cached_tokens)
            .max()
            .unwrap();
        if n > 1 && cached >= 192 {
            assert!(
                answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                    .as_u64()
                    .unwrap()
                    >= 192
            );
            break record;
        }
        assert!(
            Instant::now() < until,
            "the index never learnt of the blocks: {cached}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(
        record.route.unwrap().decode_instance,
        chosen,
        "where the prefix is"
    );
    assert!(record.kv.cached_tokens >= 192);
    let (answer, record) = paris.ask(GLOBEX, "other-1", theirs(&longer)).await;
    assert!(
        record.candidates.iter().all(|c| c.facts.cached_tokens == 0),
        "another tenant's"
    );
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    paris.stop().await;
}

/// What the index says that this instance holds of the request's prompt.
pub(super) fn held(record: &PathRecord, instance: &str) -> u32 {
    let own = record
        .candidates
        .iter()
        .filter(|c| c.route.prefill_instance == instance && c.route.decode_instance == instance);
    own.map(|c| c.facts.cached_tokens).max().unwrap_or(0)
}

pub(super) async fn service(paris: &Paris, instance: &str, what: &str) {
    let path = format!("/v1/portolan/instances/{instance}/{what}");
    let (head, body) = paris.raw(ADMIN, &path, "{}").await;
    let body = String::from_utf8_lossy(&body).into_owned();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{body}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefixes_are_found_across_makes_by_the_tokens_whoever_computed_them() {
    let (first, second) = (engine(true).await, engine(true).await);
    let paris = Paris::start(&[native("n1"), found("v1", &first, ""), found("v2", &second, "")]).await;
    let all = ["n1", "v1", "v2"];
    // The same kind of request is computed by one make, then by the other.
    let mut computed = Vec::new();
    for (n, by) in [(1, "n1"), (2, "v1")] {
        for other in all.into_iter().filter(|other| *other != by) {
            service(&paris, other, "drain").await;
        }
        let (_, record) = paris
            .ask(ACME, &format!("own-{n}"), anyones(&prompt(n, 200)))
            .await;
        assert_eq!(record.route.unwrap().prefill_instance, by);
        for other in all.into_iter().filter(|other| *other != by) {
            service(&paris, other, "resume").await;
        }
        computed.push((n, by));
    }
    for (n, by) in computed {
        // Whatever their blocks' sizes are, the index cuts them alike.
        let longer = [prompt(n, 200), prompt(n + 50, 20)].concat();
        let until = Instant::now() + PATIENCE;
        let mut tries = 0;
        loop {
            tries += 1;
            let (answer, record) = paris
                .ask(ACME, &format!("again-{n}-{tries}"), anyones(&longer))
                .await;
            let found: Vec<u32> = all.iter().map(|name| held(&record, name)).collect();
            if held(&record, by) >= 192 {
                let route = record.route.as_ref().unwrap();
                if route.prefill_instance == by {
                    assert!(record.kv.cached_tokens >= 192, "{answer}");
                }
                break;
            }
            assert!(
                Instant::now() < until,
                "nobody learnt of {by}'s blocks: {found:?}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    paris.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_dies_is_followed_by_another_and_comes_back() {
    let (first, second) = (engine(false).await, engine(false).await);
    let paris = Paris::start(&[found("v1", &first, ""), found("v2", &second, "")]).await;
    drop(first);
    for n in 0..6 {
        let (_, record) = paris.ask(ACME, &format!("r-{n}"), theirs(&prompt(n, 100))).await;
        assert_eq!(record.route.unwrap().decode_instance, "v2");
        assert_eq!(record.status, "ok");
    }
    drop(second);
    let (head, body) = paris
        .raw(ACME, "/v1/completions", &theirs(&prompt(1, 100)).to_string())
        .await;
    let body = String::from_utf8(body).unwrap();
    assert!(
        head.starts_with("HTTP/1.1 503") || head.starts_with("HTTP/1.1 500"),
        "{head}"
    );
    assert!(
        !body.contains("127.0.0.1"),
        "no address of ours reaches a client: {body}"
    );
    paris.stop().await;
}
