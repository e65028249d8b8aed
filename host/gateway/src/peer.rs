//! Serves the orders of other sites: prefill here, or what is held here; KV streams there.

mod ahead;
mod fetch;
mod hand_over;
mod taking;

use crate::site::Site;
use crate::stage::{ask_policies, jurisdiction, without_holding_up_others};
use async_trait::async_trait;
use portolan_base::kv::KvManifest;
use portolan_base::{InstanceName, Provenance, SiteName, TenantKey};
use portolan_decide::ask::Asker;
use portolan_decide::{FleetView, InstanceIndex, Placements, SiteIndex};
use portolan_policy::{Placement, Purpose, Subject};
use portolan_ports::{
    Cancel, Engine, EngineError, InstanceOutcome, KvOrder, KvPiece, KvSource, OrderPurpose, PieceSink,
    PrefillJob, PrefillReport, Retention,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::mpsc;

/// How often a job looks whether its receiver still waits, when no piece comes. Well under the 100 ms in which a
/// cancellation has to reach the engine.
const CANCEL_POLL: Duration = Duration::from_millis(20);

/// The side of a site that other sites reach.
pub struct PeerService {
    // The site owns the transport, which owns this: a strong reference would keep all three alive for ever.
    site: Weak<Site>,
}

impl PeerService {
    /// Serves orders with the engines of `site`.
    pub fn new(site: &Arc<Site>) -> Self {
        Self {
            site: Arc::downgrade(site),
        }
    }
}

#[async_trait]
impl KvSource for PeerService {
    async fn serve(
        &self,
        peer: SiteName,
        order: KvOrder,
        mut sink: Box<dyn PieceSink>,
    ) -> Result<PrefillReport, String> {
        let site = self.site.upgrade().ok_or("the site is shutting down")?;
        let engine = engine_for(&site, &order)?;
        let mine = check_residency(&site, &peer, &order)?;
        let retention = if mine == Retention::Drop {
            mine
        } else {
            order.retention
        };
        let order = KvOrder { retention, ..order };
        let layout = &engine.describe().layout;
        let (key, order) = match may_reuse(&site, &order) {
            true => {
                let version = site.model_version(layout);
                let key = site.cache_key(&order.tenant, (layout, version), &order.tokens);
                let key = match engine.whole() {
                    Some(_) => site.salted_key(key, &order.provenance()),
                    None => key,
                };
                (key, order)
            }
            false if order.purpose.computes() => (site.key_of_nothing(layout), afresh(order)),
            false => {
                return Err(format!(
                    "site {} has not caught up with the control stream; what it holds is not used until it has",
                    site.parts.name
                ));
            }
        };
        if order.purpose == OrderPurpose::HandOver {
            return hand_over::take(&site, &peer, &engine, (key, order), sink).await;
        }
        if !order.purpose.computes() {
            // Every byte may be looked at before it is sent.
            return without_holding_up_others(|| stream_kept(engine.as_ref(), &key, &order, sink));
        }
        if order.purpose == OrderPurpose::Prewarm {
            return ahead::take(&site, &peer, &engine, (key, order), sink).await;
        }
        let fetches = fetch::fetch_first(&site, &peer, &engine, (key, &order), sink.as_mut()).await?;
        let instance = own_index(&site, &site.parts.fleet.view(), &order.instance);
        let about = current_provenance(&site, engine.as_ref(), &order);
        let outcome = stream_prefill_of(engine.as_ref(), (key, Arc::new(about)), order, sink).await;
        // The other site hears of this instance's state from its load reports: it cannot tell a broken engine from a
        // refusal.
        let counted = match &outcome {
            Ok(_) => Some(InstanceOutcome::Served),
            Err(EngineError::Broken(_) | EngineError::Unreachable(_)) => Some(InstanceOutcome::Failed),
            Err(_) => None,
        };
        if let Some((instance, counted)) = instance.zip(counted) {
            site.parts.fleet.outcome(instance, counted);
        }
        let report = outcome.map_err(|error| error.to_string())?;
        Ok(PrefillReport { fetches, ..report })
    }
}

/// Whose KV an order asks for and what it hangs on, as this site computes it: at the version that its model has since the
/// latest order about it. What is computed at an older one is not kept.
fn current_provenance(site: &Site, engine: &dyn Engine, order: &KvOrder) -> Provenance {
    Provenance {
        model_version: site.model_version(&engine.describe().layout),
        ..order.provenance()
    }
}

/// Streams what the engine holds of the order's tokens into `sink`, as far as the receiver lacks it. Blocks are found
/// by their tenant-keyed ids; nothing is computed.
fn stream_kept(
    engine: &dyn Engine,
    key: &TenantKey,
    order: &KvOrder,
    mut sink: Box<dyn PieceSink>,
) -> Result<PrefillReport, String> {
    let kept = engine.kept(key, &order.tokens, &order.dependencies);
    if kept.tokens <= order.held {
        return Err(format!(
            "instance {} holds {} tokens of this prompt; beyond {} were ordered",
            order.instance, kept.tokens, order.held
        ));
    }
    sink.manifest(KvManifest {
        layout: engine.describe().layout.as_ref().clone(),
        tokens: kept.tokens,
        held: order.held,
    });
    let lacking = |piece: &KvPiece| piece.id.is_empty() || piece.id.tokens.end > order.held;
    kept.pieces
        .into_iter()
        .filter(lacking)
        .for_each(|piece| sink.piece(piece));
    Ok(PrefillReport {
        cached: kept.tokens,
        ..PrefillReport::default()
    })
}

/// Whether what is cached here may be used for an order: this site has a lease, and has heard of all that the receiver
/// had heard of.
fn may_reuse(site: &Site, order: &KvOrder) -> bool {
    let parts = &site.parts;
    parts.validity.check(parts.clock.now()).is_ok() && parts.validity.place().has_reached(&order.as_of)
}

/// The same order, of which all is computed and nothing kept.
fn afresh(order: KvOrder) -> KvOrder {
    KvOrder {
        retention: Retention::Drop,
        fetch_from: Arc::default(),
        ..order
    }
}

/// Prefills what `order` asks for and streams the KV into `sink` while it is computed.
pub async fn stream_prefill(
    engine: &dyn Engine,
    key: TenantKey,
    order: KvOrder,
    sink: Box<dyn PieceSink>,
) -> Result<PrefillReport, EngineError> {
    let about = Arc::new(order.provenance());
    stream_prefill_of(engine, (key, about), order, sink).await
}

/// The same, of KV of which is known whose it is and what it hangs on.
async fn stream_prefill_of(
    engine: &dyn Engine,
    (key, about): (TenantKey, Arc<Provenance>),
    order: KvOrder,
    mut sink: Box<dyn PieceSink>,
) -> Result<PrefillReport, EngineError> {
    let too_long = |_| EngineError::BadJob("the prompt is too long".to_owned());
    let tokens = u32::try_from(order.tokens.len()).map_err(too_long)?;
    let layout = engine.describe().layout.as_ref().clone();
    sink.manifest(KvManifest {
        layout,
        tokens,
        held: order.held,
    });
    let cancel = Cancel::new();
    let _stop = cancel.on_drop();
    let (request, tokens, held) = (order.request, order.tokens, order.held);
    let job = PrefillJob {
        request,
        key,
        about,
        tokens,
        held,
        retention: order.retention,
        cancel: cancel.clone(),
    };
    let (pieces_in, pieces_out) = mpsc::unbounded_channel();
    let (report, ()) = tokio::join!(engine.prefill(job, pieces_in), forward(pieces_out, sink, cancel));
    report
}

/// Passes pieces on as they are computed; cancels the job when the receiver is gone.
async fn forward(mut pieces: mpsc::UnboundedReceiver<KvPiece>, mut sink: Box<dyn PieceSink>, cancel: Cancel) {
    loop {
        match tokio::time::timeout(CANCEL_POLL, pieces.recv()).await {
            Ok(Some(piece)) => sink.piece(piece),
            Ok(None) => return,
            Err(_) => {}
        }
        if sink.is_cancelled() {
            cancel.cancel();
            return;
        }
    }
}

fn own_index(site: &Site, view: &FleetView, name: &InstanceName) -> Option<InstanceIndex> {
    let mut own = view.indexed().filter(|(_, i)| i.site == site.parts.index);
    own.find(|(_, i)| i.name == *name).map(|(index, _)| index)
}

fn engine_for(site: &Site, order: &KvOrder) -> Result<Arc<dyn Engine>, String> {
    let name = &order.instance;
    let engine = site
        .parts
        .engines
        .get(name)
        .ok_or_else(|| format!("there is no instance {name} at this site"))?;
    let about = engine.describe();
    if about.model != order.model || about.layout.model_version != order.model_version {
        return Err(format!(
            "instance {name} serves {} version {}, not {} version {}",
            about.model, about.layout.model_version, order.model, order.model_version
        ));
    }
    if !order.purpose.brings_what_is_held() && !about.role.prefills() {
        return Err(format!("instance {name} does not prefill"));
    }
    Ok(Arc::clone(engine))
}

/// Asks this site's own policies again: both this site and the one the KV goes to must be allowed to see the data.
/// Says whether this site may keep it.
fn check_residency(site: &Site, peer: &SiteName, order: &KvOrder) -> Result<Retention, String> {
    let parts = &site.parts;
    let view = parts.fleet.view();
    let peer_index = index_of(site, peer)?;
    let policies = parts.desk.table().for_tenant(&order.tenant, order.draw);
    let subject = Subject {
        from_site: Some(peer_index.0),
        ..subject_of(site, order, question_of(order.purpose))?
    };
    let labels = BTreeMap::new();
    let mut asker = Asker::new(parts.clock.as_ref(), &labels, order.request.as_str());
    let place = (view.as_ref(), peer_index);
    let allowed = ask_policies(&policies, || {
        Placements::ask(&policies, subject, &[], place, &mut asker)
    });
    for (index, name) in [(parts.index, &parts.name), (peer_index, peer)] {
        if !allowed.allows(index) {
            return Err(format!("the residency answer denies this data to {name}"));
        }
    }
    // A copy is kept by whoever orders it.
    if order.purpose.brings_what_is_held() && allowed.of(peer_index) != Placement::Resident {
        return Err(format!(
            "the residency answer does not let this data stay in {peer}"
        ));
    }
    match allowed.of(parts.index) {
        Placement::Resident => Ok(Retention::Keep),
        _ => Ok(Retention::Drop),
    }
}

fn index_of(site: &Site, peer: &SiteName) -> Result<SiteIndex, String> {
    let index = site.parts.fleet.names().site(peer.as_str()).map(SiteIndex);
    index.ok_or_else(|| format!("site {peer} is not known here"))
}

/// What residency is asked about the data of an order.
fn subject_of(site: &Site, order: &KvOrder, purpose: Purpose) -> Result<Subject, String> {
    let names = site.parts.fleet.names();
    let class = names.user_classes.iter().position(|c| *c == order.user_class);
    Ok(Subject {
        purpose,
        data_jurisdiction: jurisdiction(&names, &order.jurisdiction).map_err(|e| e.to_string())?,
        data_class: class.and_then(|i| u32::try_from(i).ok()).unwrap_or(0),
        from_site: None,
    })
}

/// Why residency is asked for an order.
fn question_of(purpose: OrderPurpose) -> Purpose {
    match purpose {
        OrderPurpose::Serve => Purpose::Serve,
        OrderPurpose::Fetch => Purpose::Fetch,
        OrderPurpose::Prewarm => Purpose::Prewarm,
        OrderPurpose::Replica | OrderPurpose::HandOver => Purpose::Replicate,
    }
}
