//! Coming back with the same bindings after a restart.

use super::unavailable::Unavailable;
use super::{DeskError, PolicyDesk, PolicySlot};
use portolan_decide::{PolicyTable, Trial};
use portolan_policy::Policy;
use portolan_ports::{BindingRecord, RolloutRecord, TrialRecord};
use std::collections::BTreeMap;
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
    /// Active again although their signatures would not let them be activated today.
    pub distrusted: Vec<BindingRecord>,
    /// Bound, but answering with a fault, so that the question's fallback applies.
    pub failed: Vec<NotRestored>,
}

impl PolicyDesk {
    /// Loads every binding and every trial the store holds and puts the table in place, whole. Called at start, before
    /// the doors open, and again when the name tables changed. A binding that cannot be loaded is reported and logged;
    /// the others are not affected.
    pub fn restore(&self) -> Result<Restored, DeskError> {
        let _changing = self.changing.lock();
        let mut slots: BTreeMap<PolicySlot, Option<BindingRecord>> = BTreeMap::new();
        for rollout in self.parts.store.rollouts()? {
            slots.insert(PolicySlot::new(rollout.scope, rollout.question), None);
        }
        for binding in self.parts.store.bindings()? {
            let slot = PolicySlot::new(binding.scope.clone(), binding.question);
            slots.insert(slot, Some(binding));
        }
        let mut restored = Restored::default();
        let mut table = PolicyTable::new();
        for (slot, binding) in slots {
            let rollout = self.rollout(&slot)?;
            table = self.placed(&table, &slot, (binding, &rollout), &mut restored);
            self.retally(&slot);
        }
        self.table.store(Arc::new(table));
        Ok(restored)
    }

    /// A table in which one slot is as its binding and its rollout say.
    pub(super) fn placed(
        &self,
        table: &PolicyTable,
        slot: &PolicySlot,
        (bound, rollout): (Option<BindingRecord>, &RolloutRecord),
        restored: &mut Restored,
    ) -> PolicyTable {
        let (scope, question) = (slot.scope.clone(), slot.question);
        let mut table = table.without(&scope, question).without_trial(&scope, question);
        if let Some(hold) = &rollout.disabled {
            let bound = bound.as_ref().map(|b| (&*b.name, &*b.sha256));
            let on_trial = rollout.trial.as_ref().map(|t| (&*t.name, &*t.sha256));
            return match bound.or(on_trial) {
                Some(who) => table.with(scope, question, Arc::new(Unavailable::disabled(slot, who, hold))),
                None => table,
            };
        }
        if let Some(binding) = bound {
            table = table.with(scope.clone(), question, self.restored(slot, binding, restored));
        }
        match rollout
            .trial
            .as_ref()
            .and_then(|trial| self.restored_trial(slot, trial))
        {
            Some(trial) => table.with_trial(scope, question, trial),
            None => table,
        }
    }

    fn restored(
        &self,
        slot: &PolicySlot,
        binding: BindingRecord,
        restored: &mut Restored,
    ) -> Arc<dyn Policy> {
        let (name, version) = (&*binding.name, &*binding.sha256);
        match self.load_stored(slot, (name, version, &binding.config)) {
            Ok(policy) => {
                if self.is_distrusted(slot, version) {
                    restored.distrusted.push(binding.clone());
                }
                restored.active.push(binding);
                policy
            }
            Err(error) => {
                tracing::error!(%slot, policy = name, version, %error, "a bound policy cannot be used");
                let stand_in = Unavailable::new(slot, (name, version), error.to_string());
                restored.failed.push(NotRestored { binding, error });
                Arc::new(stand_in)
            }
        }
    }

    /// A trial that cannot be loaded is left out: the bound version answers in its place.
    fn restored_trial(&self, slot: &PolicySlot, trial: &TrialRecord) -> Option<Trial> {
        let (name, version, stage) = (&*trial.name, &*trial.sha256, trial.stage);
        match self.load_stored(slot, (name, version, &trial.config)) {
            Ok(policy) => Some(Trial { policy, stage }),
            Err(error) => {
                tracing::error!(%slot, policy = name, version, %error, "a policy on trial cannot be used");
                None
            }
        }
    }
}
