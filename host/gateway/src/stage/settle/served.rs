//! A request that was served says what it asked for: should the site be emptied, that moves.

use super::super::journey::Journey;
use crate::ahead::pool_blocks;
use crate::evacuate::Served;
use portolan_policy::{Placement, Purpose, Subject};
use portolan_ports::Retention;
use std::sync::Arc;

/// Notes a prompt whose KV may stay here.
pub(super) fn note(journey: &Journey) {
    let Some(placements) = &journey.placements else {
        return;
    };
    let parts = &journey.site.parts;
    // What a client salts for itself is found under no key that another site could derive.
    if placements.of(parts.index) != Placement::Resident || journey.request.cache_salt.is_some() {
        return;
    }
    let layout = &journey.model().description.layout;
    let prefilled = journey.request.prompt.len().saturating_sub(1);
    let mut blocks = pool_blocks(&journey.chain, layout);
    blocks.truncate(prefilled / layout.block_tokens.max(1) as usize);
    let Some(engine) = parts.engines.keys().next() else {
        return;
    };
    let order = journey.order_to(engine.clone(), journey.prefill_tokens(), Retention::Keep);
    let row = journey.record.request;
    let served = Served {
        order: Arc::new(order),
        subject: Subject {
            purpose: Purpose::Replicate,
            data_jurisdiction: row.jurisdiction,
            data_class: row.user_class,
            from_site: None,
        },
        placements: placements.clone(),
        labels: Arc::new(journey.request.labels.clone()),
    };
    journey.site.evacuation.note(parts.clock.now(), blocks, served);
}
