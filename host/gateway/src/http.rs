//! The HTTP doors of one site: the OpenAI-style inference API, the admin API, health and metrics.
//!
//! | path | for | file |
//! |---|---|---|
//! | `/v1/completions`, `/v1/chat/completions` | tenants | `inference.rs`, shapes in `wire.rs`, `whole.rs`, `sse.rs` |
//! | `/v1/models` | tenants | `models.rs` |
//! | `/v1/portolan/prewarm` | tenants | `prewarm.rs` |
//! | `/v1/portolan/requests` | a tenant sees its own, the operator all | `requests.rs`, one of them `inspect.rs` |
//! | `/v1/portolan/tenants/{tenant}/policies` | the tenant and the operator | `admin.rs`, `rollout.rs` |
//! | `/v1/portolan/proposals` | the operators | `proposals.rs` |
//! | `/v1/portolan/tenants/{tenant}/usage` | the tenant and the operator | `usage.rs` |
//! | `/v1/portolan/fleet`, `/v1/portolan/audit`, `/v1/portolan/kv/quarantine` | the operator | `inspect.rs` |
//! | `/v1/portolan/instances/{name}/drain`, `…/resume` | the operator | `instances.rs` |
//! | `/v1/portolan/site`, `…/drain`, `…/evacuate`, `…/return` | the operator | `service.rs` |
//! | `/v1/portolan/kv/stats`, `…/blocks`, `…/evict` | the operator | `kv.rs` |
//! | `/v1/portolan/kv/decisions` | a tenant sees its own policy's, the operator all | `decisions.rs` |
//! | `/v1/portolan/config`, `…/history`, `…/pending`, `…/sites`, `…/reload`, `…/rollback`, `…/approve`, `…/reject` | the operator | `config.rs` |
//! | `/v1/portolan/store/snapshot` | the operator | `recovery.rs` |
//! | `/v1/portolan/invalidate` | a tenant for its own KV, the operator for all | `invalidate.rs` |
//! | `/health`, `/metrics` | anyone who reaches the port | here |

mod admin;
mod auth;
mod body;
mod caller;
mod config;
mod decisions;
pub mod errors;
mod events;
mod hold;
mod inference;
mod inspect;
mod instances;
mod invalidate;
mod kv;
mod listen;
mod logprobs;
mod models;
mod passed;
mod policy_log;
mod prewarm;
mod proposals;
mod recovery;
mod requests;
mod rollout;
mod service;
mod sse;
mod tag;
mod usage;
mod whole;
mod wire;

pub use tag::REQUEST_ID;

pub(crate) use kv::{each_card, each_place, word as tier_word};

use crate::error::{ErrorKind, RequestError};
use crate::site::Site;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use portolan_decide::FleetView;
use portolan_ports::{Reading, Sample};
use std::future::Future;
use std::io;
use std::sync::Arc;
use tokio::net::TcpListener;

/// The content type of OpenMetrics text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All doors of `site`.
pub fn router(site: Arc<Site>) -> Router {
    let slot = put(admin::upload).get(admin::slot).delete(admin::unbind);
    Router::new()
        .route("/v1/completions", post(inference::completions))
        .route("/v1/chat/completions", post(inference::chat))
        .route("/v1/portolan/prewarm", post(prewarm::prewarm))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{id}", get(models::one))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/v1/portolan/requests", get(requests::list))
        .route("/v1/portolan/requests/{id}", get(inspect::request))
        .route("/v1/portolan/requests/{id}/residency", get(inspect::residency))
        .route("/v1/portolan/fleet", get(inspect::fleet))
        .route("/v1/portolan/audit", get(inspect::audit))
        .route("/v1/portolan/proposals", get(proposals::list))
        .route("/v1/portolan/proposals/{id}/{verdict}", post(proposals::decide))
        .route("/v1/portolan/tenants/{tenant}/usage", get(usage::usage))
        .route("/v1/portolan/usage", get(usage::all))
        .route("/v1/portolan/tenants/{tenant}/policy-log", get(policy_log::lines))
        .route("/v1/portolan/instances/{name}/drain", post(instances::drain))
        .route("/v1/portolan/instances/{name}/resume", post(instances::resume))
        .route("/v1/portolan/config", get(config::effective))
        .route("/v1/portolan/config/history", get(config::history))
        .route("/v1/portolan/config/pending", get(config::pending))
        .route("/v1/portolan/config/sites", get(config::sites))
        .route("/v1/portolan/config/{verb}", post(config::change))
        .route("/v1/portolan/store/snapshot", post(recovery::snapshot))
        .route("/v1/portolan/site", get(service::look))
        .route("/v1/portolan/site/drain", post(service::drain))
        .route("/v1/portolan/site/evacuate", post(service::evacuate))
        .route("/v1/portolan/site/return", post(service::reopen))
        .route("/v1/portolan/kv/stats", get(kv::stats))
        .route("/v1/portolan/kv/blocks", get(kv::blocks))
        .route("/v1/portolan/kv/blocks/{id}", get(kv::block))
        .route("/v1/portolan/kv/evict", post(kv::evict))
        .route("/v1/portolan/kv/decisions", get(decisions::list))
        .route("/v1/portolan/invalidate", post(invalidate::invalidate))
        .route("/v1/portolan/kv/quarantine", get(inspect::quarantine))
        .route("/v1/portolan/tenants/{tenant}/policies", get(admin::list))
        .route("/v1/portolan/tenants/{tenant}/policies/{question}", slot)
        .route(
            "/v1/portolan/tenants/{tenant}/policies/{question}/activate",
            post(admin::activate),
        )
        .route(
            "/v1/portolan/tenants/{tenant}/policies/{question}/versions/{version}",
            delete(usage::remove),
        )
        .route(
            "/v1/portolan/tenants/{tenant}/policies/{question}/{change}",
            post(rollout::change),
        )
        .fallback(errors::no_such_path)
        .method_not_allowed_fallback(errors::wrong_method)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&site), tag::tag))
        .with_state(site)
}

/// Serves the doors until `shutdown` is ready and the requests then in flight are done. Those that have not come in full are
/// refused.
pub async fn serve(
    site: Arc<Site>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let closing = site.closing.clone();
    let shutdown = async move {
        shutdown.await;
        closing.cancel();
    };
    listen::run(listener, router(site), shutdown).await;
    Ok(())
}

/// 503 while the site is being taken out of service: whoever balances load goes elsewhere.
async fn health(State(site): State<Arc<Site>>) -> Response {
    let (status, said) = match site.is_draining() {
        true => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        false => (StatusCode::OK, "ok"),
    };
    (status, axum::Json(serde_json::json!({ "status": said }))).into_response()
}

async fn metrics(State(site): State<Arc<Site>>) -> Response {
    if !site.live().metrics.is_on() {
        let text = "metrics are switched off: observability.metrics_enabled";
        return RequestError::new(ErrorKind::NotFound, text).into_response();
    }
    let in_flight = site.in_flight();
    let mut samples = site.parts.desk.samples();
    samples.extend(kv::samples(&site));
    let view = site.parts.fleet.view();
    samples.extend(landed(&site, &view));
    samples.extend(site.parts.fleet.samples());
    samples.extend(crate::replicate::samples(&site));
    samples.extend(crate::ahead::samples(&site));
    samples.extend(site.recovery_samples());
    samples.extend(site.parts.engines.values().flat_map(|engine| engine.samples()));
    samples.extend(site.parts.validity.samples());
    samples.extend(site.decisions.samples());
    (
        [(header::CONTENT_TYPE, OPEN_METRICS)],
        site.metrics.render(in_flight, &view, samples),
    )
        .into_response()
}

/// What did not cross again, for each link to this site.
fn landed<'s>(site: &'s Site, view: &'s FleetView) -> impl Iterator<Item = Sample> + 's {
    let to_here = view.links.keys().filter(|(_, to)| *to == site.parts.index);
    to_here.filter_map(|(from, _)| {
        let from = &view.site(*from)?.name;
        let labels = vec![("from", from.to_string()), ("to", site.parts.name.to_string())];
        Some(Sample {
            name: "link_landed_bytes",
            help: "KV that did not cross again since it lay on the receiver's disk, in bytes",
            labels,
            value: Reading::Counter(site.parts.transport.link(from)?.landed.0),
        })
    })
}

#[cfg(test)]
mod tests;
