//! Requests with one prefix that come faster than any cache can tell what it holds.

use super::support::{ACME, App};
use futures_util::future::join_all;
use portolan_base::INDEX_BLOCK_TOKENS;
use portolan_decide::InstanceIndex;
use serde_json::json;

/// Sends prompts at once; how many tokens each was thought to be spared by the cache where it went.
async fn burst(app: &App, prompts: impl IntoIterator<Item = String>) -> Vec<u64> {
    let send = |(n, prompt): (usize, String)| async move {
        let id = format!("r{n}");
        let body = json!({"model": "fake", "prompt": prompt, "request_id": id, "max_tokens": 4});
        assert_eq!(app.complete(body).await.status.as_u16(), 200);
        let record = app.get(ACME, &format!("/v1/portolan/requests/{id}")).await.json();
        let candidates = record["candidates"].as_array().unwrap();
        let first = candidates.iter().find(|route| route["rank"] == 0).unwrap();
        first["facts"]["cached_tokens"].as_u64().unwrap()
    };
    join_all(prompts.into_iter().enumerate().map(send)).await
}

#[tokio::test]
async fn a_burst_with_one_prefix_is_computed_once() {
    let app = App::of_instances(&["e1", "e2", "e3"]);
    let shared = "shared prefix ".repeat(20);
    let mut cached = burst(&app, (0..24).map(|n| format!("{shared}and question {n}"))).await;
    cached.sort_unstable();
    assert_eq!(cached[0], 0, "nobody had computed it");
    assert!(cached[1..].iter().all(|tokens| *tokens >= 272), "{cached:?}");
    let app = App::of_instances(&["e1", "e2", "e3"]);
    let alone = |n| format!("{n:02} {}", "a prefix of its own ".repeat(15));
    let cached = burst(&app, (0..24).map(alone)).await;
    assert_eq!(cached, [0; 24], "prompts that share nothing are predicted apart");
}

#[tokio::test]
async fn what_is_predicted_is_the_prompt_but_for_what_decoding_completes() {
    let app = App::of_instances(&["e1"]);
    // A token a byte: five full blocks, of which the last is full only with the last token.
    let prompt = "x".repeat(5 * INDEX_BLOCK_TOKENS);
    burst(&app, [prompt]).await;
    let predicted = app.fleet.predicted();
    assert_eq!(predicted.len(), 1);
    assert_eq!((predicted[0].0, predicted[0].1.len()), (InstanceIndex(0), 4));
}

#[tokio::test]
async fn where_nothing_may_be_kept_nothing_is_predicted() {
    let app = App::of_instances(&["e1", "e2"]);
    let body = json!({"model": "fake", "prompt": "x".repeat(100), "max_tokens": 1});
    app.post_as(super::support::GLOBEX, "/v1/completions", body).await;
    let kept = app.fleet.predicted().len();
    assert!(kept > 0, "paris lies in the EU, and its data may stay");
    let refused = json!({"model": "fake", "prompt": "y".repeat(100), "max_tokens": 1});
    app.post_as("key-lost", "/v1/completions", refused).await;
    assert_eq!(
        app.fleet.predicted().len(),
        kept,
        "a request that was refused leaves nothing"
    );
}
