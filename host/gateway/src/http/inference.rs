//! The two inference doors.

use super::events::Begun;
use super::tag::{self, Tag};
use super::wire::Head;
use super::{auth, body, events, passed, sse, whole};
use crate::error::{ErrorKind, RequestError};
use crate::in_flight::TenantPass;
use crate::site::Site;
use crate::stage::accept::{Call, Delivery, Endpoint, LONG_BODY_BYTES, Order, accept};
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use portolan_ports::Principal;
use std::sync::Arc;

pub(super) async fn completions(
    State(site): State<Arc<Site>>,
    Extension(tag): Extension<Tag>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, RequestError> {
    infer(Endpoint::Completion, site, tag, (headers, body)).await
}

pub(super) async fn chat(
    State(site): State<Arc<Site>>,
    Extension(tag): Extension<Tag>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, RequestError> {
    infer(Endpoint::Chat, site, tag, (headers, body)).await
}

async fn infer(
    endpoint: Endpoint,
    site: Arc<Site>,
    tag: Tag,
    (headers, body): (HeaderMap, Body),
) -> Result<Response, RequestError> {
    let call = read_call(endpoint, &site, tag, (headers, body)).await?;
    let order = off_the_serving_threads(&site, call, accept).await?;
    let id = order.id.clone();
    // The client's own id goes onto failures too, so it is set here and not where the id is drawn.
    let mut response = match answer(&site, order).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    };
    tag::set(&mut response, &id);
    Ok(response)
}

/// A call that was read, and the tenant's leave to have one more of them here until it is understood.
pub(super) struct ReadCall {
    pub(super) call: Call,
    pass: Option<TenantPass>,
}

/// Reads a request with a prompt of whoever has a key. A tenant that has too many of them here is told so before more is
/// read.
pub(super) async fn read_call(
    endpoint: Endpoint,
    site: &Site,
    tag: Tag,
    (headers, body): (HeaderMap, Body),
) -> Result<ReadCall, RequestError> {
    let at = site.parts.clock.now();
    let principal = auth::principal(site, &headers)?;
    body::expect_json(&headers)?;
    let pass = match &principal {
        Principal::Tenant(tenant) => Some(
            site.reading
                .enter(tenant)
                .ok_or_else(RequestError::tenant_limit)?,
        ),
        Principal::Operator => None,
    };
    let body = body::read(body, site.parts.limits.body_bytes).await?;
    let call = Call {
        endpoint,
        principal,
        headers,
        body,
        id: tag.0,
        at,
    };
    Ok(ReadCall { call, pass })
}

/// Accepts a call, a long one where it holds up nobody's stream.
pub(super) async fn off_the_serving_threads<T: Send + 'static>(
    site: &Arc<Site>,
    ReadCall { call, pass }: ReadCall,
    accept: fn(&Site, &Call) -> Result<T, RequestError>,
) -> Result<T, RequestError> {
    if call.body.len() <= LONG_BODY_BYTES {
        return accept(site, &call);
    }
    let whose = match &call.principal {
        Principal::Tenant(tenant) => Some(tenant.clone()),
        Principal::Operator => None,
    };
    // A client that leaves while it waits here costs nothing more.
    let turn = site.tokenising.take(whose).await;
    let site = Arc::clone(site);
    let work = move || {
        let _held = (turn, pass);
        accept(&site, &call)
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        RequestError::new(ErrorKind::Internal, "the request could not be read").with_detail(error)
    })?
}

async fn answer(site: &Arc<Site>, order: Order) -> Result<Response, RequestError> {
    let head = Head::of(&order);
    let options = order.options;
    let prompts = order
        .requests
        .iter()
        .map(|request| Arc::clone(&request.prompt))
        .collect::<Vec<_>>();
    let events = match events::begin(site, order.requests).await? {
        Begun::Written(events) => events,
        Begun::Passed(head, events) => return Ok(passed::response(&head, events)),
    };
    match options.delivery {
        Delivery::Whole => whole::collect(events, &head, options, &prompts).await,
        Delivery::Stream | Delivery::StreamWithUsage => Ok(sse::response(events, head, options, prompts)),
    }
}
