//! locate: block hashes of the prompt → how much of it each instance holds.

use super::journey::Journey;
use crate::site::ServedBy;
use portolan_base::BlockHash;

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
        if self.key.public_tokens() == 0 || self.model().served == ServedBy::Pieces {
            return held;
        }
        // A cache that is salted from end to end holds nothing public: there the prompt has another chain.
        let own = BlockHash::chain(&self.key.without_public(), &self.request.prompt);
        let salted = fleet.held(&self.request.model, &own);
        for ((held, salted), instance) in held.iter_mut().zip(salted).zip(&self.fleet.instances) {
            if !instance.serving.is_pieces() {
                *held = salted;
            }
        }
        held
    }
}
