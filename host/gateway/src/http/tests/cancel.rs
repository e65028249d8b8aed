//! A client that leaves: the engine hears of it at once.

use super::support::{ACME, App};
use portolan_ports::EngineFault;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// What the design promises.
const PROMISED: Duration = Duration::from_millis(100);

/// Serves the app on a loopback port until the sender is dropped.
pub(super) async fn listen(app: &App) -> (SocketAddr, oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async move { drop(stopped.await) };
    tokio::spawn(crate::http::serve(Arc::clone(&app.site), listener, shutdown));
    (address, stop)
}

pub(super) async fn begin(address: SocketAddr, body: Value) -> TcpStream {
    begin_with(address, body, "").await
}

/// Sends a request and `more` behind it.
async fn begin_with(address: SocketAddr, body: Value, more: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let body = body.to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ACME}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream
        .write_all(format!("{head}{body}{more}").as_bytes())
        .await
        .unwrap();
    stream
}

pub(super) async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(wanted) {
        let read = tokio::time::timeout(Duration::from_secs(5), stream.read_buf(&mut seen)).await;
        let read = read.unwrap_or_else(|_| panic!("{wanted} never came: {}", String::from_utf8_lossy(&seen)));
        assert_ne!(read.unwrap(), 0, "{}", String::from_utf8_lossy(&seen));
    }
    String::from_utf8(seen).unwrap()
}

/// Closes the connection and returns how long the engine took to notice.
async fn leave(app: &App, stream: TcpStream) -> Duration {
    let mut cancelled = app.engine.cancelled();
    let begun = Instant::now();
    drop(stream);
    let noticed = cancelled.wait_for(|ids| ids.iter().any(|id| id.as_str() == "gone"));
    tokio::time::timeout(Duration::from_secs(5), noticed)
        .await
        .expect("the engine never noticed")
        .unwrap();
    begun.elapsed()
}

#[tokio::test]
async fn leaving_a_stream_cancels_the_decode() {
    let app = App::new();
    app.engine.set_fault(Some(EngineFault::HangDecode(2)));
    let (address, _stop) = listen(&app).await;
    let body =
        json!({"model": "fake", "prompt": "hello", "temperature": 0, "stream": true, "request_id": "gone"});
    let mut stream = begin(address, body).await;
    let seen = read_until(&mut stream, "\"text\":\"e\"").await;
    assert!(
        seen.contains("text/event-stream"),
        "tokens come while the engine still works: {seen}"
    );
    let took = leave(&app, stream).await;
    assert!(took < PROMISED, "{took:?}");
    settled_as_cancelled(&app).await;
}

#[tokio::test]
async fn leaving_before_the_first_token_cancels_too() {
    for (fault, streamed) in [
        (EngineFault::HangDecode(2), false),
        (EngineFault::HangDecode(0), true),
        (EngineFault::HangPrefill, true),
        (EngineFault::HangPrefill, false),
    ] {
        let app = App::new();
        app.engine.set_fault(Some(fault.clone()));
        let (address, _stop) = listen(&app).await;
        let body = json!({"model": "fake", "prompt": "hello", "stream": streamed, "request_id": "gone", "max_tokens": 9});
        let stream = begin(address, body).await;
        until_status(&app, "running").await;
        let took = leave(&app, stream).await;
        assert!(took < PROMISED, "{fault:?}, stream {streamed}: {took:?}");
        settled_as_cancelled(&app).await;
    }
}

#[tokio::test]
async fn leaving_is_seen_behind_bytes_that_nobody_reads() {
    let ahead = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    // More than hyper takes off the socket while it serves another request, and less than the kernel takes.
    let much = format!("GET /{} HTTP/1.1\r\n", "x".repeat(32 << 10));
    for more in ["\r\n", ahead, &much] {
        for streamed in [true, false] {
            let mut quickest = Duration::MAX;
            // A part of what is promised is waited for on purpose: a busy machine gets three tries.
            for _ in 0..3 {
                if quickest >= PROMISED {
                    quickest = quickest.min(leave_behind(more, streamed).await);
                }
            }
            let bytes = more.len();
            assert!(
                quickest < PROMISED,
                "{bytes} bytes, stream {streamed}: {quickest:?}"
            );
        }
    }
}

/// Sends `more` behind a request, and leaves; returns how long the engine took to notice.
async fn leave_behind(more: &str, streamed: bool) -> Duration {
    let app = App::new();
    app.engine.set_fault(Some(EngineFault::HangDecode(2)));
    let (address, _stop) = listen(&app).await;
    let body = json!({"model": "fake", "prompt": "hello", "stream": streamed, "request_id": "gone"});
    let stream = begin_with(address, body, more).await;
    until_status(&app, "running").await;
    let took = leave(&app, stream).await;
    settled_as_cancelled(&app).await;
    took
}

#[tokio::test]
async fn a_client_that_only_stops_sending_gets_what_takes_no_time() {
    let app = App::new();
    let (address, _stop) = listen(&app).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let twice = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n".repeat(2);
    stream.write_all(twice.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut seen = String::new();
    let read = tokio::time::timeout(Duration::from_secs(5), stream.read_to_string(&mut seen)).await;
    read.unwrap().unwrap();
    assert_eq!(seen.matches("200 OK").count(), 2, "{seen}");
}

async fn settled_as_cancelled(app: &App) {
    until_status(app, "cancelled").await;
    let free = app.site.permits.available_permits();
    assert_eq!(
        free, app.site.parts.limits.in_flight,
        "the place in flight was given back"
    );
}

/// Waits until the record of the request has this status.
pub(super) async fn until_status(app: &App, status: &str) {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let newest = app.site.records.newest(1);
        if newest.first().is_some_and(|record| record.status == status) {
            return;
        }
        assert!(Instant::now() < deadline, "never {status}: {newest:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
