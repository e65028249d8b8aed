//! `/v1/portolan/invalidate`: cached KV is used no more, at any site. A tenant may order it for its own; a model's version
//! is the operator's.

use super::kv::{block_id, scope_named};
use super::{auth, body, instances};
use crate::error::{ErrorKind, RequestError};
use crate::site::Site;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use portolan_base::{Bytes, Dependency, ModelName, Scope};
use portolan_ports::{
    ControlError, Given, Invalidated, OperationKind, Order, Patience, Principal, Running, SiteEffect,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Exactly one of the first four, and how.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct InvalidateBody {
    model: Option<String>,
    dependency: Option<Dependency>,
    prefix: Option<String>,
    tenant: Option<String>,
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    wait: bool,
    #[serde(default)]
    abort_running: bool,
    #[serde(default)]
    reason: String,
}

/// What was done, or what would be.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum InvalidatedBody {
    Given(Given),
    WouldBe(WouldBe),
}

#[derive(Debug, Serialize)]
pub(super) struct WouldBe {
    blocks: u64,
    bytes: Bytes,
    sites: Vec<SiteEffect>,
}

pub(super) async fn invalidate(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
    order: Body,
) -> Result<Json<InvalidatedBody>, RequestError> {
    let key = auth::key(&site, &headers)?;
    let order = body::read(order, body::ORDER_MAX_BYTES).await?;
    let body: InvalidateBody = serde_json::from_slice(&order)
        .map_err(|error| RequestError::bad_field("body", format!("the order cannot be read: {error}")))?;
    if body.reason.len() > instances::REASON_BYTES {
        let text = format!("a reason has at most {} bytes", instances::REASON_BYTES);
        return Err(RequestError::bad_field("reason", text));
    }
    let what = what(&body, &key.principal, &site)?;
    if let Principal::Tenant(tenant) = &key.principal
        && !site.may_order(tenant)
    {
        let text = "a tenant may give 50 invalidations at once and ten a second; give this one again";
        return Err(RequestError {
            retry_after: Some(Duration::from_secs(1)),
            ..RequestError::new(ErrorKind::RateLimited, text).with_code("tenant_limit")
        });
    }
    if body.dry_run {
        let sites = site.parts.validity.rehearse(&what).await;
        return Ok(Json(InvalidatedBody::WouldBe(WouldBe {
            blocks: sites.iter().map(|site| site.blocks).sum(),
            bytes: sites.iter().map(|site| site.bytes).sum(),
            sites,
        })));
    }
    let (actor, reason) = (key.actor(), body.reason);
    let subject = subject(&what);
    instances::note(
        &site,
        actor.clone(),
        OperationKind::Invalidate,
        subject,
        reason.clone(),
    )
    .await?;
    let order = Order {
        what,
        actor,
        reason,
        running: match body.abort_running {
            true => Running::Abort,
            false => Running::Finish,
        },
    };
    let patience = match body.wait {
        true => Patience::Everywhere,
        false => Patience::Acknowledged,
    };
    let given = site.parts.validity.invalidate(order, patience).await;
    let given = given.map_err(|error| not_given(&error, &key.principal))?;
    Ok(Json(InvalidatedBody::Given(given)))
}

/// Why is the operator's to know.
fn not_given(error: &ControlError, who: &Principal) -> RequestError {
    let text = match who {
        Principal::Operator => error.to_string(),
        Principal::Tenant(_) => {
            "the invalidation was not acknowledged: it may have no effect; give it again".to_owned()
        }
    };
    RequestError::unavailable(text, Duration::from_secs(1))
        .with_code("not_acknowledged")
        .with_detail(error.to_string())
}

/// What the order is about. A tenant's is about its own KV only.
fn what(body: &InvalidateBody, who: &Principal, site: &Site) -> Result<Invalidated, RequestError> {
    let of = match who {
        Principal::Operator => None,
        Principal::Tenant(tenant) => Some(Scope::Tenant(tenant.clone())),
    };
    match (&body.model, &body.dependency, &body.prefix, &body.tenant) {
        (Some(model), None, None, None) => {
            if of.is_some() {
                return Err(auth::operator_only());
            }
            let name = ModelName::new(model)
                .ok()
                .filter(|name| site.parts.models.contains_key(name));
            let unknown = || {
                let text = format!("the model {model:?} is not served here");
                RequestError::new(ErrorKind::NotFound, text).with_code("model_not_found")
            };
            Ok(Invalidated::Model {
                model: name.ok_or_else(unknown)?,
            })
        }
        (None, Some(by), None, None) => {
            if !by.is_well_formed() {
                let text = format!(
                    "kind, name and version have between 1 and {} bytes each, without control characters",
                    Dependency::TEXT_MAX_BYTES
                );
                return Err(RequestError::bad_field("dependency", text));
            }
            Ok(Invalidated::Dependency { by: by.clone(), of })
        }
        (None, None, Some(block), None) => Ok(Invalidated::Prefix {
            block: block_id("prefix", block)?,
            of,
        }),
        (None, None, None, Some(tenant)) => {
            // Whether there is such another tenant is not a tenant's to know.
            if of.is_some_and(|own| own.to_string() != *tenant) {
                let text = "a tenant may invalidate its own KV only";
                return Err(RequestError::new(ErrorKind::Forbidden, text));
            }
            let scope = scope_named(tenant, site)?;
            Ok(Invalidated::Tenant { scope })
        }
        _ => Err(RequestError::bad_field(
            "body",
            "give exactly one of model, dependency, prefix and tenant",
        )),
    }
}

/// What is invalidated, for the audit log.
fn subject(what: &Invalidated) -> String {
    let of = |of: &Option<Scope>| of.as_ref().map_or_else(String::new, |of| format!(" of {of}"));
    match what {
        Invalidated::Model { model } => format!("all KV of model {model}"),
        Invalidated::Dependency { by, of: whose } => format!(
            "KV{} that depends on {} {} at another version than {}",
            of(whose),
            by.kind,
            by.name,
            by.version
        ),
        Invalidated::Prefix { block, of: whose } => format!("block {}{}", hex::encode(block.0), of(whose)),
        Invalidated::Tenant { scope } => format!("the KV of {scope}"),
    }
}
