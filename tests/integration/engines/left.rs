//! Clients that leave before an engine said anything, and what is over with them; requests that are not parted.

use super::*;

const P: &str = "role: prefill,|, hand_over: {connector: nixl}";
const D: &str = "role: decode,|, hand_over: {connector: nixl}";

/// One that takes so long for each token of a prompt, and for each step. A step that has begun is ended for nobody, as in a real
/// engine, so one step is one token.
async fn slow(token_ms: f64, step_ms: f64) -> ModelledEngine {
    let quick = Profile::shipped("quick").unwrap();
    let profile = Profile {
        prefill_ms: vec![(1, token_ms), (512, token_ms)],
        step_tokens: 1,
        decode: portolan_engine::modelled::DecodeTime {
            base_ms: step_ms,
            ..quick.decode
        },
        ..quick
    };
    engine_like(profile, false).await
}

/// Requests that it has.
async fn at(engine: &ModelledEngine) -> f64 {
    metric(engine, "vllm:num_requests_running").await + metric(engine, "vllm:num_requests_waiting").await
}

/// Waits for something of an engine, looking as often as it answers.
async fn until(what: &str, within: Duration, mut holds: impl AsyncFnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < within, "{what}: not within {within:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    begun.elapsed()
}

/// A tenth of a second is what a client that leaves may cost an engine; the test's own look takes some of it.
const GONE: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_before_the_first_byte_is_gone_at_the_engine_within_a_tenth_of_a_second() {
    let engine = slow(20.0, 1.0).await;
    let paris = Paris::start(&[found("v1", &engine, "")]).await;
    for (n, streamed) in [(1, true), (2, false)] {
        let mut asked = theirs(&prompt(n, 60));
        asked["stream"] = json!(streamed);
        let stream = paris.send(ACME, "/v1/completions", &asked.to_string()).await;
        until("the engine has it", PATIENCE, async || at(&engine).await > 0.0).await;
        drop(stream);
        let took = until("it is gone", PATIENCE, async || at(&engine).await == 0.0).await;
        assert!(took < GONE, "streamed {streamed}: {took:?}");
    }
    paris.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_is_gone_at_both_engines_and_nothing_stays_kept_for_it() {
    // It leaves while its prompt is computed.
    let (p, d) = (slow(20.0, 1.0).await, engine(false).await);
    let paris = Paris::start(&[found("p", &p, P), found("d", &d, D)]).await;
    let asked = theirs(&prompt(1, 120));
    let stream = paris.send(ACME, "/v1/completions", &asked.to_string()).await;
    until("the prompt is being computed", PATIENCE, async || {
        at(&p).await > 0.0
    })
    .await;
    drop(stream);
    let took = until("it is gone", PATIENCE, async || at(&p).await == 0.0).await;
    assert!(took < GONE, "prefill: {took:?}");
    assert_eq!(metric(&p, "modelled:kv_parked").await, 0.0);
    paris.stop().await;

    // It leaves while the other engine is about to answer.
    let (p, d) = (engine(false).await, slow(5.0, 40.0).await);
    let paris = Paris::start(&[found("p", &p, P), found("d", &d, D)]).await;
    let stream = paris.send(ACME, "/v1/completions", &asked.to_string()).await;
    until("it is decoded", PATIENCE, async || at(&d).await > 0.0).await;
    drop(stream);
    let took = until("it is gone", PATIENCE, async || at(&d).await == 0.0).await;
    assert!(took < GONE, "decode: {took:?}");
    until("nothing is kept for it", PATIENCE, async || {
        metric(&p, "modelled:kv_parked").await == 0.0
    })
    .await;
    paris.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_two_engines_cannot_answer_together_goes_to_one() {
    let (p, d) = (engine(false).await, engine(false).await);
    let paris = Paris::start(&[found("p", &p, P), found("d", &d, D)]).await;
    let tried = metric(&p, "vllm:request_success_total").await;
    let extra = [
        json!({"echo": true}),
        json!({"prompt_logprobs": 0}),
        json!({"prompt_logprobs": 2}),
        json!({"n": 2}),
        json!({"best_of": 2}),
        json!({"use_beam_search": true}),
        json!({"max_tokens": 1}),
    ];
    for (n, more) in (0u32..).zip(&extra) {
        let mut asked = theirs(&prompt(n, 120));
        asked
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let (_, record) = paris.ask(ACME, &format!("one-{n}"), asked).await;
        assert_eq!(record.status, "ok", "{more}");
        assert_eq!(
            metric(&p, "vllm:request_success_total").await,
            tried,
            "{more} was parted"
        );
    }
    paris.ask(ACME, "two", theirs(&prompt(90, 120))).await;
    assert_eq!(metric(&p, "vllm:request_success_total").await, tried + 1.0);
    paris.stop().await;
}

/// A prefill engine whose bootstrap server answers and whose prompts fail after a while.
async fn failing() -> (SocketAddr, tokio::task::JoinSet<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(fail(stream));
        }
    });
    (address, tasks)
}

async fn fail(mut stream: TcpStream) {
    let mut bytes = Vec::new();
    let mut piece = [0; 8192];
    loop {
        let Ok(n @ 1..) = stream.read(&mut piece).await else {
            return;
        };
        bytes.extend_from_slice(&piece[..n]);
        let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .lines()
            .find_map(|l| l.strip_prefix("content-length: ")?.parse::<usize>().ok());
        if body.len() < length.unwrap_or(0) {
            continue;
        }
        let (status, said) = match head {
            _ if head.starts_with("get /query") => ("200 OK", r#"{"0": {"engine_id": "p0"}}"#),
            _ if head.starts_with("post /tokenize") => ("404 Not Found", ""),
            // KV that never comes.
            _ if head.starts_with("post /modelled/kv/") => {
                tokio::time::sleep(PATIENCE).await;
                ("404 Not Found", "")
            }
            _ if head.contains("x-request-id") => {
                tokio::time::sleep(Duration::from_millis(300)).await;
                (
                    "500 Internal Server Error",
                    r#"{"error": {"message": "out of memory"}}"#,
                )
            }
            _ => ("200 OK", "data: [DONE]\n\n"),
        };
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{said}",
            said.len()
        );
        drop(stream.write_all(answer.as_bytes()).await);
        return;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefill_that_fails_beside_its_decode_ends_it_at_once() {
    let (p, _server) = failing().await;
    let d = engine(false).await;
    let pushed = format!(", hand_over: {{connector: mooncake, bootstrap: 'http://{p}'}}");
    let paris = Paris::start(&[
        format!(
            "{{name: p, model: {MODEL}, role: prefill, engine: vllm, server: {{url: 'http://{p}'{pushed}}}}}"
        ),
        found("d", &d, &format!("role: decode,|{pushed}")),
    ])
    .await;
    let begun = Instant::now();
    let asked = theirs(&prompt(4, 120)).to_string();
    let (head, body) = paris.raw(ACME, "/v1/completions", &asked).await;
    let took = begun.elapsed();
    let body = String::from_utf8(body).unwrap();
    assert!(head.starts_with("HTTP/1.1 5"), "{head}\n{body}");
    assert!(!body.contains("127.0.0.1"), "{body}");
    // It failed after 0.3 s; left alone the decode engine waits for KV for half a minute.
    assert!(
        took > Duration::from_millis(250) && took < Duration::from_secs(10),
        "{took:?}"
    );
    paris.stop().await;
}
