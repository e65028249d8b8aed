//! A request that was served says which prefix it asked for that another site holds: often enough, and a copy is ordered.

use super::super::journey::Journey;
use crate::ahead::pool_blocks;
use crate::replicate::Replica;
use portolan_base::Tokens;
use portolan_decide::{FleetView, InstanceIndex, InstanceView, KvSize, PrefixAsk, SiteIndex};
use portolan_policy::{Placement, Purpose, Subject};
use portolan_ports::{Engine, KvOrder, OrderPurpose, Retention};
use std::sync::Arc;

/// Who holds how much of a prompt.
struct Spread {
    /// The site, and the instance there, that holds most of those that may be asked.
    there: (SiteIndex, InstanceIndex),
    /// Blocks it holds.
    blocks: usize,
    /// Blocks that an instance here holds which could compute on from them.
    here: usize,
}

/// Notes what the request found and asked for, and begins a copy that is due.
pub(super) fn note_ask(journey: &Journey) {
    if let Some(replica) = due(journey) {
        tokio::spawn(replica.run());
    }
}

fn due(journey: &Journey) -> Option<Replica> {
    let replication = journey.site.replication.as_ref()?;
    let layout = &journey.model().description.layout;
    let blocks = pool_blocks(&journey.chain, layout);
    replication.found(&blocks, found(journey) / layout.block_tokens.max(1) as usize);
    let here = journey.site.parts.index;
    // A copy is kept.
    if journey.placements.as_ref()?.of(here) != Placement::Resident {
        return None;
    }
    let fleet = journey.site.parts.fleet.view();
    let spread = spread(journey, &fleet, layout.block_tokens)?;
    let ask = PrefixAsk {
        tenant: &journey.request.tenant.name,
        blocks: blocks.get(..spread.blocks)?,
        here: spread.here,
        block: Tokens(layout.block_tokens),
        kv: KvSize::from(layout.as_ref()),
    };
    let (_, engine) = keeper(journey, &fleet)?;
    let holder = fleet.instance(spread.there.1)?.name.clone();
    let due = replication.asked(&journey.site, &ask)?;
    let tokens = journey.prefill_tokens()[..due.blocks * layout.block_tokens as usize].into();
    let order = journey.order_to(holder, tokens, Retention::Keep);
    let row = journey.record.request;
    Some(Replica {
        site: Arc::clone(&journey.site),
        due,
        blocks,
        from_site: spread.there.0,
        from: spread.there.1,
        fleet,
        engine,
        key: journey.key,
        about: Arc::clone(&journey.about),
        order: KvOrder {
            purpose: OrderPurpose::Replica,
            ..order
        },
        policies: journey.policies.clone(),
        subject: Subject {
            purpose: Purpose::Replicate,
            data_jurisdiction: row.jurisdiction,
            data_class: row.user_class,
            from_site: None,
        },
        labels: journey.request.labels.clone(),
    })
}

/// Prompt tokens that this site had before the request came.
fn found(journey: &Journey) -> usize {
    let record = &journey.record;
    let own = journey.site.parts.name.as_str();
    let at_home = record
        .route
        .as_ref()
        .is_some_and(|route| route.prefill_site == own);
    let fetched: u32 = record.fetches.iter().map(|fetch| fetch.tokens).sum();
    match at_home {
        true => record.kv.cached_tokens.saturating_sub(fetched) as usize,
        false => 0,
    }
}

fn spread(journey: &Journey, fleet: &FleetView, block: u32) -> Option<Spread> {
    let here = journey.site.parts.index;
    let seen = journey.placements.as_ref()?;
    let held = journey
        .site
        .parts
        .fleet
        .held(&journey.request.model, &journey.chain);
    let most = u32::try_from(journey.request.prompt.len().saturating_sub(1)).unwrap_or(u32::MAX);
    let blocks = |index: InstanceIndex| {
        let tokens = held.get(index.0 as usize).copied().unwrap_or(0).min(most);
        (tokens / block.max(1)) as usize
    };
    let may_be_asked = |instance: &InstanceView| {
        let link = fleet.link(instance.site, here);
        let free = link.filter(|link| link.up && link.busy < fleet.congestion_mark);
        instance.site != here && free.is_some() && instance.standing.is_ready() && seen.allows(instance.site)
    };
    let (from, holder) = of_model(journey, fleet)
        .filter(|(_, instance)| may_be_asked(instance))
        .max_by_key(|(index, _)| (blocks(*index), std::cmp::Reverse(*index)))?;
    let own = of_model(journey, fleet).filter(|(_, own)| own.site == here && own.role.prefills());
    Some(Spread {
        there: (holder.site, from),
        blocks: blocks(from),
        here: own.map(|(index, _)| blocks(index)).max().unwrap_or(0),
    })
}

/// The instance here that is to keep a copy: of those that could compute on from it the one with most room.
fn keeper(journey: &Journey, fleet: &FleetView) -> Option<(InstanceIndex, Arc<dyn Engine>)> {
    let here = journey.site.parts.index;
    let (index, instance) = of_model(journey, fleet)
        .filter(|(_, own)| own.site == here && own.role.prefills() && own.standing.is_ready())
        .min_by_key(|(index, own)| (own.kv_used, *index))?;
    let engine = journey.site.parts.engines.get(&instance.name)?;
    Some((index, Arc::clone(engine)))
}

fn of_model<'a>(
    journey: &Journey,
    fleet: &'a FleetView,
) -> impl Iterator<Item = (InstanceIndex, &'a InstanceView)> {
    let model = journey.record.request.model;
    fleet
        .indexed()
        .filter(move |(_, instance)| instance.model == model && instance.serving.is_pieces())
}
