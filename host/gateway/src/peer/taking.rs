//! What every way of taking a prefix from another site has in common.

use super::CANCEL_POLL;
use crate::site::Site;
use portolan_base::kv::KvManifest;
use portolan_ports::{Engine, KvOrder, PieceSink, Retention};

/// Refuses what may not stay here.
pub(super) fn may_stay(site: &Site, order: &KvOrder) -> Result<(), String> {
    match order.retention {
        Retention::Drop => Err(format!(
            "the residency answer does not let this data stay at {}",
            site.parts.name
        )),
        Retention::Keep => Ok(()),
    }
}

/// Says that all tokens of an order are held here, so that no piece follows.
pub(super) fn nothing_follows(engine: &dyn Engine, order: &KvOrder, sink: &mut dyn PieceSink) {
    let held = u32::try_from(order.tokens.len()).unwrap_or(u32::MAX);
    sink.manifest(KvManifest {
        layout: engine.describe().layout.as_ref().clone(),
        tokens: held,
        held,
    });
}

/// Waits for the work; stops it when whoever gave the order waits no longer.
pub(super) async fn while_wanted<T>(
    work: impl Future<Output = T>,
    sink: &mut dyn PieceSink,
) -> Result<T, String> {
    tokio::pin!(work);
    loop {
        match tokio::time::timeout(CANCEL_POLL, &mut work).await {
            Ok(done) => return Ok(done),
            Err(_) if sink.is_cancelled() => return Err("the order was cancelled".to_owned()),
            Err(_) => {}
        }
    }
}
