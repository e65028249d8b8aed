//! One fleet, one set of bindings: a change is told to every process before it is made here, and what others changed is
//! taken over.

use super::order::Authority;
use super::{By, DeskError, PolicyDesk, PolicySlot};
use bytes::Bytes;
use portolan_ports::{
    BindingRecord, NewVersion, RolloutChange, RolloutDeed, RolloutRecord, SharedError, SharedPolicies,
    SharedSlot, VersionRecord,
};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a slot holds: its binding, and what holds beside it.
type State<'a> = (Option<&'a BindingRecord>, &'a RolloutRecord);

/// Why a change of another process was not taken over.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// Something is out of reach at this moment: try again.
    #[error(transparent)]
    Shared(#[from] SharedError),
    /// A component is not what its digest says.
    #[error("the component {0} came with other bytes")]
    OtherBytes(String),
    /// This process cannot use it.
    #[error(transparent)]
    Desk(#[from] DeskError),
}

impl PolicyDesk {
    /// The same desk, whose changes hold at every process of the fleet.
    #[must_use]
    pub fn sharing(mut self, shared: Arc<dyn SharedPolicies>) -> Self {
        self.shared = Some(shared);
        self
    }

    /// Tells the fleet what a slot is to hold. Called before the store is: where the fleet does not take a change, nothing
    /// changes here, and where this process ends in between, it takes over at its next start what it told. What the host
    /// enforces by itself it does all the same, and tells later. Only called while `changing` is held.
    pub(super) fn share(&self, slot: &PolicySlot, state: State<'_>, by: &By) -> Result<(), DeskError> {
        match by.authority {
            Authority::Host => self.share_if_possible(slot, state, by),
            Authority::Own | Authority::Approved(_) => self.tell(slot, state, by),
        }
    }

    /// The same, for a change that is made whether or not the fleet can be told of it.
    pub(super) fn share_if_possible(
        &self,
        slot: &PolicySlot,
        state: State<'_>,
        by: &By,
    ) -> Result<(), DeskError> {
        match self.tell(slot, state, by) {
            Err(DeskError::NotShared(error)) => {
                tracing::warn!(%slot, %error, "a change holds at this process only, until the fleet can be told");
                self.untold.lock().insert(slot.clone());
                Ok(())
            }
            told => told,
        }
    }

    /// Tells the fleet what could not be told when it was changed. Called now and then.
    pub fn share_untold(&self) {
        let untold = self.untold.lock().clone();
        for slot in untold {
            let _changing = self.changing.lock();
            let tell = || {
                let (bound, rollout) = (self.bound(&slot)?, self.rollout(&slot)?);
                self.tell(
                    &slot,
                    (bound.as_ref(), &rollout),
                    &By::host("fleet", "told later"),
                )
            };
            match tell() {
                Ok(()) => {
                    self.untold.lock().remove(&slot);
                }
                Err(error) => tracing::debug!(%slot, %error, "the fleet still does not know of a change"),
            }
        }
    }

    fn tell(&self, slot: &PolicySlot, (binding, rollout): State<'_>, by: &By) -> Result<(), DeskError> {
        let Some(shared) = &self.shared else {
            return Ok(());
        };
        let trial = rollout.trial.as_ref().map(|trial| trial.sha256.as_str());
        let bound = binding.map(|binding| binding.sha256.as_str());
        let wanted: BTreeSet<&str> = bound.into_iter().chain(trial).collect();
        let known = self.versions(slot)?.into_iter();
        let versions: Vec<_> = known
            .filter(|version| wanted.contains(version.sha256.as_str()))
            .collect();
        let component = |version: &VersionRecord| {
            let bytes = self.parts.store.component(&version.sha256)?;
            Ok((version.sha256.clone(), bytes))
        };
        let components: Vec<_> = versions.iter().map(component).collect::<Result<_, DeskError>>()?;
        let state = SharedSlot {
            scope: slot.scope.clone(),
            question: slot.question,
            binding: binding.cloned(),
            rollout: rollout.clone(),
            versions,
            actor: by.actor.clone(),
            reason: by.reason.clone(),
        };
        shared.share(&state, &components).map_err(DeskError::NotShared)
    }

    /// Takes over what a slot holds elsewhere; says whether anything changed here. Blocks for as long as compiling takes.
    ///
    /// # Errors
    /// When a component is out of reach, is not what it says, or cannot be used here: nothing changed then.
    pub fn adopt(&self, state: SharedSlot) -> Result<bool, AdoptError> {
        let slot = PolicySlot::new(state.scope.clone(), state.question);
        if self.holds(&slot, &state)? {
            return Ok(false);
        }
        for version in &state.versions {
            self.bring(&slot, version)?;
        }
        {
            let _changing = self.changing.lock();
            self.store_as(&slot, state).map_err(AdoptError::Desk)?;
            // What it replaces was pruned where it was uploaded, and has to be here too. What cannot go stays: that this
            // slot answers as elsewhere matters more.
            if let Err(error) = self.prune_to_quota(&slot) {
                tracing::warn!(%slot, %error, "more versions are kept than the quota allows");
            }
        }
        self.finish(&slot)?;
        Ok(true)
    }

    /// Whether a slot holds this already.
    fn holds(&self, slot: &PolicySlot, state: &SharedSlot) -> Result<bool, DeskError> {
        let same_binding = same(self.bound(slot)?.as_ref(), state.binding.as_ref());
        Ok(same_binding && self.rollout(slot)? == state.rollout)
    }

    /// Keeps a version of another process, where it is not kept already.
    fn bring(&self, slot: &PolicySlot, version: &VersionRecord) -> Result<(), AdoptError> {
        if self
            .versions(slot)?
            .iter()
            .any(|known| known.sha256 == version.sha256)
        {
            return Ok(());
        }
        let shared = self
            .shared
            .as_ref()
            .ok_or_else(|| SharedError::OutOfReach("no fleet".to_owned()))?;
        let component: Bytes = shared.component(&version.sha256)?;
        if hex::encode(Sha256::digest(&component)) != version.sha256 {
            return Err(AdoptError::OtherBytes(version.sha256.clone()));
        }
        let compiled = self.parts.loader.compile(&component).map_err(DeskError::from)?;
        let _changing = self.changing.lock();
        let kept = self.parts.store.put_version(NewVersion {
            scope: slot.scope.clone(),
            question: slot.question,
            name: version.name.clone(),
            component,
            compiled: compiled.into(),
            signatures: version.signatures.clone(),
            actor: version.actor.clone(),
            reason: version.reason.clone(),
            at: version.at,
        });
        kept.map_err(DeskError::from)?;
        Ok(())
    }

    /// Has the store hold it. Only called while `changing` is held.
    fn store_as(&self, slot: &PolicySlot, state: SharedSlot) -> Result<(), DeskError> {
        let (store, now) = (&self.parts.store, self.parts.clock.now());
        let SharedSlot {
            binding,
            rollout,
            actor,
            reason,
            ..
        } = state;
        let bound = self.bound(slot)?;
        match binding {
            _ if same(bound.as_ref(), binding.as_ref()) => {}
            Some(binding) => {
                store.bind(binding)?;
            }
            None => store.unbind(&slot.scope, slot.question, &actor, &reason, now)?,
        }
        let before = self.rollout(slot)?;
        if before == rollout {
            return Ok(());
        }
        let deed = RolloutDeed {
            change: what_changed(&before, &rollout),
            subject: slot.to_string(),
            actor,
            reason,
            at: now,
        };
        Ok(store.put_rollout(rollout, deed)?)
    }
}

/// Whether two bindings answer alike. Numbers and times are each store's own.
fn same(a: Option<&BindingRecord>, b: Option<&BindingRecord>) -> bool {
    let what = |binding: &BindingRecord| {
        let BindingRecord {
            name,
            sha256,
            config,
            budget,
            reuse,
            ..
        } = binding.clone();
        (name, sha256, config, budget, reuse)
    };
    a.map(what) == b.map(what)
}

/// The word for the audit log: what weighs most, where several things changed.
fn what_changed(before: &RolloutRecord, after: &RolloutRecord) -> RolloutChange {
    match (&before.disabled, &after.disabled, &before.pinned, &after.pinned) {
        (None, Some(_), ..) => RolloutChange::Disable,
        (Some(_), None, ..) => RolloutChange::Enable,
        (_, _, None, Some(_)) => RolloutChange::Pin,
        (_, _, Some(_), None) => RolloutChange::Unpin,
        _ => match &after.trial {
            None => RolloutChange::Withdraw,
            Some(trial) if matches!(trial.stage, portolan_decide::TrialStage::Shadow) => {
                RolloutChange::Shadow
            }
            Some(_) => RolloutChange::Canary,
        },
    }
}

#[cfg(test)]
mod tests;
