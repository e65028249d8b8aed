//! What an instance lacks of a prompt that it is to compute for another site is fetched first, under the rules of a
//! request's own fetch: where that is cheaper, from the sites that the order allows, if this site's policies allow it too.

use super::taking::while_wanted;
use super::{current_provenance, index_of, own_index, subject_of};
use crate::bring::{Attempt, Bringing};
use crate::copy::Copying;
use crate::permission::Permission;
use crate::site::Site;
use portolan_base::{BlockHash, SiteName, TenantKey};
use portolan_decide::ask::Asker;
use portolan_policy::Purpose;
use portolan_ports::{Engine, FetchReport, KvOrder, OrderPurpose, PieceSink, Retention};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Fetches if it pays; says who was asked and what came of it. Stops when the receiver of the prefill is gone.
pub(super) async fn fetch_first(
    site: &Site,
    peer: &SiteName,
    engine: &Arc<dyn Engine>,
    (key, order): (TenantKey, &KvOrder),
    sink: &mut dyn PieceSink,
) -> Result<Vec<FetchReport>, String> {
    // What is fetched goes through the instance's cache.
    if order.fetch_from.is_empty() || order.retention == Retention::Drop {
        return Ok(Vec::new());
    }
    let parts = &site.parts;
    let view = parts.fleet.view();
    let Some(at) = own_index(site, &view, &order.instance) else {
        return Ok(Vec::new());
    };
    // What nobody waits for yet is the last to cross.
    let (asked, purpose) = match order.purpose {
        OrderPurpose::Prewarm => (Purpose::Prewarm, OrderPurpose::Replica),
        _ => (Purpose::Fetch, OrderPurpose::Fetch),
    };
    let policies = parts.desk.table().for_tenant(&order.tenant, order.draw);
    let labels = BTreeMap::new();
    let mut permission = Permission {
        fleet: &view,
        policies: &policies,
        subject: subject_of(site, order, asked)?,
        row: Vec::new(),
        origin: index_of(site, peer)?,
        asker: Asker::new(parts.clock.as_ref(), &labels, order.request.as_str()),
    };
    let about = Arc::new(current_provenance(site, engine.as_ref(), order));
    let order = KvOrder {
        purpose,
        ..order.clone()
    };
    let bringing = Bringing {
        copying: Copying {
            site,
            engine,
            key,
            about: &about,
            order: &order,
        },
        fleet: &view,
        at,
        holders: parts
            .fleet
            .held(&order.model, &BlockHash::chain(&key, &order.tokens)),
    };
    let allowed = |index| {
        view.site(index)
            .is_some_and(|site| order.fetch_from.contains(&site.name))
    };
    let fetching = bringing.only_from(allowed).bring(&mut permission);
    let attempts = while_wanted(fetching, sink).await?;
    Ok(attempts.iter().map(Attempt::report).collect())
}
