//! Requests out and answers back.

use super::world::*;
use super::*;
use crate::modelled::Faults;
use parking_lot::Mutex;
use std::sync::Arc;

#[tokio::test]
async fn what_is_sent_is_what_was_written_but_for_the_salt() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let (address, _server) = server(move |got, mut stream| {
        let log = Arc::clone(&log);
        async move {
            if let Some(answer) = housekeeping(&got) {
                return write(&mut stream, answer).await;
            }
            log.lock().push(got);
            let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nserver: x\r\nx-own: y\r\n\
                          connection: close, x-hop\r\nx-hop: 1\r\ncontent-length: 9\r\n\r\n{\"a\": 1 }";
            write(&mut stream, answer.as_bytes()).await;
        }
    })
    .await;
    let instance = up(config(address)).await;
    let body = "{ \"z\":12345678901234567890123, \"kv_transfer_params\":{\"do_remote_prefill\":true},\"a\" :[1e400],\
                \"cache_salt\":\"mine\",\"portolan\":{\"session\":\"s\"} }";
    let (head, bytes) = all(instance.answer(job(body), None).await.unwrap())
        .await
        .unwrap();
    assert_eq!((head.status, bytes.as_slice()), (200, b"{\"a\": 1 }".as_slice()));
    let names: Vec<&str> = head.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["content-type", "x-own", "content-length"]);
    let got = seen.lock().pop().unwrap();
    assert_eq!(
        String::from_utf8(got.body).unwrap(),
        "{ \"z\":12345678901234567890123,\"a\" :[1e400],\"cache_salt\":\"acme\"}"
    );
    assert!(
        got.head.contains("traceparent: 00-abc") && got.head.contains("x-request-id: req-1"),
        "{}",
        got.head
    );
    assert!(!got.head.to_ascii_lowercase().contains("authorization"));
}

#[tokio::test]
async fn a_client_that_leaves_is_gone_at_the_engine_within_a_tenth_of_a_second_also_before_the_first_byte() {
    let (closed_in, mut closed) = mpsc::unbounded_channel();
    let (address, _server) = server(move |got, mut stream| {
        let closed = closed_in.clone();
        async move {
            if let Some(answer) = housekeeping(&got) {
                return write(&mut stream, answer).await;
            }
            if got.body.windows(6).any(|w| w == b"begins") {
                write(
                    &mut stream,
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n",
                )
                .await;
            }
            let _ = closed.send(None);
            let mut rest = [0; 1];
            drop(tokio::io::AsyncReadExt::read(&mut stream, &mut rest).await);
            let _ = closed.send(Some(Instant::now()));
        }
    })
    .await;
    let instance = Arc::new(up(config(address)).await);
    for (begins, by_cancel) in [(false, false), (false, true), (true, false), (true, true)] {
        let text = if begins { "begins" } else { "silent" };
        let job = job(&completion(text, json!({"stream": true})));
        let cancel = job.cancel.clone();
        let asked = Arc::clone(&instance);
        let task = tokio::spawn(async move {
            let answer = asked.answer(job, None).await?;
            all(answer).await
        });
        assert_eq!(closed.recv().await, Some(None), "the request came");
        tokio::time::sleep(Duration::from_millis(30)).await;
        let left = Instant::now();
        match by_cancel {
            true => {
                cancel.cancel();
                assert_eq!(task.await.unwrap().unwrap_err(), EngineError::Cancelled);
            }
            false => task.abort(),
        }
        let at = tokio::time::timeout(Duration::from_secs(2), closed.recv())
            .await
            .unwrap();
        let took = at.flatten().unwrap() - left;
        assert!(
            took < Duration::from_millis(100),
            "begins {begins}, cancel {by_cancel}: {took:?}"
        );
    }
}

#[tokio::test]
async fn an_engines_refusal_is_an_answer_and_its_failure_is_not() {
    let (_engine, instance) = pair(quick()).await;
    let refused = instance
        .answer(job(&completion("x", json!({"max_tokens": 0}))), None)
        .await
        .unwrap();
    let (head, bytes) = all(refused).await.unwrap();
    assert_eq!(head.status, 400);
    assert!(String::from_utf8(bytes).unwrap().contains("BadRequestError"));
    for (faults, full) in [
        (
            Faults {
                refuse_permille: 1000,
                ..Faults::default()
            },
            true,
        ),
        (
            Faults {
                fail_permille: 1000,
                ..Faults::default()
            },
            false,
        ),
    ] {
        // The engine is tried before it is used, and would not get that far.
        let engine = modelled(Profile { faults, ..quick() }, "127.0.0.1:0", None).await;
        let instance = ForeignInstance::start(config(engine.address())).unwrap();
        let error = instance
            .answer(job(&completion("x", json!({}))), None)
            .await
            .err()
            .unwrap();
        assert_eq!(matches!(error, EngineError::Full(_)), full, "{error}");
        assert_eq!(matches!(error, EngineError::Broken(_)), !full, "{error}");
        assert!(!instance.is_up());
    }
    let nobody = ForeignInstance::start(config("127.0.0.1:9".parse().unwrap())).unwrap();
    let error = nobody
        .answer(job(&completion("x", json!({}))), None)
        .await
        .err()
        .unwrap();
    assert!(
        matches!(&error, EngineError::Unreachable(why) if !why.contains("127.0.0.1")),
        "{error}"
    );
}

use crate::modelled::Profile;

#[test]
fn an_address_that_is_none_is_named_without_its_password() {
    let said = EngineUrl::parse("https://u:geheim@engine:8000")
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("https://***@engine:8000") && !said.contains("geheim"),
        "{said}"
    );
    let said = EngineUrl::parse("u:ge@heim@engine").unwrap_err().to_string();
    assert!(said.starts_with("\"://***@engine\""), "{said}");
}

#[tokio::test]
async fn what_no_engine_of_its_kind_can_serve_is_an_answer_too() {
    let (address, _server) = server(|got, mut stream| async move {
        let answer = housekeeping(&got)
            .unwrap_or(b"HTTP/1.1 501 Not Implemented\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}");
        write(&mut stream, answer).await;
    })
    .await;
    let instance = up(config(address)).await;
    let answer = instance.answer(job(&completion("x", json!({}))), None).await;
    assert_eq!(answer.unwrap().head.status, 501);
}

#[tokio::test]
async fn a_stream_that_breaks_is_an_error_and_not_an_end() {
    let (address, _server) = server(|got, mut stream| async move {
        let answer = housekeeping(&got).unwrap_or(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n",
        );
        write(&mut stream, answer).await;
    })
    .await;
    let instance = up(config(address)).await;
    let answer = instance
        .answer(job(&completion("x", json!({"stream": true}))), None)
        .await
        .unwrap();
    assert!(matches!(all(answer).await, Err(EngineError::Broken(_))));
}

#[tokio::test]
async fn load_speed_and_health_are_seen_and_a_dead_engine_gets_no_work() {
    let (engine, instance) = pair(quick()).await;
    let load = instance.load();
    assert!(
        load.prefill_ns_per_token > 0 && load.decode_step_us > 0,
        "it was tried: {load:?}"
    );
    let mut streams = Vec::new();
    for _ in 0..3 {
        let body = completion(
            "go on",
            json!({"stream": true, "max_tokens": 4000, "ignore_eos": true}),
        );
        let mut answer = instance.answer(job(&body), None).await.unwrap();
        answer.body.next().await.unwrap().unwrap();
        streams.push(answer);
    }
    assert_eq!(instance.load().decode_running, 3, "own requests count at once");
    until("the page shows KV in use", || instance.load().kv_used.0 > 0).await;
    drop(streams);
    until("they are gone", || instance.load().decode_running == 0).await;
    drop(engine);
    until("it is down", || !instance.is_up()).await;
}

#[tokio::test]
async fn other_names_keys_and_makes() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let (address, _server) = server(move |got, mut stream| {
        let log = Arc::clone(&log);
        async move {
            let own = housekeeping(&got);
            log.lock().push(got);
            let answer =
                own.unwrap_or(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}");
            write(&mut stream, answer).await;
        }
    })
    .await;
    let instance = up(ForeignConfig {
        make: Make::LlamaCpp,
        served_name: Some("theirs".to_owned()),
        key: Some("secret".to_owned()),
        ..config(address)
    })
    .await;
    let mut once = job("{\"model\":\"tiny\",\"cache_salt\":\"x\"}");
    once.salt.root = None;
    all(instance.answer(once, None).await.unwrap()).await.unwrap();
    let got = seen
        .lock()
        .iter()
        .rfind(|got| got.head.contains("x-request-id"))
        .cloned()
        .unwrap();
    assert_eq!(got.body, b"{\"model\":\"theirs\",\"cache_prompt\":false}");
    assert!(
        seen.lock()
            .iter()
            .all(|got| got.head.contains("authorization: Bearer secret"))
    );
}

#[tokio::test]
async fn an_engine_that_cuts_text_otherwise_is_noticed_at_the_start() {
    let engine = modelled(quick(), "127.0.0.1:0", None).await;
    let same = up(config(engine.address())).await;
    assert_eq!(
        same.shared
            .counts
            .token_mismatches
            .load(std::sync::atomic::Ordering::Relaxed),
        0
    );
    struct Upper(portolan_ports::FakeText);
    impl TextModel for Upper {
        fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, portolan_ports::TextError> {
            self.0.encode(&text.to_uppercase(), special)
        }
        fn render_chat(
            &self,
            m: &[portolan_ports::ChatMessage],
            more: &portolan_ports::TemplateValues,
            at: portolan_base::Moment,
        ) -> Result<String, portolan_ports::TextError> {
            self.0.render_chat(m, more, at)
        }
        fn stream(&self) -> Box<dyn portolan_ports::TextStream> {
            self.0.stream()
        }
        fn longest_token_bytes(&self) -> usize {
            1
        }
        fn stop_ids(&self) -> &[u32] {
            &[]
        }
    }
    let text = Arc::new(Upper(portolan_ports::FakeText::new()));
    let other = up(ForeignConfig {
        text,
        ..config(engine.address())
    })
    .await;
    assert!(
        other
            .shared
            .counts
            .token_mismatches
            .load(std::sync::atomic::Ordering::Relaxed)
            >= 6
    );
}
