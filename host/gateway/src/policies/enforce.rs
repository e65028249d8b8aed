//! What is done about a spent budget, and what the policy's owner is told of it.

use super::order::{BUDGET, RollBack};
use super::tally::Breach;
use super::{By, DeskError, PolicyDesk};
use portolan_decide::TrialStage;
use portolan_ports::{BindingRecord, Enforced, EnforcedRecord, Successor, TrialRecord, config_digest};

impl PolicyDesk {
    /// Takes a version whose budget is spent out of force, unless somebody did meanwhile. `None`: there was nothing to
    /// do, or nothing may be done since the binding is pinned or has none before it. A budget that stays spent is told again,
    /// so that what could not be done is tried again.
    pub fn enforce(&self, breach: &Breach) -> Result<Option<Enforced>, DeskError> {
        let (slot, version, spent) = (&breach.slot, &breach.version, &breach.spent);
        let by = By::host(BUDGET, &spent.to_string());
        {
            let _changing = self.changing.lock();
            let rollout = self.rollout(slot)?;
            if let Some(trial) = rollout.trial.as_ref().filter(|trial| trial.sha256 == *version) {
                let bound = self.bound(slot)?;
                let told = self.told_of_trial(breach, trial, bound.as_ref());
                self.end_trial(rollout.with_enforced(told), &by)?;
                tracing::warn!(%slot, version, %spent, "the trial of a policy was withdrawn: its budget is spent");
                return Ok(Some(Enforced::Withdrawn));
            }
            if let Some(pin) = rollout.pinned {
                let who = pin.actor;
                tracing::warn!(%slot, version, %spent, pinned_by = who, "the budget of a pinned policy is spent, and it stays bound");
                return Ok(None);
            }
        }
        let Some(bound) = self.bound(slot)?.filter(|bound| bound.sha256 == *version) else {
            return Ok(None);
        };
        let order = RollBack {
            slot: slot.clone(),
            to: None,
        };
        let told = self.told_of_binding(breach, &bound);
        match self.roll_back_from(&order, (Some(&bound), Some(told)), &by) {
            Ok(back) => {
                let to = back.sha256;
                tracing::warn!(%slot, version, to, %spent, "a policy was rolled back: its budget is spent");
                Ok(Some(Enforced::RolledBack))
            }
            Err(
                error @ (DeskError::Pinned { .. }
                | DeskError::NotFound(_)
                | DeskError::Conflict(_)
                | DeskError::Rejected(_)
                | DeskError::CompileLimit(_)),
            ) => {
                tracing::warn!(%slot, version, %spent, %error, "the budget of a policy is spent, and it stays bound");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn told_of_trial(
        &self,
        breach: &Breach,
        trial: &TrialRecord,
        bound: Option<&BindingRecord>,
    ) -> EnforcedRecord {
        EnforcedRecord {
            done: Enforced::Withdrawn,
            name: trial.name.clone(),
            sha256: trial.sha256.clone(),
            config_digest: config_digest(&trial.config),
            percent: match trial.stage {
                TrialStage::Canary { percent } => Some(percent),
                TrialStage::Shadow => None,
            },
            generation: None,
            spent: breach.spent,
            last_fault: breach.last_fault.clone(),
            instead: bound.map(Successor::from),
            at: self.parts.clock.now(),
        }
    }

    fn told_of_binding(&self, breach: &Breach, bound: &BindingRecord) -> EnforcedRecord {
        EnforcedRecord {
            done: Enforced::RolledBack,
            name: bound.name.clone(),
            sha256: bound.sha256.clone(),
            config_digest: config_digest(&bound.config),
            percent: None,
            generation: Some(bound.generation),
            spent: breach.spent,
            last_fault: breach.last_fault.clone(),
            instead: None,
            at: self.parts.clock.now(),
        }
    }
}
