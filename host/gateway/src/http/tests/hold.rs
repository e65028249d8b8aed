//! Clients that hold a connection or an answer and do nothing with it.

use super::super::{listen, router};
use super::support::{ACME, App};
use portolan_ports::EngineFault;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// How long clients of these tests may hold what they do not use.
const UNUSED: Duration = Duration::from_millis(400);

/// Long enough for two looks, on a busy machine.
const BY_THEN: Duration = Duration::from_secs(10);

const SETTINGS: u8 = 4;
const PING: u8 = 6;
const HEADERS: u8 = 1;
const DATA: u8 = 0;
const ACK: u8 = 1;

async fn serving(app: &App) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = router(Arc::clone(&app.site));
    tokio::spawn(listen::run_within(
        UNUSED,
        listener,
        router,
        std::future::pending(),
    ));
    address
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

/// A client of HTTP/2 that opens a window of so many bytes for each answer.
async fn http2(address: SocketAddr, window: u32) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut settings = 4u16.to_be_bytes().to_vec();
    settings.extend(window.to_be_bytes());
    let greeting = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, 0, &settings),
    ];
    stream.write_all(&greeting.concat()).await.unwrap();
    stream
}

/// Header fields, each written out.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.extend([0, name.len() as u8]);
        out.extend(name.as_bytes());
        out.push(value.len() as u8);
        out.extend(value.as_bytes());
    }
    out
}

fn get(stream: u32, path: &str) -> Vec<u8> {
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "x"),
    ];
    frame(HEADERS, 5, stream, &block(&fields))
}

/// Answers pings and settings as a client should. Says the kinds of frames that came when the connection has ended, or all
/// that came by then; and whether it ended.
async fn dutiful(stream: &mut TcpStream, by: Duration) -> (Vec<u8>, bool) {
    let mut kinds = Vec::new();
    let ended = tokio::time::timeout(by, async {
        loop {
            let mut head = [0; 9];
            if stream.read_exact(&mut head).await.is_err() {
                return;
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let mut payload = vec![0; length];
            if stream.read_exact(&mut payload).await.is_err() {
                return;
            }
            kinds.push(head[3]);
            let answer = match (head[3], head[4] & ACK) {
                (PING, 0) => frame(PING, ACK, 0, &payload),
                (SETTINGS, 0) => frame(SETTINGS, ACK, 0, &[]),
                _ => continue,
            };
            if stream.write_all(&answer).await.is_err() {
                return;
            }
        }
    });
    let ended = ended.await.is_ok();
    (kinds, ended)
}

#[tokio::test]
async fn a_client_of_http2_that_asks_nothing_is_let_go() {
    let app = App::new();
    let mut client = http2(serving(&app).await, 65_535).await;
    let (_, ended) = dutiful(&mut client, BY_THEN).await;
    assert!(ended, "it answers pings and is there for ever");
}

#[tokio::test]
async fn a_client_that_opens_no_window_for_what_it_asks_is_let_go() {
    let app = App::new();
    let mut client = http2(serving(&app).await, 0).await;
    for n in 0..20 {
        client.write_all(&get(1 + 2 * n, "/health")).await.unwrap();
    }
    let (kinds, ended) = dutiful(&mut client, BY_THEN).await;
    assert!(ended, "its answers wait for ever");
    assert!(kinds.contains(&HEADERS) && !kinds.contains(&DATA), "{kinds:?}");
}

#[tokio::test]
async fn a_client_of_http2_that_asks_now_and_then_stays() {
    let app = App::new();
    let mut client = http2(serving(&app).await, 65_535).await;
    for n in 0..8 {
        client.write_all(&get(1 + 2 * n, "/health")).await.unwrap();
        let (kinds, ended) = dutiful(&mut client, UNUSED / 2).await;
        assert!(!ended && kinds.contains(&DATA), "request {n}: {kinds:?}");
    }
}

#[tokio::test]
async fn a_client_that_reads_nothing_of_what_it_asks_is_let_go() {
    let app = App::new();
    let address = serving(&app).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = socket.connect(address).await.unwrap();
    let ask = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(100);
    let asking = async { while client.write_all(&ask).await.is_ok() {} };
    let ended = tokio::time::timeout(BY_THEN, asking).await;
    assert!(ended.is_ok(), "the connection is held for ever");
}

#[tokio::test]
async fn a_client_that_waits_for_its_answer_stays() {
    let app = App::new();
    app.engine.set_fault(Some(EngineFault::HangDecode(2)));
    let mut client = http2(serving(&app).await, 65_535).await;
    let key = format!("Bearer {ACME}");
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/v1/completions"),
        (":authority", "x"),
        ("authorization", &key),
        ("content-type", "application/json"),
    ];
    let body = r#"{"model": "fake", "prompt": "hello there", "stream": true}"#;
    let request = [
        frame(HEADERS, 4, 1, &block(&fields)),
        frame(DATA, 1, 1, body.as_bytes()),
    ];
    client.write_all(&request.concat()).await.unwrap();
    let (kinds, ended) = dutiful(&mut client, UNUSED * 4).await;
    assert!(kinds.contains(&DATA) && !ended, "{kinds:?}");
}
