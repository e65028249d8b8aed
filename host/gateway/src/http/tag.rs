//! Gives every HTTP request an id, in the log and in the header of its response.

use super::body::{self, Lent};
use super::errors;
use crate::error::RequestError;
use crate::site::Site;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use portolan_base::RequestId;
use std::sync::Arc;
use std::time::Duration;

/// The response header that names the request.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-portolan-request-id");

/// How long answers that were cut have to say so.
const CUT_PAUSE: Duration = Duration::from_millis(100);

/// How long the rest of a request may take once the doors close: what was sent is across the widest ocean by then.
const ON_ITS_WAY: Duration = Duration::from_millis(200);

/// The id drawn for a request.
#[derive(Clone, Debug)]
pub(super) struct Tag(pub(super) RequestId);

/// Draws an id, hands it on, and sets it on the response unless the response names the client's own.
pub(super) async fn tag(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let id = RequestId::draw(site.parts.random.as_ref());
    let (mut parts, body) = request.into_parts();
    parts.extensions.insert(Tag(id.clone()));
    // Whoever asks first sends nothing before it is told to, or not to.
    let asks_first = parts.headers.contains_key(header::EXPECT);
    let (body, lent) = body::lend(body);
    let request = Request::from_parts(parts, body);
    let mut response = tokio::select! {
        biased;
        response = next.run(request) => response,
        () = past_waiting(&site) => RequestError::stopping().into_response(),
        () = half_sent(&site, &lent) => RequestError::half_sent().into_response(),
    };
    set(&mut response, &id);
    if response.status().is_client_error() && !asks_first {
        tokio::select! {
            () = lent.discard(site.parts.limits.body_bytes) => {}
            () = site.closing.cancelled() => {}
        }
    }
    if let Some(error) = response.extensions().get::<RequestError>() {
        let named = response
            .headers()
            .get(REQUEST_ID)
            .and_then(|value| value.to_str().ok());
        errors::log(named.unwrap_or_default(), error);
        site.metrics.refused(error.kind);
    }
    response
}

/// When whoever has no answer yet gets none: answers that were cut say so themselves, at once, and settle; what is left then
/// waits for a compiler, or the disk.
async fn past_waiting(site: &Site) {
    site.cut.cancelled().await;
    tokio::time::sleep(CUT_PAUSE).await;
}

/// When a host that stops waits no longer for the rest of a request.
async fn half_sent(site: &Site, body: &Lent) {
    site.closing.cancelled().await;
    tokio::time::sleep(ON_ITS_WAY).await;
    body.held_up().await;
}

/// Names the request on its response, once.
pub(super) fn set(response: &mut Response, id: &RequestId) {
    if let Ok(value) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().entry(REQUEST_ID).or_insert(value);
    }
}
