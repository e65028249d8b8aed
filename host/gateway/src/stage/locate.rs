//! locate: block hashes of the prompt → how much of it each instance holds.

use super::journey::Journey;
use crate::site::ServedBy;
use portolan_base::{BlockHash, TenantKey};

impl Journey {
    /// Tokens of the prompt that each instance holds KV for, by instance index. Advice: what an instance really has
    /// is known when it is asked.
    pub(super) fn locate(&mut self) -> Vec<u32> {
        let begun = self.enter("locate");
        self.fleet = self.site.parts.fleet.view();
        self.chain = BlockHash::chain(&self.key, &self.request.prompt);
        let held = self.held();
        self.note_stage("locate", begun);
        held
    }

    /// The same, as it is at the moment.
    pub(super) fn held(&self) -> Vec<u32> {
        let fleet = &self.site.parts.fleet;
        let mut held = fleet.held(&self.request.model, &self.chain);
        if self.model().served == ServedBy::Pieces {
            return held;
        }
        let key = self.salted_key();
        if self.key.public_tokens() == 0 && self.key == key {
            return held;
        }
        // A cache that is salted from end to end holds nothing public, and nothing from before an order: there the prompt
        // has another chain.
        let own = BlockHash::chain(&key, &self.request.prompt);
        let salted = fleet.held(&self.request.model, &own);
        for ((held, salted), instance) in held.iter_mut().zip(salted).zip(&self.fleet.instances) {
            if !instance.serving.is_pieces() {
                *held = salted;
            }
        }
        held
    }

    /// The key of the prompt in caches that are salted.
    pub(super) fn salted_key(&self) -> TenantKey {
        self.site.salted_key(self.key, &self.about)
    }
}
