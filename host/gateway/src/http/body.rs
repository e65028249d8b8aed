//! Reads request bodies within a bound.

use crate::error::{ErrorKind, RequestError};
use axum::body::{Body, BodyDataStream};
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, StreamExt};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use std::future;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// How much of a body that is too large is read and thrown away, as a multiple of what would have been taken. A
/// client that is still sending when the connection closes never sees the answer; 16 × 8 MiB covers the honest
/// mistakes, beyond it the connection is closed.
const DISCARDED_MULTIPLE: usize = 16;

/// How long the rest of a body that nobody takes is read for, altogether: 2 MiB come at a megabit a second.
const DISCARDING: Duration = Duration::from_secs(20);

/// How often it is looked whether a body is waited for, while the doors close.
const LOOK: Duration = Duration::from_millis(20);

/// Bytes of an order: a few names and a reason.
pub(super) const ORDER_MAX_BYTES: usize = 16 << 10;

/// How long a body may pause: what has come of it takes memory meanwhile.
const BODY_PAUSE: Duration = Duration::from_secs(20);

/// The whole body, at most `most` bytes of it.
pub(super) async fn read(mut body: Body, most: usize) -> Result<Bytes, RequestError> {
    let mut whole = BytesMut::new();
    let mut seen = 0usize;
    loop {
        let next = tokio::time::timeout(BODY_PAUSE, body.frame())
            .await
            .map_err(paused)?;
        let Some(frame) = next else { break };
        let frame = frame.map_err(|error| {
            RequestError::new(ErrorKind::BadRequest, "the request body ended early").with_detail(error)
        })?;
        let Ok(data) = frame.into_data() else { continue };
        seen = seen.saturating_add(data.len());
        if seen <= most {
            whole.extend_from_slice(&data);
        } else {
            whole = BytesMut::new();
            if seen > most.saturating_mul(DISCARDED_MULTIPLE) {
                break;
            }
        }
    }
    if seen > most {
        let message = format!("the request body is larger than the {most} bytes that are taken here");
        return Err(RequestError::new(ErrorKind::TooLarge, message).with_code("request_too_large"));
    }
    Ok(whole.freeze())
}

/// A body that is lent to whoever answers the request.
pub(super) struct Lent(Arc<Mutex<Rest>>);

struct Rest {
    /// None at its end.
    body: Option<BodyDataStream>,
    /// Bytes that came.
    seen: usize,
    /// Whoever reads it has read all that came.
    is_awaited: bool,
}

impl Rest {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, axum::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let next = body.poll_next_unpin(context);
        self.is_awaited = next.is_pending();
        match &next {
            Poll::Ready(Some(Ok(bytes))) => self.seen = self.seen.saturating_add(bytes.len()),
            Poll::Ready(_) => self.body = None,
            Poll::Pending => {}
        }
        next
    }
}

/// The body to hand on, and what is left of it afterwards.
pub(super) fn lend(body: Body) -> (Body, Lent) {
    let rest = Arc::new(Mutex::new(Rest {
        body: Some(body.into_data_stream()),
        seen: 0,
        is_awaited: false,
    }));
    let lent = Lent(Arc::clone(&rest));
    let handed = stream::poll_fn(move |context| rest.lock().poll(context));
    (Body::from_stream(handed), lent)
}

impl Lent {
    /// Returns once the request is held up by its client: what answers it waits for more of the body.
    pub(super) async fn held_up(&self) {
        while !self.0.lock().is_awaited {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Reads what is left and throws it away, within bounds of bytes and time. A client that is still sending when its
    /// request is refused never sees the answer, over HTTP/2 and HTTP/1 alike.
    pub(super) async fn discard(self, most: usize) {
        let most = most.saturating_mul(DISCARDED_MULTIPLE);
        let rest = async {
            while self.0.lock().seen <= most {
                let next = future::poll_fn(|context| self.0.lock().poll(context)).await;
                if !matches!(next, Some(Ok(_))) {
                    break;
                }
            }
        };
        // What comes too slowly is the client's loss.
        let _ = tokio::time::timeout(DISCARDING, rest).await;
    }
}

fn paused(_: tokio::time::error::Elapsed) -> RequestError {
    let message = format!(
        "nothing more of the request body came for {} s",
        BODY_PAUSE.as_secs()
    );
    RequestError::new(ErrorKind::BadRequest, message)
}

/// Refuses a body that says it is something other than JSON. One that says nothing is tried.
pub(super) fn expect_json(headers: &HeaderMap) -> Result<(), RequestError> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let kind = value
        .to_str()
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    if kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json")) {
        return Ok(());
    }
    let message = "the body must be JSON; send the header Content-Type: application/json";
    Err(RequestError {
        param: Some("Content-Type".to_owned()),
        ..RequestError::new(ErrorKind::BadRequest, message)
    }
    .with_code("invalid_content_type"))
}
