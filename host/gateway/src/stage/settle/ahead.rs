//! A request that was served says where its conversation, user and path were: and, if the next request is likely to go to
//! another site, its prefix goes there ahead.

use super::super::journey::Journey;
use crate::ahead::{Prewarm, pool_blocks};
use portolan_base::{PatternKind, SiteName, Tokens};
use portolan_decide::foresee::Moved;
use portolan_decide::{FleetView, InstanceIndex, KvSize, Likely, PrewarmAsk, RequestKind, SiteIndex};
use portolan_policy::{Placement, Purpose, Subject};
use portolan_ports::{KvOrder, OrderPurpose, Retention, Visit};
use std::sync::Arc;

/// Notes who asked, and sends a prefix that is due.
pub(super) fn note_visit(journey: &Journey) {
    // A prompt that was computed ahead on request is no visit, but the prefix of one.
    if journey.request.kind == RequestKind::Prewarm {
        return;
    }
    if let Some(prewarm) = due(journey) {
        tokio::spawn(prewarm.run());
    }
}

fn due(journey: &Journey) -> Option<Prewarm> {
    let ahead = journey.site.ahead.as_ref()?;
    let parts = &journey.site.parts;
    let layout = &journey.model().description.layout;
    let blocks = pool_blocks(&journey.chain, layout);
    let may_know = may_know(journey)?;
    let path = format!("{}\0{}", journey.request.path, journey.request.model);
    let named = [
        (PatternKind::Conversation, journey.request.session.as_deref()),
        (PatternKind::User, journey.request.user.as_deref()),
        (PatternKind::Path, Some(path.as_str())),
    ];
    let patterns: Vec<(PatternKind, &str)> = named
        .into_iter()
        .filter_map(|(kind, name)| Some((kind, name?)))
        .collect();
    let forecast = parts.fleet.visited(&Visit {
        tenant: &journey.request.tenant.name,
        patterns: &patterns,
        blocks: &blocks,
        may_know: &may_know,
    });
    let now = parts.clock.now();
    let moved = match forecast.before {
        Some(site) if site != parts.index => Moved::Here,
        _ => Moved::Not,
    };
    ahead.request(now, &blocks, moved);
    let likely = forecast.next.filter(|likely| may_know.contains(&likely.site))?;
    let fleet = parts.fleet.view();
    let (instance, there) = taker(journey, &fleet, likely, layout.block_tokens)?;
    let due = ahead.asked(
        now,
        &PrewarmAsk {
            tenant: &journey.request.tenant.name,
            blocks: &blocks,
            likely,
            there,
            block: Tokens(layout.block_tokens),
            kv: KvSize::from(layout.as_ref()),
        },
    )?;
    let tokens: Arc<[u32]> = journey.request.prompt[..due.blocks * layout.block_tokens as usize].into();
    let taker = fleet.instance(instance)?.name.clone();
    let order = KvOrder {
        // Nothing comes back.
        held: u32::try_from(tokens.len()).ok()?,
        fetch_from: holders(journey, &fleet),
        purpose: OrderPurpose::Prewarm,
        ..journey.order_to(taker, tokens, Retention::Keep)
    };
    let row = journey.record.request;
    Some(Prewarm {
        site: Arc::clone(&journey.site),
        due,
        fleet,
        layout: Arc::clone(layout),
        order,
        policies: journey.policies.clone(),
        subject: Subject {
            purpose: Purpose::Prewarm,
            data_jurisdiction: row.jurisdiction,
            data_class: row.user_class,
            from_site: None,
        },
        labels: journey.request.labels.clone(),
    })
}

/// The other sites where the request's data may stay.
fn may_know(journey: &Journey) -> Option<Vec<SiteIndex>> {
    let placements = journey.placements.as_ref()?;
    let sites = (0u32..)
        .zip(&journey.fleet.sites)
        .map(|(number, _)| SiteIndex(number));
    let other =
        |site: &SiteIndex| *site != journey.site.parts.index && placements.of(*site) == Placement::Resident;
    Some(sites.filter(other).collect())
}

/// The instance at the likely site that is to hold the prefix, and the blocks that it holds: it could compute on from
/// them, and holds most already or has most room.
fn taker(journey: &Journey, fleet: &FleetView, likely: Likely, block: u32) -> Option<(InstanceIndex, usize)> {
    let model = journey.record.request.model;
    let held = journey
        .site
        .parts
        .fleet
        .held(&journey.request.model, &journey.chain);
    let blocks =
        |index: InstanceIndex| (held.get(index.0 as usize).copied().unwrap_or(0) / block.max(1)) as usize;
    let link = fleet.link(likely.site, journey.site.parts.index)?;
    let free = link.up && link.busy < fleet.congestion_mark;
    fleet
        .indexed()
        .filter(|(_, i)| free && i.site == likely.site && i.model == model)
        .filter(|(_, i)| i.serving.is_pieces() && i.role.prefills() && i.standing.is_ready())
        .max_by_key(|(index, i)| (blocks(*index), std::cmp::Reverse((i.kv_used, *index))))
        .map(|(index, _)| (index, blocks(index)))
}

/// The sites that the prefix may be fetched from: this one, and the one that computed it.
fn holders(journey: &Journey, fleet: &FleetView) -> Arc<[SiteName]> {
    let own = &journey.site.parts.name;
    let prefilled = journey
        .record
        .route
        .as_ref()
        .map(|route| route.prefill_site.as_str());
    let allowed = |site: &SiteIndex| journey.placements.as_ref().is_some_and(|seen| seen.allows(*site));
    let abroad = (0u32..).zip(&fleet.sites).filter(|(number, site)| {
        site.name != *own && Some(site.name.as_str()) == prefilled && allowed(&SiteIndex(*number))
    });
    std::iter::once(own.clone())
        .chain(abroad.map(|(_, site)| site.name.clone()))
        .collect()
}
