//! `/v1/portolan/requests`: the path records that a key may see, newest first, page by page.

use super::{auth, errors, inspect};
use crate::error::{ErrorKind, RequestError};
use crate::records::{RecordFilter, STATUSES};
use crate::site::Site;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use portolan_base::TenantName;
use portolan_decide::PathRecord;
use portolan_ports::Principal;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Which records are wanted.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestsQuery {
    limit: Option<usize>,
    /// The `next` of the page before.
    before: Option<u64>,
    tenant: Option<String>,
    status: Option<String>,
    site: Option<String>,
}

/// A page of records.
#[derive(Debug, Serialize)]
struct RequestsBody {
    object: &'static str,
    data: Vec<Arc<PathRecord>>,
    /// What to give as `before` for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
}

impl RequestsQuery {
    fn filter(self, caller: Principal) -> Result<RecordFilter, RequestError> {
        if let Some(status) = self.status.as_ref().filter(|s| !STATUSES.contains(&s.as_str())) {
            let message = format!("status {status:?} is none of {}", STATUSES.join(", "));
            return Err(RequestError::bad_field("status", message));
        }
        let named = self.tenant.as_deref().map(TenantName::new).transpose();
        let named = named.map_err(|error| RequestError::bad_field("tenant", error.to_string()))?;
        let tenant = match caller {
            Principal::Operator => named,
            Principal::Tenant(own) if named.as_ref().is_none_or(|named| *named == own) => Some(own),
            // Whether another tenant exists is none of the caller's business.
            Principal::Tenant(_) => {
                let message = "this key opens its own tenant's requests only";
                return Err(RequestError::new(ErrorKind::Forbidden, message));
            }
        };
        Ok(RecordFilter {
            tenant,
            status: self.status,
            site: self.site,
        })
    }
}

pub(super) async fn list(
    State(site): State<Arc<Site>>,
    query: Result<Query<RequestsQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, RequestError> {
    let caller = auth::principal(&site, &headers)?;
    let query = errors::query(query)?;
    let (before, limit) = (query.before, inspect::list_length(query.limit));
    let filter = query.filter(caller)?;
    // A record with all its candidates takes some tens of kilobytes: written off the serving threads.
    let written = move || {
        let page = site.records.page(&filter, before, limit);
        let body = RequestsBody {
            object: "list",
            data: page.records,
            next: page.next,
        };
        Json(body).into_response()
    };
    tokio::task::spawn_blocking(written).await.map_err(|error| {
        RequestError::new(ErrorKind::Internal, "the records could not be written").with_detail(error)
    })
}
