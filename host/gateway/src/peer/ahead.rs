//! Takes a prefix that another site thinks will be asked for here: what is cheaper to fetch is fetched, and the rest is
//! computed if nobody waits for the instance. Nothing goes back but the report.

use super::taking::{may_stay, nothing_follows};
use super::{current_provenance, fetch, own_index, stream_prefill_of};
use crate::ahead::pool_blocks;
use crate::lookup;
use crate::site::Site;
use portolan_base::kv::KvManifest;
use portolan_base::{BlockHash, SiteName, TenantKey};
use portolan_ports::{Engine, InstanceOutcome, KvOrder, KvPiece, PieceSink, PrefillReport};
use std::sync::Arc;

/// An instance that spends more of its time than this on prompts does not compute one ahead, in thousandths.
const IDLE: u32 = 500;

/// Takes it, or says why not.
pub(super) async fn take(
    site: &Arc<Site>,
    peer: &SiteName,
    engine: &Arc<dyn Engine>,
    (key, order): (TenantKey, KvOrder),
    mut sink: Box<dyn PieceSink>,
) -> Result<PrefillReport, String> {
    let name = &site.parts.name;
    let refused = || format!("{name} takes no prefixes ahead of their requests");
    let ahead = site.ahead.as_ref().ok_or_else(refused)?;
    let _turn = ahead
        .turn()
        .ok_or_else(|| format!("{name} is taking as many prefixes ahead as it may"))?;
    may_stay(site, &order)?;
    let fetches = fetch::fetch_first(site, peer, engine, (key, &order), sink.as_mut()).await?;
    let kept = lookup::kept(engine.as_ref(), &key, &order.tokens, &order.dependencies);
    let lacking = order.tokens.len() as u32 - kept.tokens;
    if lacking > 0 && !is_idle(engine.as_ref()) {
        return Err(format!(
            "instance {} lacks {lacking} tokens of it and computes what someone waits for",
            order.instance
        ));
    }
    let (tokens, held) = (Arc::clone(&order.tokens), order.tokens.len() as u32);
    let report = if lacking > 0 {
        let order = KvOrder { held, ..order };
        let instance = own_index(site, &site.parts.fleet.view(), &order.instance);
        let about = current_provenance(site, engine.as_ref(), &order);
        let of = (key, Arc::new(about));
        let computed = stream_prefill_of(engine.as_ref(), of, order, Box::new(StaysHere(sink))).await;
        if let (Some(instance), Ok(_)) = (instance, &computed) {
            site.parts.fleet.outcome(instance, InstanceOutcome::Served);
        }
        computed.map_err(|error| error.to_string())?
    } else {
        nothing_follows(engine.as_ref(), &order, sink.as_mut());
        PrefillReport {
            cached: held,
            ..PrefillReport::default()
        }
    };
    let blocks = pool_blocks(&BlockHash::chain(&key, &tokens), &engine.describe().layout);
    ahead.arrived(site.parts.clock.now(), &blocks);
    Ok(PrefillReport { fetches, ..report })
}

fn is_idle(engine: &dyn Engine) -> bool {
    let load = engine.load();
    load.prefill_queued_requests == 0 && load.prefill_busy.0 <= IDLE
}

/// Lets nothing but the manifest through: the KV stays where it is computed.
struct StaysHere(Box<dyn PieceSink>);

impl PieceSink for StaysHere {
    fn manifest(&mut self, manifest: KvManifest) {
        self.0.manifest(manifest);
    }

    fn piece(&mut self, _: KvPiece) {}

    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}
