//! Prefill on one engine, decode on another, through the gateway.

use super::*;

const P: &str = "role: prefill,|, hand_over: {connector: nixl}";
const D: &str = "role: decode,|, hand_over: {connector: nixl}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_is_the_single_engines_and_the_record_tells_both_legs() {
    let (p, d, single) = (engine(true).await, engine(false).await, engine(false).await);
    let alone = Paris::start(&[found("s", &single, "")]).await;
    let paris = Paris::start(&[found("p", &p, P), found("d", &d, D)]).await;
    let asked = theirs(&prompt(1, 120));
    let (expected, _) = alone.ask(ACME, "s-1", asked.clone()).await;
    let (answer, record) = paris.ask(ACME, "p-1", asked.clone()).await;
    assert_eq!(text(&answer), text(&expected));
    let route = record.route.clone().unwrap();
    assert_eq!(
        (route.prefill_instance.as_str(), route.decode_instance.as_str()),
        ("p", "d")
    );
    let stages: Vec<&str> = record.stages.iter().map(|s| s.name.as_str()).collect();
    assert!(
        stages.contains(&"prefill") && stages.contains(&"decode"),
        "{stages:?}"
    );
    assert_eq!((record.kv.cached_tokens, record.completion_tokens), (0, 8));
    assert!(metric(&d, "vllm:external_prefix_cache_hits_total").await > 0.0);
    assert_eq!(metric(&p, "modelled:kv_parked").await, 0.0);
    // The prefill engine knows what it had; to the other everything is cached.
    let (_, record) = paris.ask(ACME, "p-2", asked).await;
    assert_eq!(record.kv.cached_tokens, 112);

    // What cannot be parted goes to the decode engine alone.
    let before = metric(&p, "vllm:request_success_total").await;
    let mut several = theirs(&prompt(2, 120));
    several["n"] = json!(2);
    let (answer, _) = paris.ask(ACME, "n-2", several).await;
    assert_eq!(answer["choices"].as_array().unwrap().len(), 2);
    let (_, _) = paris.ask(ACME, "tiny", theirs(&prompt(3, 8))).await;
    assert_eq!(metric(&p, "vllm:request_success_total").await, before);
    alone.stop().await;
    paris.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decode_engine_that_is_gone_is_followed_by_another_with_the_same_kv() {
    let (p, d1, d2) = (engine(false).await, engine(false).await, engine(false).await);
    let paris = Paris::start(&[found("p", &p, P), found("d1", &d1, D), found("d2", &d2, D)]).await;
    let tried = metric(&p, "vllm:request_success_total").await;
    drop(d1);
    let mut fell_back = 0;
    for n in 0..4 {
        let (_, record) = paris.ask(ACME, &format!("r-{n}"), theirs(&prompt(n, 120))).await;
        assert_eq!(record.route.unwrap().decode_instance, "d2");
        fell_back += record.fallbacks.len();
    }
    assert_eq!(
        metric(&p, "vllm:request_success_total").await - tried,
        4.0,
        "each prompt was computed once"
    );
    assert_eq!(
        metric(&p, "modelled:kv_parked").await,
        0.0,
        "{fell_back} fell back"
    );
    // Without anyone to compute prompts the decode engine goes on alone.
    drop(p);
    let until = Instant::now() + PATIENCE;
    loop {
        let body = theirs(&prompt(50, 120)).to_string();
        let (head, _) = paris.raw(ACME, "/v1/completions", &body).await;
        if head.starts_with("HTTP/1.1 200") {
            break;
        }
        assert!(Instant::now() < until, "{head}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    paris.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kv_for_a_request_that_the_decode_engine_refuses_is_freed() {
    let (p, d) = (engine(false).await, engine(false).await);
    let paris = Paris::start(&[found("p", &p, P), found("d", &d, D)]).await;
    let tried = metric(&p, "vllm:request_success_total").await;
    // The prefill engine is told to say one token: it sees nothing wrong.
    let mut asked = theirs(&prompt(1, 120));
    asked["max_tokens"] = json!(100_000);
    let (head, _) = paris.raw(ACME, "/v1/completions", &asked.to_string()).await;
    assert!(head.starts_with("HTTP/1.1 400"), "{head}");
    assert_eq!(metric(&p, "vllm:request_success_total").await, tried + 1.0);
    let until = Instant::now() + Duration::from_secs(5);
    while metric(&p, "modelled:kv_parked").await > 0.0 {
        assert!(Instant::now() < until, "it is still kept");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    paris.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kv_that_an_engine_may_have_taken_is_nobody_elses() {
    let quick = Profile::shipped("quick").unwrap();
    let faults = portolan_engine::modelled::Faults {
        // It answers the host's own request, and dies of the first of a client's.
        die_after: 1,
        ..quick.faults
    };
    let dies = engine_like(Profile { faults, ..quick }, false).await;
    let (p, other) = (engine(false).await, engine(false).await);
    let paris = Paris::start(&[found("p", &p, P), found("d1", &dies, D), found("d2", &other, D)]).await;
    let tried = metric(&p, "vllm:request_success_total").await;
    for n in 0..40 {
        let asked = theirs(&prompt(n, 120));
        let (_, record) = paris.ask(ACME, &format!("r-{n}"), asked).await;
        assert_eq!(record.route.unwrap().decode_instance, "d2");
        let computed = metric(&p, "vllm:request_success_total").await - tried;
        let asked_so_far = f64::from(n + 1);
        if !record.fallbacks.is_empty() {
            assert_eq!(computed, asked_so_far + 1.0, "the prompt is computed once more");
            paris.stop().await;
            return;
        }
        assert_eq!(computed, asked_so_far);
    }
    panic!("the engine that dies was never asked");
}
