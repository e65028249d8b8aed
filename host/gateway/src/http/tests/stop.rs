//! A host that stops: whoever still waits is told, and nobody holds it up who has asked for nothing.

use super::cancel::{begin, listen, read_until, until_status};
use super::support::{ACME, App, request};
use axum::body::Body;
use axum::http::Method;
use portolan_ports::EngineFault;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longer than anything here takes, shorter than any bound of the doors.
const SOON: Duration = Duration::from_secs(5);

async fn rest_of(stream: &mut TcpStream) -> String {
    let mut rest = String::new();
    let read = tokio::time::timeout(SOON, stream.read_to_string(&mut rest)).await;
    read.expect("the connection ends").unwrap();
    rest
}

#[tokio::test]
async fn a_stream_that_is_cut_ends_with_an_error_event_and_is_settled() {
    let app = App::new();
    app.engine.set_fault(Some(EngineFault::HangDecode(2)));
    let (address, stop) = listen(&app).await;
    let body = json!({"model": "fake", "prompt": "hello", "temperature": 0, "stream": true});
    let mut stream = begin(address, body).await;
    read_until(&mut stream, "\"text\":\"e\"").await;
    drop(stop);
    app.site.cut_answers();
    let rest = rest_of(&mut stream).await;
    assert!(
        rest.contains("\"code\":\"host_stopping\"") && rest.ends_with("0\r\n\r\n"),
        "{rest}"
    );
    assert!(!rest.contains("[DONE]"), "{rest}");
    until_status(&app, "failed").await;
    assert_eq!(app.site.in_flight(), 0);
    let record = &app.site.records.newest(1)[0];
    assert_eq!(
        record.error.as_deref(),
        Some("the host stopped before the answer was complete")
    );
    assert!(
        record.stages.iter().any(|stage| stage.name == "decode"),
        "{record:?}"
    );
}

#[tokio::test]
async fn a_whole_answer_that_is_cut_is_503_and_says_when_to_try_again() {
    for fault in [
        EngineFault::HangDecode(2),
        EngineFault::HangDecode(0),
        EngineFault::HangPrefill,
    ] {
        let app = Arc::new(App::new());
        app.engine.set_fault(Some(fault));
        let asking = Arc::clone(&app);
        let asked =
            tokio::spawn(async move { asking.complete(json!({"model": "fake", "prompt": "hello"})).await });
        until_status(&app, "running").await;
        app.site.cut_answers();
        let reply = tokio::time::timeout(SOON, asked).await.unwrap().unwrap();
        assert_eq!(reply.status, 503);
        assert_eq!(reply.json()["error"]["code"], "host_stopping");
        assert_eq!(reply.header("retry-after"), "1");
        until_status(&app, "failed").await;
        assert_eq!(app.site.in_flight(), 0);
    }
}

#[tokio::test]
async fn a_prompt_computed_ahead_and_a_body_that_never_comes_are_cut_too() {
    let app = Arc::new(App::new());
    app.engine.set_fault(Some(EngineFault::HangPrefill));
    let asking = Arc::clone(&app);
    let warm = tokio::spawn(async move {
        let body = json!({"model": "fake", "prompt": "hello there, this is long enough to be computed"});
        asking.post("/v1/portolan/prewarm", body).await
    });
    until_status(&app, "running").await;
    let asking = Arc::clone(&app);
    let never = Body::from_stream(futures_util::stream::pending::<
        Result<axum::body::Bytes, std::io::Error>,
    >());
    let half = tokio::spawn(async move {
        asking
            .send(request(Method::POST, "/v1/completions", ACME, never))
            .await
    });
    tokio::task::yield_now().await;
    app.site.cut_answers();
    for asked in [warm, half] {
        let reply = tokio::time::timeout(SOON, asked).await.unwrap().unwrap();
        assert_eq!((reply.status.as_u16(), reply.header("retry-after")), (503, "1"));
    }
}

#[tokio::test]
async fn half_a_head_holds_nothing_up() {
    let app = App::new();
    let (address, stop, serving) = serving(&app).await;
    let mut fresh = TcpStream::connect(address).await.unwrap();
    fresh.write_all(b"GET /health HTTP/1.1\r\nhost:").await.unwrap();
    let mut used = TcpStream::connect(address).await.unwrap();
    used.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    read_until(&mut used, "ok").await;
    used.write_all(b"GET /hea").await.unwrap();
    // Both halves have arrived and are waited on.
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(stop);
    tokio::time::timeout(SOON, serving)
        .await
        .expect("nothing is owed")
        .unwrap();
    assert_eq!(rest_of(&mut fresh).await, "");
    assert_eq!(rest_of(&mut used).await, "");
}

/// Serves the app until the sender is dropped; the task ends with the last connection.
async fn serving(app: &App) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async move { drop(stopped.await) };
    let serving = crate::http::serve(Arc::clone(&app.site), listener, shutdown);
    (address, stop, tokio::spawn(async move { serving.await.unwrap() }))
}

/// Sends the head of a request and a part of its body.
async fn send_half(address: SocketAddr, method: &str, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ACME}\r\n\
         content-length: 1000\r\n\r\n{{\"model\":"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn half_a_body_is_refused_at_once_and_answers_under_way_go_on() {
    let app = App::new();
    app.engine.set_fault(Some(EngineFault::HangDecode(2)));
    let (address, stop, serving) = serving(&app).await;
    let body = json!({"model": "fake", "prompt": "hello", "temperature": 0, "stream": true});
    let mut stream = begin(address, body).await;
    read_until(&mut stream, "\"text\":\"e\"").await;
    let mut halves = Vec::new();
    for (method, path) in [
        ("POST", "/v1/completions"),
        ("PUT", "/v1/portolan/tenants/acme/policies/routing"),
        // Refused before its body is read, which is read all the same.
        ("POST", "/v1/nothing"),
    ] {
        halves.push((path, send_half(address, method, path).await));
    }
    // They have arrived and are waited on.
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(stop);
    for (path, mut half) in halves {
        let said = rest_of(&mut half).await;
        let expected = match path {
            "/v1/nothing" => "unknown_url",
            _ => "\"code\":\"host_stopping\"",
        };
        assert!(said.contains(expected), "{path}: {said}");
    }
    assert_eq!(app.site.in_flight(), 1, "the answer goes on");
    assert!(!serving.is_finished());
    app.site.cut_answers();
    assert!(rest_of(&mut stream).await.contains("host_stopping"));
    tokio::time::timeout(SOON, serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_request_whose_rest_was_on_its_way_is_answered() {
    let app = Arc::new(App::new());
    let (rest, body) = tokio::sync::mpsc::channel::<Result<axum::body::Bytes, std::io::Error>>(2);
    let pieces = futures_util::stream::unfold(body, async |mut body| Some((body.recv().await?, body)));
    let asking = Arc::clone(&app);
    let request = request(Method::POST, "/v1/completions", ACME, Body::from_stream(pieces));
    let asked = tokio::spawn(async move { asking.send(request).await });
    rest.send(Ok("{\"model\": \"fake\", ".into())).await.unwrap();
    tokio::task::yield_now().await;
    app.site.closing.cancel();
    rest.send(Ok("\"prompt\": \"hello\"}".into())).await.unwrap();
    drop(rest);
    let reply = tokio::time::timeout(SOON, asked).await.unwrap().unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
}
