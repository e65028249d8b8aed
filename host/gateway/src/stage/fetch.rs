//! fetch: the prefix KV that need not be computed again, because the decode instance holds it.

use super::journey::{Journey, Leg};
use portolan_ports::HeldPrefix;

impl Journey {
    /// The attention KV the decode instance holds for the beginning of the prompt. What another site holds is sent
    /// by that site's prefill (its own cache answers there).
    pub(super) fn fetch(&mut self, leg: &Leg) -> HeldPrefix {
        let begun = self.enter("fetch");
        // What a route before this one brought is not what this one decodes from.
        self.record.kv.quantised = None;
        let held = leg.decoder.held(&self.key, &self.prefill_tokens());
        self.note_stage("fetch", begun);
        held
    }
}
