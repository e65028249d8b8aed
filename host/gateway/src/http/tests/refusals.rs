//! A request that is refused while its body is on its way: the body is read and thrown away, so that the client sees why.

use super::support::{ACME, App, request};
use crate::site::Limits;
use axum::body::{Body, Bytes};
use axum::http::{Method, Request};
use portolan_ports::FakeText;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const PIECE: usize = 16 << 10;

/// A body of `pieces`, and how many of them were taken.
fn body(pieces: usize) -> (Body, Arc<AtomicUsize>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    let pieces = (0..pieces).map(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(Bytes::from(vec![b' '; PIECE]))
    });
    (Body::from_stream(futures_util::stream::iter(pieces)), taken)
}

/// Requests that nobody has to read to refuse them.
fn refused(body: impl Fn() -> Body) -> Vec<(u16, Request<Body>)> {
    let post = |path: &str, key: &str| request(Method::POST, path, key, body());
    let mut text = post("/v1/completions", ACME);
    text.headers_mut()
        .insert("content-type", "text/plain".parse().unwrap());
    vec![
        (401, post("/v1/completions", "wrong")),
        (401, post("/v1/portolan/invalidate", "")),
        (403, post("/v1/portolan/kv/evict", ACME)),
        (404, post("/v1/nothing", ACME)),
        (405, post("/v1/models", ACME)),
        (400, text),
    ]
}

#[tokio::test]
async fn the_body_of_a_refused_request_is_read_to_its_end() {
    let app = App::new();
    for (status, request) in refused(Body::empty) {
        let (pieces, taken) = body(100);
        let (parts, _) = request.into_parts();
        let path = parts.uri.clone();
        let reply = app.send(Request::from_parts(parts, pieces)).await;
        assert_eq!(reply.status, status, "{path}");
        assert_eq!(taken.load(Ordering::Relaxed), 100, "{path}");
    }
}

#[tokio::test]
async fn not_beyond_a_bound_and_not_where_the_client_asks_before_it_sends() {
    let limits = Limits {
        body_bytes: PIECE,
        ..Limits::default()
    };
    let app = App::with(FakeText::new(), limits);
    let (pieces, taken) = body(10_000);
    let reply = app
        .send(request(Method::POST, "/v1/completions", "wrong", pieces))
        .await;
    assert_eq!((reply.status.as_u16(), taken.load(Ordering::Relaxed)), (401, 17));
    let (pieces, taken) = body(10_000);
    let reply = app
        .send(request(Method::POST, "/v1/completions", ACME, pieces))
        .await;
    assert_eq!(
        (reply.status.as_u16(), taken.load(Ordering::Relaxed)),
        (413, 17),
        "once, not twice"
    );
    let (pieces, taken) = body(10);
    let mut asks = request(Method::POST, "/v1/completions", "wrong", pieces);
    asks.headers_mut()
        .insert("expect", "100-continue".parse().unwrap());
    assert_eq!(app.send(asks).await.status, 401);
    assert_eq!(taken.load(Ordering::Relaxed), 0);
}
