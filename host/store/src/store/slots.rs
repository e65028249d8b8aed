//! Slots: the binding in force, what holds beside it, and the bindings that were.

use super::SledStore;
use crate::ledger::{Deed, Table, Write};
use crate::slot::{StoredSlot, StoredVersion, history_key, slot_key, slot_prefix, version_key};
use portolan_base::Moment;
use portolan_policy::QuestionKind;
use portolan_ports::{
    BindingRecord, ChangeRecord, HoldRecord, RolloutDeed, RolloutRecord, Scope, StoreError,
};

impl SledStore {
    /// Makes a binding of a stored version; its generation is the next.
    pub(super) fn make_binding(&self, binding: BindingRecord) -> Result<BindingRecord, StoreError> {
        let mut turn = self.turn()?;
        let version = version_key(&binding.scope, binding.question, &binding.sha256);
        if self
            .ledger
            .get::<StoredVersion>(Table::Versions, &version)?
            .is_none()
        {
            return Err(StoreError::NotFound(binding.subject()));
        }
        let slot = self.slot(&binding.scope, binding.question)?;
        let change = ChangeRecord::between(slot.binding.as_ref(), Some(&binding));
        let generation = slot.generation + 1;
        let binding = BindingRecord {
            ended: None,
            generation,
            ..binding
        };
        let plain = || RolloutRecord::plain(binding.scope.clone(), binding.question);
        let rollout = slot.rollout.unwrap_or_else(plain);
        let slot = StoredSlot {
            generation,
            rollout: Some(rollout.after_binding(&binding)),
            binding: Some(binding.clone()),
        };
        let mut writes = self.forgotten_bindings(&binding)?;
        writes.push(Write::new(
            Table::Bindings,
            slot_key(&binding.scope, binding.question),
            &slot,
        )?);
        writes.push(Write::new(Table::History, history_key(&binding), &binding)?);
        let deed = Deed {
            at: binding.at,
            actor: binding.actor.clone(),
            action: binding.how.action(),
            subject: binding.subject(),
            reason: binding.reason.clone(),
        };
        self.ledger.commit(&mut turn, deed.changing(change), writes)?;
        Ok(binding)
    }

    /// Ends the binding in force.
    pub(super) fn end_binding(
        &self,
        (scope, question): (&Scope, QuestionKind),
        (actor, reason): (&str, &str),
        at: Moment,
    ) -> Result<(), StoreError> {
        let mut turn = self.turn()?;
        let slot = self.slot(scope, question)?;
        let Some(binding) = slot.binding else {
            return Err(StoreError::NotFound(format!("a {question} binding of {scope}")));
        };
        let slot = StoredSlot {
            generation: slot.generation + 1,
            binding: None,
            rollout: slot.rollout,
        };
        let change = ChangeRecord::between(Some(&binding), None);
        let ended = BindingRecord {
            ended: Some(HoldRecord {
                actor: actor.to_owned(),
                reason: reason.to_owned(),
                at,
            }),
            ..binding
        };
        let writes = vec![
            Write::new(Table::Bindings, slot_key(scope, question), &slot)?,
            Write::new(Table::History, history_key(&ended), &ended)?,
        ];
        let deed = Deed {
            at,
            actor: actor.to_owned(),
            action: "policy.unbind",
            subject: ended.subject(),
            reason: reason.to_owned(),
        };
        self.ledger.commit(&mut turn, deed.changing(change), writes)
    }

    /// Every binding that was made and is kept, oldest first.
    pub(super) fn bindings_made(
        &self,
        scope: &Scope,
        question: QuestionKind,
    ) -> Result<Vec<BindingRecord>, StoreError> {
        let found = self.ledger.scan(Table::History, &slot_prefix(scope, question))?;
        Ok(found.into_iter().map(|(_, binding)| binding).collect())
    }

    /// Every rollout that is not plain, by slot.
    pub(super) fn rollouts_under_way(&self) -> Result<Vec<RolloutRecord>, StoreError> {
        let slots: Vec<(_, StoredSlot)> = self.ledger.scan(Table::Bindings, "")?;
        let mut rollouts: Vec<RolloutRecord> = slots
            .into_iter()
            .filter_map(|(_, slot)| slot.rollout)
            .filter(|rollout| !rollout.is_plain())
            .collect();
        rollouts.sort_by(|a, b| (&a.scope, a.question).cmp(&(&b.scope, b.question)));
        Ok(rollouts)
    }

    /// Changes what holds beside the binding; a trial is of a stored version.
    pub(super) fn change_rollout(&self, rollout: RolloutRecord, deed: RolloutDeed) -> Result<(), StoreError> {
        let mut turn = self.turn()?;
        if let Some(trial) = &rollout.trial {
            let version = version_key(&rollout.scope, rollout.question, &trial.sha256);
            if self
                .ledger
                .get::<StoredVersion>(Table::Versions, &version)?
                .is_none()
            {
                return Err(StoreError::NotFound(deed.subject));
            }
        }
        let key = slot_key(&rollout.scope, rollout.question);
        let slot = StoredSlot {
            rollout: Some(rollout),
            ..self.slot_at(&key)?
        };
        let write = Write::new(Table::Bindings, key, &slot)?;
        let deed = Deed {
            at: deed.at,
            actor: deed.actor,
            action: deed.change.action(),
            subject: deed.subject,
            reason: deed.reason,
        };
        self.ledger.commit(&mut turn, deed, vec![write])
    }

    /// Every binding in force, by slot.
    pub(super) fn bindings_in_force(&self) -> Result<Vec<BindingRecord>, StoreError> {
        let slots: Vec<(_, StoredSlot)> = self.ledger.scan(Table::Bindings, "")?;
        let mut bindings: Vec<BindingRecord> =
            slots.into_iter().filter_map(|(_, slot)| slot.binding).collect();
        bindings.sort_by(|a, b| (&a.scope, a.question).cmp(&(&b.scope, b.question)));
        Ok(bindings)
    }

    pub(super) fn slot(&self, scope: &Scope, question: QuestionKind) -> Result<StoredSlot, StoreError> {
        self.slot_at(&slot_key(scope, question))
    }

    fn slot_at(&self, key: &str) -> Result<StoredSlot, StoreError> {
        Ok(self.ledger.get(Table::Bindings, key)?.unwrap_or_default())
    }
}
