//! Takes a prefix from a site that is being emptied: what the instance here lacks of it is ordered from there as a copy, and
//! kept. Nothing is computed, and nothing goes back but the report.

use super::taking::{may_stay, nothing_follows, while_wanted};
use crate::bring::short;
use crate::copy::{Copied, Copying, Holder, Uncopied};
use crate::lookup;
use crate::site::Site;
use portolan_base::{BlockHash, Provenance, SiteName, TenantKey, Tokens};
use portolan_ports::{Engine, FetchReport, HeldPrefix, KvOrder, OrderPurpose, PieceSink, PrefillReport};
use std::sync::Arc;
use std::time::Duration;

/// The longest that one prefix may take. Whoever hands over gives up before.
const DEADLINE: Duration = Duration::from_secs(600);

/// Takes it; says how much of it is here then, and what crossed.
pub(super) async fn take(
    site: &Site,
    peer: &SiteName,
    engine: &Arc<dyn Engine>,
    (key, order): (TenantKey, KvOrder),
    mut sink: Box<dyn PieceSink>,
) -> Result<PrefillReport, String> {
    let name = &site.parts.name;
    if site.is_draining() {
        return Err(format!("{name} is taken out of service itself"));
    }
    may_stay(site, &order)?;
    let _turn = site
        .evacuation
        .turn()
        .ok_or_else(|| format!("{name} is taking over as many prefixes as it may"))?;
    let wanted = Tokens(u32::try_from(order.tokens.len()).unwrap_or(u32::MAX));
    let has = lookup::kept(engine.as_ref(), &key, &order.tokens, &order.dependencies);
    let mut report = PrefillReport {
        cached: has.tokens,
        ..PrefillReport::default()
    };
    if has.tokens < wanted.0 {
        let begun = site.parts.clock.now();
        let holder = holder(site, peer, (&key, &order))?;
        let outcome = copy(site, engine, (key, &order), (&holder, &has), sink.as_mut()).await?;
        let (tokens, bytes, failed) = match &outcome {
            Ok(copied) => (
                copied.tokens,
                copied.bytes,
                copied.cut_short.as_ref().map(ToString::to_string),
            ),
            Err(uncopied) => (Tokens(0), uncopied.bytes(), Some(uncopied.to_string())),
        };
        report.cached += tokens.0;
        report.fetches = vec![FetchReport {
            site: peer.to_string(),
            instance: holder.instance.to_string(),
            wanted: (wanted - Tokens(has.tokens)).0,
            tokens: tokens.0,
            bytes: bytes.0,
            took_us: u64::try_from(site.parts.clock.now().since(begun).as_micros()).unwrap_or(u64::MAX),
            estimated_us: 0,
            computing_us: 0,
            failed: failed.map(short),
        }];
        tracing::info!(
            site = %name, from = %peer, tenant = %order.tenant, instance = %order.instance, tokens = tokens.0,
            bytes = bytes.0, failed = report.fetches[0].failed, "a prefix was taken over"
        );
    }
    nothing_follows(engine.as_ref(), &order, sink.as_mut());
    Ok(report)
}

/// The instance at the other site that is thought to hold most of it.
fn holder(site: &Site, peer: &SiteName, (key, order): (&TenantKey, &KvOrder)) -> Result<Holder, String> {
    let parts = &site.parts;
    let view = parts.fleet.view();
    let held = parts
        .fleet
        .held(&order.model, &BlockHash::chain(key, &order.tokens));
    let at = super::index_of(site, peer)?;
    let model = parts
        .fleet
        .names()
        .models
        .iter()
        .position(|name| *name == order.model.as_str());
    let most = view
        .indexed()
        .filter(|(_, instance)| instance.site == at && instance.serving.is_pieces())
        .filter(|(_, instance)| Some(instance.model as usize) == model)
        .max_by_key(|(index, _)| {
            (
                held.get(index.0 as usize).copied().unwrap_or(0),
                std::cmp::Reverse(*index),
            )
        });
    let (_, instance) =
        most.ok_or_else(|| format!("no instance of {peer} is known to serve {}", order.model))?;
    Ok(Holder {
        site: peer.clone(),
        instance: instance.name.clone(),
    })
}

/// Orders it as a copy; stops when whoever hands over has given up.
async fn copy(
    site: &Site,
    engine: &Arc<dyn Engine>,
    (key, order): (TenantKey, &KvOrder),
    (holder, has): (&Holder, &HeldPrefix),
    sink: &mut dyn PieceSink,
) -> Result<Result<Copied, Uncopied>, String> {
    let about = Arc::new(Provenance {
        model_version: site.model_version(&engine.describe().layout),
        ..order.provenance()
    });
    let order = KvOrder {
        purpose: OrderPurpose::Replica,
        ..order.clone()
    };
    let copying = Copying {
        site,
        engine,
        key,
        about: &about,
        order: &order,
    };
    let wanted = Tokens(u32::try_from(order.tokens.len()).unwrap_or(u32::MAX));
    while_wanted(copying.copy(holder, wanted, has, DEADLINE), sink).await
}
