//! What is let go of when something newer is kept. The audit log tells of all of it.

use super::SledStore;
use crate::ledger::{Table, Write};
use crate::slot::history_key;
use portolan_ports::{
    BindingRecord, PolicyStore, ProposalRecord, StoreError, bindings_to_forget, proposals_to_forget,
};
use std::collections::HashSet;

impl SledStore {
    /// The removal of earlier bindings that go when `next` is made.
    pub(super) fn forgotten_bindings(&self, next: &BindingRecord) -> Result<Vec<Write>, StoreError> {
        let mut history = self.history(&next.scope, next.question)?;
        history.push(next.clone());
        let versions = self.versions(&next.scope, next.question)?;
        let stored: HashSet<String> = versions.into_iter().map(|version| version.sha256).collect();
        let gone = bindings_to_forget(&history, |sha256| stored.contains(sha256));
        let removal = |binding: &BindingRecord| Write::removal(Table::History, history_key(binding));
        Ok(gone.into_iter().map(removal).collect())
    }

    /// The removal of closed proposals that go when `next` is kept.
    pub(super) fn forgotten_proposals(&self, next: &ProposalRecord) -> Result<Vec<Write>, StoreError> {
        let mut proposals = self.proposals()?;
        proposals.retain(|known| known.id != next.id);
        proposals.push(next.clone());
        let (.., at) = next.last_step();
        let gone = proposals_to_forget(&proposals, &next.scope, at);
        let removal = |id: u64| Write::removal(Table::Proposals, id.to_be_bytes());
        Ok(gone.into_iter().map(removal).collect())
    }
}
