//! Coming back with the same bindings after a restart.

use super::unavailable::Unavailable;
use super::{DeskError, PolicyDesk, PolicySlot};
use portolan_decide::PolicyTable;
use portolan_policy::Policy;
use portolan_ports::BindingRecord;
use std::sync::Arc;

/// A binding whose policy cannot be used on this host.
#[derive(Debug)]
pub struct NotRestored {
    /// The binding. It stays in the store.
    pub binding: BindingRecord,
    /// Why.
    pub error: DeskError,
}

/// What became of the bindings.
#[derive(Debug, Default)]
pub struct Restored {
    /// Active again.
    pub active: Vec<BindingRecord>,
    /// Bound, but answering with a fault, so that the question's fallback applies.
    pub failed: Vec<NotRestored>,
}

impl PolicyDesk {
    /// Loads every binding the store holds and puts the table in place, whole. Called at start, before the doors open,
    /// and again when the name tables changed. A binding that cannot be loaded is reported and logged; the others are
    /// not affected.
    pub fn restore(&self) -> Result<Restored, DeskError> {
        let _changing = self.changing.lock();
        let mut restored = Restored::default();
        let mut table = PolicyTable::new();
        for binding in self.parts.store.bindings()? {
            let slot = PolicySlot::new(binding.scope.clone(), binding.question);
            let loaded = self.load_stored(&slot, (&binding.name, &binding.sha256, &binding.config));
            let policy: Arc<dyn Policy> = match &loaded {
                Ok(policy) => Arc::clone(policy),
                Err(error) => Arc::new(Unavailable::new(&binding, error.to_string())),
            };
            table = table.with(slot.scope.clone(), slot.question, policy);
            match loaded {
                Ok(_) => restored.active.push(binding),
                Err(error) => {
                    let (policy, version) = (&binding.name, &binding.sha256);
                    tracing::error!(%slot, policy, version, %error, "a bound policy cannot be used");
                    restored.failed.push(NotRestored { binding, error });
                }
            }
        }
        self.table.store(Arc::new(table));
        Ok(restored)
    }
}
