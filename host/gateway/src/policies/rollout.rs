//! The life of a version after its upload: shadow, canary, promotion; roll-back, pin, and taking a question out of
//! force. What the store is told is in the table before the call returns.

use super::bound;
use super::change::NewBinding;
use super::load::Told;
use super::order::{RollBack, TrialOrder};
use super::{By, DeskError, PolicyDesk, PolicySlot, Restored};
use portolan_decide::{Trial, TrialStage};
use portolan_policy::QuestionKind;
use portolan_ports::{
    BindingChange, BindingRecord, EnforcedRecord, HoldRecord, RolloutChange, RolloutDeed, RolloutRecord,
    Successor, TrialRecord,
};
use std::collections::HashSet;
use std::sync::Arc;

impl PolicyDesk {
    /// What is on trial and what is held in one slot.
    pub fn rollout(&self, slot: &PolicySlot) -> Result<RolloutRecord, DeskError> {
        Ok(self.parts.store.rollout(&slot.scope, slot.question)?)
    }

    /// Puts a stored version on trial, or moves the one on trial to another stage.
    pub fn try_out(&self, order: TrialOrder, by: &By) -> Result<RolloutRecord, DeskError> {
        let (slot, stage) = (order.slot.clone(), order.stage);
        let mut trial = self.trial_of(order, by)?;
        trial.budget.check()?;
        self.check_stored(&slot, &trial.sha256)?;
        let policy = self.load_stored(&slot, Told::from(&trial))?;
        let _changing = self.changing.lock();
        let rollout = self.rollout(&slot)?;
        let change = match stage {
            TrialStage::Shadow => RolloutChange::Shadow,
            TrialStage::Canary { .. } => {
                refuse_if_pinned(&rollout, &slot)?;
                RolloutChange::Canary
            }
        };
        if self.bound(&slot)?.is_some_and(|b| b.sha256 == trial.sha256) {
            let what = format!(
                "version {} is bound already; a trial needs another version",
                trial.sha256
            );
            return Err(DeskError::Conflict(what));
        }
        trial.at = self.parts.clock.now();
        let policy = bound::on_trial(policy, &trial);
        let subject = format!("{} {}, {stage}", subject_of(&slot, &trial), trial.config);
        let rollout = RolloutRecord {
            trial: Some(trial),
            ..rollout
        };
        self.write(rollout.clone(), (change, subject.trim_end().to_owned()), by)?;
        if rollout.disabled.is_none() {
            let (scope, question) = (slot.scope.clone(), slot.question);
            self.swap(|table| table.with_trial(scope, question, Trial { policy, stage }));
        }
        self.retally(&slot);
        Ok(rollout)
    }

    /// Binds the version on trial as it is tried: with its configuration, its budget and its reuse.
    pub fn promote(&self, slot: &PolicySlot, by: &By) -> Result<BindingRecord, DeskError> {
        let trial = self.on_trial(&self.rollout(slot)?, slot)?;
        let policy = self.load_stored(slot, Told::from(&trial))?;
        let _changing = self.changing.lock();
        if self.on_trial(&self.rollout(slot)?, slot)? != trial {
            return Err(DeskError::Conflict(
                "the trial changed meanwhile; look again".to_owned(),
            ));
        }
        let new = NewBinding {
            name: trial.name,
            sha256: trial.sha256,
            config: trial.config,
            budget: Some(trial.budget),
            reuse: trial.reuse,
            how: BindingChange::Promote,
            in_place_of: None,
        };
        self.bind(slot, (new, policy), by)
    }

    /// Ends a trial: the bound version, or the fallback, answers everyone.
    pub fn withdraw(&self, slot: &PolicySlot, by: &By) -> Result<RolloutRecord, DeskError> {
        let _changing = self.changing.lock();
        self.end_trial(self.rollout(slot)?, by)
    }

    /// Only called while `changing` is held.
    pub(super) fn end_trial(&self, mut rollout: RolloutRecord, by: &By) -> Result<RolloutRecord, DeskError> {
        let slot = &PolicySlot::new(rollout.scope.clone(), rollout.question);
        let trial = self.on_trial(&rollout, slot)?;
        rollout.trial = None;
        let told = (RolloutChange::Withdraw, subject_of(slot, &trial));
        self.write(rollout.clone(), told, by)?;
        self.swap(|table| table.without_trial(&slot.scope, slot.question));
        self.retally(slot);
        Ok(rollout)
    }

    /// Brings back an earlier binding: version, name, configuration, budget and reuse.
    pub fn roll_back(&self, order: &RollBack, by: &By) -> Result<BindingRecord, DeskError> {
        self.roll_back_from(order, (self.bound(&order.slot)?.as_ref(), None), by)
    }

    /// The binding that a roll-back brings back.
    pub(super) fn earlier(
        &self,
        RollBack { slot, to }: &RollBack,
        bound: Option<&BindingRecord>,
    ) -> Result<BindingRecord, DeskError> {
        // What was pruned or removed since cannot come back.
        let versions = self.versions(slot)?.into_iter();
        let stored: HashSet<String> = versions.map(|version| version.sha256).collect();
        let mut history = self.history(slot)?;
        history.retain(|binding| stored.contains(&binding.sha256));
        let earlier = match to {
            Some(sha256) => history.iter().rev().find(|binding| binding.sha256 == *sha256),
            None => before(&history, bound.is_some()),
        };
        earlier
            .cloned()
            .ok_or_else(|| DeskError::NotFound(format!("an earlier binding of {slot} to roll back to")))
    }

    /// The same for a slot that holds `bound`. The host says what it takes out of force; whom it puts there instead is
    /// filled in.
    pub(super) fn roll_back_from(
        &self,
        order: &RollBack,
        (bound, enforced): (Option<&BindingRecord>, Option<EnforcedRecord>),
        by: &By,
    ) -> Result<BindingRecord, DeskError> {
        let slot = &order.slot;
        let earlier = self.earlier(order, bound)?;
        let in_place_of = enforced.map(|enforced| EnforcedRecord {
            instead: Some(Successor::from(&earlier)),
            ..enforced
        });
        let policy = self.load_stored(slot, Told::from(&earlier))?;
        let _changing = self.changing.lock();
        if self.bound(slot)?.as_ref() != bound {
            return Err(DeskError::Conflict(
                "the binding changed meanwhile; look again".to_owned(),
            ));
        }
        let new = NewBinding {
            in_place_of,
            ..NewBinding::again(earlier)
        };
        self.bind(slot, (new, policy), by)
    }

    /// Holds the binding as it is until it is unpinned. A trial that runs may be withdrawn, not promoted.
    pub fn pin(&self, slot: &PolicySlot, by: &By) -> Result<RolloutRecord, DeskError> {
        let hold = self.hold(by);
        self.change_hold(slot, RolloutChange::Pin, by, |rollout| {
            refuse_if_pinned(rollout, slot)?;
            rollout.pinned = Some(hold);
            Ok(())
        })
    }

    /// Lets the binding be changed again.
    pub fn unpin(&self, slot: &PolicySlot, by: &By) -> Result<RolloutRecord, DeskError> {
        self.change_hold(slot, RolloutChange::Unpin, by, |rollout| {
            let pin = rollout.pinned.take();
            pin.map(drop)
                .ok_or_else(|| DeskError::Conflict(format!("{slot} is not pinned")))
        })
    }

    /// Takes a question out of force: its fallback answers, as if every call failed, until it is enabled again.
    pub fn disable(&self, slot: &PolicySlot, by: &By) -> Result<RolloutRecord, DeskError> {
        if self.bound(slot)?.is_none() && self.rollout(slot)?.trial.is_none() {
            return Err(DeskError::NotFound(format!("a binding or a trial of {slot}")));
        }
        let hold = self.hold(by);
        self.change_hold(slot, RolloutChange::Disable, by, |rollout| {
            refuse_if_pinned(rollout, slot)?;
            if rollout.disabled.is_some() {
                return Err(DeskError::Conflict(format!("{slot} is disabled already")));
            }
            rollout.disabled = Some(hold);
            Ok(())
        })
    }

    /// Lets the versions answer again.
    pub fn enable(&self, slot: &PolicySlot, by: &By) -> Result<RolloutRecord, DeskError> {
        self.change_hold(slot, RolloutChange::Enable, by, |rollout| {
            refuse_if_pinned(rollout, slot)?;
            let hold = rollout.disabled.take();
            hold.map(drop)
                .ok_or_else(|| DeskError::Conflict(format!("{slot} is not disabled")))
        })
    }

    /// The binding in force.
    pub(super) fn bound(&self, slot: &PolicySlot) -> Result<Option<BindingRecord>, DeskError> {
        let mut bindings = self.parts.store.bindings()?.into_iter();
        Ok(bindings.find(|b| b.scope == slot.scope && b.question == slot.question))
    }

    /// The trial that an order describes. What it leaves out is taken from the trial that runs, when that is of the
    /// same version, then from the version's last binding.
    pub(super) fn trial_of(&self, order: TrialOrder, by: &By) -> Result<TrialRecord, DeskError> {
        let TrialOrder {
            slot,
            sha256,
            stage,
            config,
            budget,
            reuse,
        } = order;
        refuse_untried(&slot)?;
        let running = self.rollout(&slot)?.trial;
        let sha256 = match (sha256, &running) {
            (Some(sha256), _) => sha256,
            (None, Some(running)) => running.sha256.clone(),
            (None, None) => return Err(no_trial(&slot)),
        };
        let running = running.filter(|running| running.sha256 == sha256);
        let config = config.or_else(|| running.as_ref().map(|running| running.config.clone()));
        let reuse = reuse.or(running.as_ref().map(|running| running.reuse));
        let known = self.known_with(&slot, &sha256, (config, reuse))?;
        Ok(TrialRecord {
            name: running
                .as_ref()
                .map_or(known.name, |running| running.name.clone()),
            sha256,
            config: known.config,
            reuse: known.reuse,
            stage,
            budget: budget
                .or(running.map(|running| running.budget))
                .unwrap_or_default(),
            actor: by.actor.clone(),
            reason: by.reason.clone(),
            at: self.parts.clock.now(),
        })
    }

    pub(super) fn on_trial(
        &self,
        rollout: &RolloutRecord,
        slot: &PolicySlot,
    ) -> Result<TrialRecord, DeskError> {
        rollout.trial.clone().ok_or_else(|| no_trial(slot))
    }

    fn hold(&self, by: &By) -> HoldRecord {
        HoldRecord {
            actor: by.actor.clone(),
            reason: by.reason.clone(),
            at: self.parts.clock.now(),
        }
    }

    fn change_hold(
        &self,
        slot: &PolicySlot,
        change: RolloutChange,
        by: &By,
        set: impl FnOnce(&mut RolloutRecord) -> Result<(), DeskError>,
    ) -> Result<RolloutRecord, DeskError> {
        let _changing = self.changing.lock();
        let mut rollout = self.rollout(slot)?;
        set(&mut rollout)?;
        if change == RolloutChange::Enable {
            self.check_enabled(slot, &rollout)?;
        }
        let changes_answers = matches!(change, RolloutChange::Disable | RolloutChange::Enable);
        // Loaded before the store is told: a change that is acknowledged is in force.
        let table = if changes_answers {
            let table = self.table.load();
            let bound = self.bound(slot)?;
            let load = |slot: &PolicySlot, told: Told<'_>| self.load_stored(slot, told);
            Some(self.placed(&table, slot, (bound, &rollout), &mut Restored::default(), &load))
        } else {
            None
        };
        self.write(rollout.clone(), (change, slot.to_string()), by)?;
        if let Some(table) = table {
            self.table.store(Arc::new(table));
        }
        if changes_answers || change == RolloutChange::Unpin {
            // A budget that was spent meanwhile could not be enforced: the calls from here on are judged anew.
            self.retally(slot);
        }
        Ok(rollout)
    }

    fn write(
        &self,
        rollout: RolloutRecord,
        (change, subject): (RolloutChange, String),
        by: &By,
    ) -> Result<(), DeskError> {
        let slot = PolicySlot::new(rollout.scope.clone(), rollout.question);
        let deed = RolloutDeed {
            change,
            subject,
            actor: by.actor.clone(),
            reason: self.told_reason(&slot, by),
            at: self.parts.clock.now(),
        };
        let bound = self.bound(&slot)?;
        let told = (bound.as_ref(), &rollout);
        if change == RolloutChange::Disable {
            // Whoever stops a policy stops it, wherever that can be told.
            self.share_if_possible(&slot, told, by)?;
        } else {
            self.refuse_alone(&slot, by)?;
            self.share(&slot, told, by)?;
        }
        Ok(self.parts.store.put_rollout(rollout, deed)?)
    }
}

/// Refuses whatever would change who answers while the slot is pinned.
pub(super) fn refuse_if_pinned(rollout: &RolloutRecord, slot: &PolicySlot) -> Result<(), DeskError> {
    match &rollout.pinned {
        None => Ok(()),
        Some(pin) => Err(DeskError::Pinned {
            slot: slot.clone(),
            pin: pin.clone(),
        }),
    }
}

/// Refuses a trial that nothing would ever be asked of: a request is what versions are tried on.
fn refuse_untried(slot: &PolicySlot) -> Result<(), DeskError> {
    match slot.question {
        QuestionKind::Invalidation => Err(DeskError::Conflict(format!(
            "{slot} cannot be tried on traffic: an invalidation policy is asked about events, never about a request; \
             activate the version, and roll back if it is worse"
        ))),
        QuestionKind::Residency | QuestionKind::Cost | QuestionKind::Routing => Ok(()),
    }
}

fn no_trial(slot: &PolicySlot) -> DeskError {
    DeskError::NotFound(format!(
        "a version on trial in {slot} (a shadow or a canary puts one there)"
    ))
}

fn subject_of(slot: &PolicySlot, trial: &TrialRecord) -> String {
    format!("{slot}: {} {}", trial.name, trial.sha256)
}

/// What a roll-back brings back: the binding under the one in force, as an editor's undo would. A roll-back takes away
/// what it went back over, so that two of them in a row go two steps, not there and back.
fn before(history: &[BindingRecord], is_bound: bool) -> Option<&BindingRecord> {
    let same = |a: &BindingRecord, b: &BindingRecord| {
        (&a.sha256, &a.config, a.reuse) == (&b.sha256, &b.config, b.reuse)
    };
    let mut steps: Vec<&BindingRecord> = Vec::new();
    for binding in history {
        let known = steps.iter().rposition(|step| same(step, binding));
        match (binding.how, known) {
            (BindingChange::RollBack, Some(step)) => steps.truncate(step + 1),
            _ if steps.last().is_some_and(|last| same(last, binding)) => {}
            _ => steps.push(binding),
        }
    }
    if is_bound {
        steps.pop();
    }
    steps.pop()
}

#[cfg(test)]
pub(super) mod tests;
