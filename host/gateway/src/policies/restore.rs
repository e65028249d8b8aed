//! Coming back with the same bindings after a restart.
//!
//! Two steps. Before the doors open, whatever is compiled for this host is loaded, on all processors; the rest answers
//! with a fault meanwhile, so that its fallbacks apply and nothing opens that it closed. Once the doors are open, the
//! rest is compiled in the background and put in place one by one.

use super::bound;
use super::load::Told;
use super::missing::Missing;
use super::unavailable::Unavailable;
use super::{DeskError, PolicyDesk, PolicySlot};
use parking_lot::Mutex;
use portolan_decide::{PolicyTable, Trial};
use portolan_policy::Policy;
use portolan_ports::{BindingRecord, Reuse, RolloutRecord, TrialRecord};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

/// Threads that load at once: loading is reading a file and a few hundred microseconds of the processor.
const LOADERS: usize = 8;

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
    /// As `failed` until [`PolicyDesk::finish_restoring`] has compiled them for this host.
    pub pending: Vec<PolicySlot>,
}

/// Gives the policy of a slot.
type Load<'a> = &'a dyn Fn(&PolicySlot, Told<'_>) -> Result<Arc<dyn Policy>, DeskError>;

/// A version to load: its slot, SHA-256, configuration and reuse.
type Key = (PolicySlot, String, String, Reuse);

fn key(slot: &PolicySlot, told: Told<'_>) -> Key {
    (
        slot.clone(),
        told.sha256.to_owned(),
        told.config.to_owned(),
        told.reuse,
    )
}

/// What a slot holds, in the store.
type Held = (Option<BindingRecord>, RolloutRecord);

impl PolicyDesk {
    /// Loads every binding and every trial the store holds that is compiled for this host, and puts the table in place,
    /// whole. Called at start, before the doors open, and again when the name tables changed. A binding that cannot be
    /// loaded is reported and logged; the others are not affected.
    pub fn restore(&self) -> Result<Restored, DeskError> {
        let _changing = self.changing.lock();
        let held = self.held()?;
        let loaded = Mutex::new(self.load_all(&held));
        let load = |slot: &PolicySlot, told: Told<'_>| {
            let taken = loaded.lock().remove(&key(slot, told));
            taken.unwrap_or(Err(DeskError::NotCompiled))
        };
        let mut restored = Restored::default();
        let mut table = PolicyTable::new();
        for (slot, (binding, rollout)) in &held {
            table = self.placed(&table, slot, (binding.clone(), rollout), &mut restored, &load);
            // Faults for want of a compiler are not the version's, and spend nobody's budget.
            if !restored.pending.contains(slot) {
                self.retally(slot);
            }
        }
        self.table.store(Arc::new(table));
        Ok(restored)
    }

    /// Compiles what [`PolicyDesk::restore`] left pending, and puts each policy in place as it is done. Takes as long as
    /// compiling does; ends early when the desk is gone.
    pub fn finish_restoring(desk: &Weak<Self>, pending: Vec<PolicySlot>) {
        for slot in pending {
            let Some(desk) = desk.upgrade() else { return };
            if let Err(error) = desk.finish(&slot) {
                tracing::error!(%slot, %error, "a bound policy was not restored");
            }
        }
    }

    /// What every slot with a binding or a rollout holds.
    fn held(&self) -> Result<BTreeMap<PolicySlot, Held>, DeskError> {
        let mut slots: BTreeMap<PolicySlot, Option<BindingRecord>> = BTreeMap::new();
        for rollout in self.parts.store.rollouts()? {
            slots.insert(PolicySlot::new(rollout.scope, rollout.question), None);
        }
        for binding in self.parts.store.bindings()? {
            let slot = PolicySlot::new(binding.scope.clone(), binding.question);
            slots.insert(slot, Some(binding));
        }
        slots
            .into_iter()
            .map(|(slot, binding)| Ok((slot.clone(), (binding, self.rollout(&slot)?))))
            .collect()
    }

    /// Loads what is compiled, several at once.
    fn load_all(
        &self,
        held: &BTreeMap<PolicySlot, Held>,
    ) -> HashMap<Key, Result<Arc<dyn Policy>, DeskError>> {
        let wanted = Mutex::new(held.iter().flat_map(|(slot, held)| versions(slot, held)));
        let loaded = Mutex::new(HashMap::new());
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads.min(LOADERS) {
                scope.spawn(|| {
                    loop {
                        let next = wanted.lock().next();
                        let Some((slot, told)) = next else {
                            return;
                        };
                        let policy = self.load_ready(slot, told);
                        loaded.lock().insert(key(slot, told), policy);
                    }
                });
            }
        });
        loaded.into_inner()
    }

    pub(super) fn finish(&self, slot: &PolicySlot) -> Result<(), DeskError> {
        let held = (self.bound(slot)?, self.rollout(slot)?);
        let mut failure = None;
        for (_, told) in versions(slot, &held) {
            let compiled = match self.load_ready(slot, told) {
                Err(DeskError::NotCompiled) => self.compile_when_free(told.sha256),
                _ => Ok(()),
            };
            failure = failure.or(compiled.err());
        }
        let failure = Mutex::new(failure);
        let load = |slot: &PolicySlot, told: Told<'_>| {
            self.load_ready(slot, told).map_err(|error| match error {
                DeskError::NotCompiled => failure.lock().take().unwrap_or(error),
                error => error,
            })
        };
        // Somebody may have bound another version meanwhile: what the store holds counts.
        let _changing = self.changing.lock();
        let (bound, rollout) = (self.bound(slot)?, self.rollout(slot)?);
        let table = self.table.load();
        let table = self.placed(&table, slot, (bound, &rollout), &mut Restored::default(), &load);
        self.table.store(Arc::new(table));
        self.retally(slot);
        Ok(())
    }

    /// A table in which one slot is as its binding and its rollout say.
    pub(super) fn placed(
        &self,
        table: &PolicyTable,
        slot: &PolicySlot,
        (bound, rollout): (Option<BindingRecord>, &RolloutRecord),
        restored: &mut Restored,
        load: Load<'_>,
    ) -> PolicyTable {
        let (scope, question) = (slot.scope.clone(), slot.question);
        let mut table = table.without(&scope, question).without_trial(&scope, question);
        self.missing.lock().remove(slot);
        if let Some(hold) = &rollout.disabled {
            let stand_in = |name: &str, sha256: &str| -> Arc<dyn Policy> {
                Arc::new(Unavailable::disabled(slot, (name, sha256), hold))
            };
            let policy = match (&bound, &rollout.trial) {
                (Some(binding), _) => bound::bound(stand_in(&binding.name, &binding.sha256), binding),
                (None, Some(trial)) => bound::on_trial(stand_in(&trial.name, &trial.sha256), trial),
                (None, None) => return table,
            };
            return table.with(scope, question, policy);
        }
        if let Some(binding) = bound {
            let policy = self.restored(slot, binding.clone(), restored, load);
            table = table.with(scope.clone(), question, bound::bound(policy, &binding));
        }
        match rollout
            .trial
            .as_ref()
            .and_then(|trial| self.restored_trial(slot, trial, restored, load))
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
        load: Load<'_>,
    ) -> Arc<dyn Policy> {
        let (name, version) = (&*binding.name, &*binding.sha256);
        match load(slot, Told::from(&binding)) {
            Ok(policy) => {
                if self.is_distrusted(slot, version) {
                    restored.distrusted.push(binding.clone());
                }
                restored.active.push(binding);
                policy
            }
            Err(error) => {
                let stand_in = Unavailable::new(slot, (name, version), error.to_string());
                self.missing
                    .lock()
                    .insert(slot.clone(), Missing::for_want_of(&error));
                if matches!(error, DeskError::NotCompiled) {
                    tracing::warn!(%slot, policy = name, version, "a bound policy is compiled for this host first");
                    restored.pending.push(slot.clone());
                } else {
                    tracing::error!(%slot, policy = name, version, %error, "a bound policy cannot be used");
                    restored.failed.push(NotRestored { binding, error });
                }
                Arc::new(stand_in)
            }
        }
    }

    /// A trial that cannot be loaded is left out: the bound version answers in its place.
    fn restored_trial(
        &self,
        slot: &PolicySlot,
        trial: &TrialRecord,
        restored: &mut Restored,
        load: Load<'_>,
    ) -> Option<Trial> {
        let (name, version, stage) = (&*trial.name, &*trial.sha256, trial.stage);
        match load(slot, Told::from(trial)) {
            Ok(policy) => Some(Trial {
                policy: bound::on_trial(policy, trial),
                stage,
            }),
            Err(DeskError::NotCompiled) => {
                if !restored.pending.contains(slot) {
                    restored.pending.push(slot.clone());
                }
                None
            }
            Err(error) => {
                tracing::error!(%slot, policy = name, version, %error, "a policy on trial cannot be used");
                None
            }
        }
    }
}

/// What is loaded for a slot: its binding and its trial. Nothing while it is disabled.
fn versions<'a>(
    slot: &'a PolicySlot,
    (bound, rollout): &'a Held,
) -> impl Iterator<Item = (&'a PolicySlot, Told<'a>)> {
    let bound = bound.iter().map(Told::from);
    let trial = rollout.trial.iter().map(Told::from);
    bound
        .chain(trial)
        .filter(|_| rollout.disabled.is_none())
        .map(move |told| (slot, told))
}
