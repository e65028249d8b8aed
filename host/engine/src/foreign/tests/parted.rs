//! Prefill on one instance, decode on another.

use super::world::*;
use super::*;
use crate::modelled::ModelledEngine;
use std::sync::atomic::Ordering::Relaxed;

const PROMPT: &str = "a prompt that is long enough to be parted between two engines";

async fn handing(connector: Connector) -> (ModelledEngine, ForeignInstance) {
    let engine = modelled(quick(), "127.0.0.1:0", None).await;
    let instance = up(ForeignConfig {
        connector: Some(connector),
        ..config(engine.address())
    })
    .await;
    (engine, instance)
}

async fn metric(instance: &ForeignInstance, name: &str) -> f64 {
    let (_, page) = instance
        .shared
        .upstream
        .get("/metrics", Duration::from_secs(2))
        .await
        .unwrap();
    let page = String::from_utf8(page.to_vec()).unwrap();
    let line = page.lines().find(|line| line.starts_with(name)).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn said(bytes: &[u8]) -> String {
    let answer: Value = serde_json::from_slice(bytes).unwrap();
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_pulling_kind_prefills_first_and_the_answer_is_the_single_instances() {
    let (_p, prefill) = handing(Connector::Nixl).await;
    let (_d, decode) = handing(Connector::Nixl).await;
    let (_s, single) = pair(quick()).await;
    let body = completion(PROMPT, json!({"min_tokens": 4}));
    assert!(decode.is_parted(&job(&body), PROMPT.len() as u32));
    let offer = prefill.offer(job(&body)).await.unwrap();
    assert_eq!(offer.prefilling.await.unwrap().cached, Some(0));
    let params = offer.params.unwrap();
    assert_eq!(metric(&prefill, "modelled:kv_parked").await, 1.0);
    let (_, bytes) = all(decode.answer(job(&body), Some(params)).await.unwrap())
        .await
        .unwrap();
    assert_eq!(said(&bytes), answered(&single, &body).await["choices"][0]["text"]);
    assert_eq!(metric(&prefill, "modelled:kv_parked").await, 0.0);
    assert!(metric(&decode, "vllm:external_prefix_cache_hits_total").await > 0.0);
    let again = prefill.offer(job(&body)).await.unwrap();
    assert_eq!(
        again.prefilling.await.unwrap().cached,
        Some(48),
        "the prefill leg knows what was cached"
    );
}

#[tokio::test]
async fn the_pushing_kind_runs_both_legs_at_once() {
    let engine = modelled(quick(), "127.0.0.1:0", None).await;
    // A modelled engine's bootstrap server is its own port.
    let bootstrap = Some(EngineUrl::parse(&format!("http://{}", engine.address())).unwrap());
    let connector = Connector::Mooncake { bootstrap };
    let prefill = up(ForeignConfig {
        connector: Some(connector),
        ..config(engine.address())
    })
    .await;
    let (_d, decode) = handing(Connector::Mooncake { bootstrap: None }).await;
    let (_s, single) = pair(quick()).await;
    let body = completion(PROMPT, json!({}));
    let offer = prefill.offer(job(&body)).await.unwrap();
    let params = offer.params.clone().unwrap();
    assert!(
        params.contains("xfer-") && params.contains("remote_bootstrap_addr"),
        "{params}"
    );
    let (handed, answer) = tokio::join!(offer.prefilling, decode.answer(job(&body), Some(params)));
    handed.unwrap();
    let (_, bytes) = all(answer.unwrap()).await.unwrap();
    assert_eq!(said(&bytes), answered(&single, &body).await["choices"][0]["text"]);
}

#[tokio::test]
async fn kv_that_nobody_needs_is_freed() {
    let (_p, prefill) = handing(Connector::Nixl).await;
    let (_d, decode) = handing(Connector::Nixl).await;
    let body = completion(PROMPT, json!({"stream": true}));
    let offer = prefill.offer(job(&body)).await.unwrap();
    assert_eq!(metric(&prefill, "modelled:kv_parked").await, 1.0);
    decode.release(job(&body), offer.params.unwrap());
    let done = async || {
        let tried = 1.0;
        metric(&prefill, "modelled:kv_parked").await == 0.0
            && metric(&decode, "vllm:request_success_total").await > tried
    };
    for _ in 0..200 {
        if done().await {
            assert_eq!(decode.shared.counts.released_offers.load(Relaxed), 1);
            // What was taken too late may be another prompt's: nobody finds it.
            let answer = answered(&decode, &completion(PROMPT, json!({}))).await;
            assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it is still kept");
}

#[tokio::test]
async fn a_prefill_that_says_nothing_usable_never_reaches_a_decode_engine() {
    let (address, _server) = server(|got, mut stream| async move {
        let body = r#"{"choices":[],"kv_transfer_params":{"do_remote_prefill":true}}"#;
        let bad = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        write(&mut stream, housekeeping(&got).unwrap_or(bad.as_bytes())).await;
    })
    .await;
    let prefill = up(ForeignConfig {
        connector: Some(Connector::Nixl),
        ..config(address)
    })
    .await;
    let offer = prefill.offer(job(&completion(PROMPT, json!({})))).await.unwrap();
    assert!(offer.params.is_none());
    assert_eq!(prefill.shared.counts.unusable_offers.load(Relaxed), 1);
}

#[tokio::test]
async fn a_clients_own_params_do_not_kill_an_engine() {
    let (_engine, instance) = handing(Connector::Nixl).await;
    for deadly in [
        json!({"kv_transfer_params": {"do_remote_prefill": true}}),
        json!({"vllm_xargs": {"kv_transfer_params": 0}}),
    ] {
        answered(&instance, &completion(PROMPT, deadly)).await;
    }
    answered(&instance, &completion(PROMPT, json!({}))).await;
}
