//! How much is kept of what was: bindings that were in force, proposals that are closed. The audit log tells of all.

use crate::{BindingRecord, ProposalRecord, ProposalState, Scope};
use portolan_base::Moment;
use std::collections::HashSet;

/// Bindings that are kept of each question of a tenant: as many as a tenant may keep versions, so that a day of hourly
/// changes can be gone back over four times.
pub const BINDINGS_KEPT: usize = 100;

/// Closed proposals that are kept of each tenant, or of the platform.
pub const PROPOSALS_KEPT: usize = 100;

/// Which of the bindings of one question, oldest first, can be forgotten: those before the newest [`BINDINGS_KEPT`], but for
/// the last of each version that `is_stored`, which says how it is bound when it is bound again.
pub fn bindings_to_forget(
    history: &[BindingRecord],
    is_stored: impl Fn(&str) -> bool,
) -> Vec<&BindingRecord> {
    let (older, kept) = history.split_at(history.len().saturating_sub(BINDINGS_KEPT));
    let mut known: HashSet<&str> = kept.iter().map(|binding| binding.sha256.as_str()).collect();
    let mut gone: Vec<&BindingRecord> = Vec::new();
    for binding in older.iter().rev() {
        let is_last = known.insert(&binding.sha256);
        if !(is_last && is_stored(&binding.sha256)) {
            gone.push(binding);
        }
    }
    gone
}

/// Which of the proposals, oldest first, of a scope can be forgotten at `now`: closed ones before the newest
/// [`PROPOSALS_KEPT`]. One that waits is kept.
pub fn proposals_to_forget(proposals: &[ProposalRecord], scope: &Scope, now: Moment) -> Vec<u64> {
    let is_closed = |proposal: &&ProposalRecord| {
        proposal.scope == *scope && proposal.state(now) != ProposalState::Pending
    };
    let closed: Vec<u64> = proposals
        .iter()
        .filter(is_closed)
        .map(|proposal| proposal.id)
        .collect();
    closed[..closed.len().saturating_sub(PROPOSALS_KEPT)].to_vec()
}
