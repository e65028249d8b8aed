//! `/v1/portolan/store/snapshot`: copies the store while it is in use, for a backup. The operator's.

use super::auth;
use crate::error::{ErrorKind, RequestError};
use crate::site::Site;
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::Serialize;
use std::sync::Arc;

/// Where the copy lies, on the host's machine.
#[derive(Debug, Serialize)]
pub(super) struct SnapshotBody {
    folder: String,
}

pub(super) async fn snapshot(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
) -> Result<Json<SnapshotBody>, RequestError> {
    let actor = auth::operator(&site, &headers)?.actor();
    tracing::info!(%actor, "the store is copied for a backup");
    let copied =
        tokio::task::spawn_blocking(move || site.recovery.get().map(|recovery| (recovery.copy_store)()));
    let failed = |detail: String| {
        RequestError::new(ErrorKind::Internal, "the store could not be copied").with_detail(detail)
    };
    match copied.await.map_err(|error| failed(error.to_string()))? {
        Some(Ok(folder)) => Ok(Json(SnapshotBody {
            folder: folder.display().to_string(),
        })),
        Some(Err(detail)) => Err(failed(detail)),
        None => {
            let text = "this host's store cannot be copied";
            Err(RequestError::new(ErrorKind::NotFound, text).with_code("no_recovery"))
        }
    }
}
