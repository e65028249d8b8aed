//! locate: block hashes of the prompt → how much of it each instance holds.

use super::journey::Journey;
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
        self.site.parts.fleet.held(&self.request.model, &self.chain)
    }
}
