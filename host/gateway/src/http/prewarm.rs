//! `/v1/portolan/prewarm`: computes a prompt ahead of its request. A tenant's.

use super::inference::{ReadCall, off_the_serving_threads, read_call};
use super::tag::{self, Tag};
use crate::error::RequestError;
use crate::prewarmed::{LONGEST_LIFE, Prewarmed, USUAL_LIFE};
use crate::site::Site;
use crate::stage::accept::{Endpoint, WarmOrder, accept_prewarm};
use crate::stage::prewarm::prewarm as compute;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Which of the two kinds of prompt a body holds.
#[derive(Deserialize)]
struct Kind {
    messages: Option<IgnoredAny>,
}

/// A prompt that is warm.
#[derive(Debug, Serialize)]
struct WarmBody {
    /// What a later request names in `portolan.cache_id`.
    id: String,
    object: &'static str,
    model: String,
    prompt_tokens: u32,
    cached_tokens: u32,
    computed_tokens: u32,
    site: String,
    instance: String,
    /// Unix time in seconds; until then the id is known. The KV may leave earlier, when its room is needed.
    expires_at: u64,
}

pub(super) async fn prewarm(
    State(site): State<Arc<Site>>,
    Extension(tag): Extension<Tag>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, RequestError> {
    let mut read = read_call(Endpoint::Completion, &site, tag, (headers, body)).await?;
    // What is no JSON is told by accept, in its words.
    if let Ok(Kind { messages: Some(_) }) = serde_json::from_slice(&read.call.body) {
        read.call.endpoint = Endpoint::Chat;
    }
    let order = accept(&site, read).await?;
    let id = order.request.id.clone();
    let mut response = match warm(&site, order).await {
        Ok(body) => Json(body).into_response(),
        Err(error) => error.into_response(),
    };
    tag::set(&mut response, &id);
    Ok(response)
}

async fn accept(site: &Arc<Site>, read: ReadCall) -> Result<WarmOrder, RequestError> {
    off_the_serving_threads(site, read, accept_prewarm).await
}

async fn warm(site: &Arc<Site>, order: WarmOrder) -> Result<WarmBody, RequestError> {
    let WarmOrder {
        request,
        content,
        life,
    } = order;
    let life = life.unwrap_or(USUAL_LIFE).min(LONGEST_LIFE);
    let (tenant, model) = (request.tenant.name.clone(), request.model.clone());
    let prompt_tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
    let done = compute(Arc::clone(site), request).await?;
    let now = site.parts.clock.now();
    let until = now + life;
    let random = &site.parts.random;
    let id = format!("cache-{:016x}{:016x}", random.next_u64(), random.next_u64());
    let kept = Prewarmed {
        tenant,
        model: model.clone(),
        bytes: content.bytes(),
        content,
        until,
    };
    site.prewarmed.keep(id.clone(), kept, now)?;
    Ok(WarmBody {
        id,
        object: "prewarm",
        model: model.as_str().to_owned(),
        prompt_tokens,
        cached_tokens: done.cached_tokens,
        computed_tokens: done.computed_tokens,
        site: done.route.prefill_site,
        instance: done.route.prefill_instance,
        expires_at: Duration::from_millis(until.millis()).as_secs(),
    })
}
