//! Prefill on one modelled engine, decode on another.

use super::*;

fn offer() -> Value {
    json!({"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": true, "do_remote_prefill": false}})
}

#[tokio::test]
async fn kv_is_parked_taken_once_and_the_answer_is_the_single_instances() {
    let (_p, prefill) = start(quick()).await;
    let (_d, decode) = start(quick()).await;
    let (_s, single) = start(quick()).await;
    let prompt = "a prompt that is long enough to fill blocks";
    let first = prefill
        .json("/v1/completions", &completion(prompt, offer()))
        .await;
    let params = &first["kv_transfer_params"];
    assert_eq!(params["do_remote_prefill"], true);
    assert_eq!(prefill.metric("modelled:kv_parked").await, 1.0);
    let ask = completion(prompt, json!({"kv_transfer_params": params}));
    let answer = decode.json("/v1/completions", &ask).await;
    let alone = single
        .json("/v1/completions", &completion(prompt, json!({})))
        .await;
    assert_eq!(text_of(&answer), text_of(&alone));
    assert_eq!(prefill.metric("modelled:kv_parked").await, 0.0);
    assert!(decode.metric("vllm:external_prefix_cache_hits_total").await > 0.0);
    assert_eq!(
        decode.post("/v1/completions", &ask).await.0,
        500,
        "what was taken is not there twice"
    );
    let again = decode
        .post("/v1/completions", &completion(prompt, json!({})))
        .await;
    assert_eq!(again.0, 200, "one request's failure is not the engine's");
}

#[tokio::test]
async fn a_streamed_prefill_parks_nothing() {
    let (_p, prefill) = start(quick()).await;
    let mut ask = completion("some prompt", offer());
    ask["stream"] = json!(true);
    let (_, _, body) = prefill.post("/v1/completions", &ask).await;
    assert!(!body.contains("kv_transfer_params"));
    assert_eq!(prefill.metric("modelled:kv_parked").await, 0.0);
}

#[tokio::test]
async fn fields_missing_kill_the_engine() {
    let (engine, client) = start(quick()).await;
    let ask = completion("x", json!({"kv_transfer_params": {"do_remote_prefill": true}}));
    let answer = client.try_post("/v1/completions", &ask).await;
    assert!(answer.is_err() || answer.is_ok_and(|(status, _, _)| status == 500));
    let end = tokio::time::timeout(Duration::from_secs(5), engine.wait())
        .await
        .unwrap();
    assert!(matches!(end, Err(ModelledError::Died(_))));
}

#[tokio::test]
async fn two_legs_at_once_meet_under_a_name() {
    let (p, prefill) = start(quick()).await;
    let (_d, decode) = start(quick()).await;
    let engine: Value = serde_json::from_str(&prefill.get("/query").await).unwrap();
    let engine = engine["0"]["engine_id"].as_str().unwrap().to_owned();
    let take = json!({"kv_transfer_params": {
        "do_remote_decode": false, "do_remote_prefill": true, "transfer_id": "xfer-1",
        "remote_bootstrap_addr": format!("http://{}", p.address()), "remote_engine_id": engine,
    }});
    let mut give = offer();
    give["kv_transfer_params"]["transfer_id"] = json!("xfer-1");
    let (give, take) = (
        completion("a prompt of some length", give),
        completion("a prompt of some length", take),
    );
    let (first, answer) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            prefill.json("/v1/completions", &give).await
        },
        decode.json("/v1/completions", &take),
    );
    assert_eq!(text_of(&answer)[..1], text_of(&first)[..1]);
    assert_eq!(prefill.metric("modelled:kv_parked").await, 0.0);
}
