//! An answer of an engine's own, byte for byte.

use super::errors::ErrorBody;
use super::events::Events;
use crate::answer::AnswerEvent;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use portolan_ports::AnswerHead;
use std::io;

/// The response whose head came and whose body `events` bring.
pub(super) fn response(head: &AnswerHead, events: Events) -> Response {
    let streamed = head.is_stream();
    // With whether the engine is in the middle of a line.
    let body = stream::unfold(Some((events, false)), move |state| async move {
        let (mut events, within) = state?;
        loop {
            let (piece, more) = match events.next().await {
                Some((_, AnswerEvent::Bytes(bytes))) => {
                    let within = bytes.last().map_or(within, |last| *last != b'\n');
                    (Ok(bytes), Some((events, within)))
                }
                Some((_, AnswerEvent::Failed(error))) if streamed => {
                    // The status is long sent: the stream says that it broke, and does not end as a whole one would.
                    let text = serde_json::to_string(&ErrorBody::from(&error)).unwrap_or_default();
                    let apart = if within { "\n\n" } else { "" };
                    (Ok(Bytes::from(format!("{apart}data: {text}\n\n"))), None)
                }
                // A body of one piece that is not whole ends as a connection that broke.
                Some((_, AnswerEvent::Failed(error))) => (Err(io::Error::other(error.message)), None),
                Some((_, AnswerEvent::Ended)) | None => return None,
                Some(_) => continue,
            };
            return Some((piece, more));
        }
    });
    let mut response = Response::new(Body::from_stream(body));
    *response.status_mut() = StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let headers = response.headers_mut();
    for (name, value) in &head.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    if streamed {
        // A length would be that of a whole stream, which may end with an error.
        headers.remove(header::CONTENT_LENGTH);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(
            HeaderName::from_static("x-accel-buffering"),
            HeaderValue::from_static("no"),
        );
    }
    response
}
