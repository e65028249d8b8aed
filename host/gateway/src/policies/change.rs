//! The changes: upload, push, activate, unbind.

use super::bound;
use super::load::{Told, check_config};
use super::rollout::refuse_if_pinned;
use super::unavailable::Unavailable;
use super::{Activation, By, DeskError, PolicyDesk, PolicySlot, Sender, Stored, Upload, Uploaded};
use bytes::Bytes;
use portolan_base::id::check_name;
use portolan_decide::{Budget, PolicyTable};
use portolan_policy::Policy;
use portolan_ports::{
    BindingChange, BindingRecord, EnforcedRecord, NewVersion, PolicyOwner, PolicyReport, Rehearsal, Reuse,
    VersionRecord, VersionSignature,
};
use std::sync::Arc;

/// An upload that was found good: checked, compiled and loaded once.
struct Proven {
    report: PolicyReport,
    compiled: Bytes,
    signatures: Vec<VersionSignature>,
    policy: Arc<dyn Policy>,
    config: String,
}

/// A binding before it is made.
pub(super) struct NewBinding {
    pub(super) name: String,
    pub(super) sha256: String,
    pub(super) config: String,
    pub(super) budget: Option<Budget>,
    pub(super) reuse: Reuse,
    pub(super) how: BindingChange,
    pub(super) in_place_of: Option<EnforcedRecord>,
}

impl NewBinding {
    /// An earlier binding, to be made again.
    pub(super) fn again(earlier: BindingRecord) -> Self {
        Self {
            name: earlier.name,
            sha256: earlier.sha256,
            config: earlier.config,
            budget: earlier.budget,
            reuse: earlier.reuse,
            how: BindingChange::RollBack,
            in_place_of: None,
        }
    }
}

/// What is said, in the log, to a sender that left.
pub(super) fn left(slot: &PolicySlot) -> DeskError {
    DeskError::Conflict(format!(
        "whoever sent it left while it was compiled: it is kept for {slot}, and not active"
    ))
}

impl PolicyDesk {
    /// Keeps a component and makes it active.
    pub fn upload(&self, upload: Upload, by: &By) -> Result<Uploaded, DeskError> {
        self.upload_from(upload, by, &Sender::Stays)
    }

    /// The same for a sender that may leave meanwhile: the component is then kept and not made active.
    pub fn upload_from(&self, upload: Upload, by: &By, sender: &Sender) -> Result<Uploaded, DeskError> {
        self.refuse_alone(&upload.slot, by)?;
        refuse_if_pinned(&self.rollout(&upload.slot)?, &upload.slot)?;
        let proven = self.prove(&upload)?;
        let (name, keeps_config) = (upload.name.clone(), upload.config.is_none());
        let (budget, reuse) = (upload.budget, upload.reuse);
        let slot = upload.slot.clone();
        let _changing = self.changing.lock();
        if keeps_config && self.config_in_force(&slot, &name)?.0 != proven.config {
            return Err(DeskError::Conflict(format!(
                "the configuration of {slot} changed while the component was checked with the one before; send it again"
            )));
        }
        let made = (proven.compiled, proven.signatures);
        let version = self.keep(upload, (&proven.report.sha256, made), by)?;
        if sender.has_left() {
            return Err(left(&slot));
        }
        let new = NewBinding {
            name,
            sha256: version.sha256.clone(),
            config: proven.config,
            budget,
            reuse,
            how: BindingChange::Activate,
            in_place_of: None,
        };
        let binding = self.bind(&slot, (new, proven.policy), by)?;
        Ok(Uploaded {
            version,
            report: proven.report,
            binding,
        })
    }

    /// Keeps a component without making it active.
    pub fn push(&self, upload: Upload, by: &By) -> Result<Stored, DeskError> {
        let proven = self.prove(&upload)?;
        let _changing = self.changing.lock();
        let made = (proven.compiled, proven.signatures);
        let version = self.keep(upload, (&proven.report.sha256, made), by)?;
        Ok(Stored {
            version,
            report: proven.report,
            config: proven.config,
        })
    }

    /// Makes a stored version active: the first time, or again, which is a roll-back.
    pub fn activate(&self, activation: Activation, by: &By) -> Result<BindingRecord, DeskError> {
        let Activation {
            slot,
            sha256,
            config,
            budget,
            reuse,
        } = activation;
        if let Some(budget) = &budget {
            budget.check()?;
        }
        let known = self.known_with(&slot, &sha256, (config, reuse))?;
        let policy = self.load_stored(&slot, known.as_told())?;
        let _changing = self.changing.lock();
        let new = NewBinding {
            name: known.name,
            sha256,
            config: known.config,
            budget,
            reuse: known.reuse,
            how: BindingChange::Activate,
            in_place_of: None,
        };
        self.bind(&slot, (new, policy), by)
    }

    /// Removes a binding: from then on the platform's policy answers, or the built-in one.
    pub fn unbind(&self, slot: &PolicySlot, by: &By) -> Result<(), DeskError> {
        let _changing = self.changing.lock();
        self.refuse_alone(slot, by)?;
        refuse_if_pinned(&self.rollout(slot)?, slot)?;
        let (now, rollout) = (self.parts.clock.now(), self.rollout(slot)?);
        self.share(slot, (None, &rollout), by)?;
        self.parts
            .store
            .unbind(&slot.scope, slot.question, &by.actor, &by.reason, now)?;
        self.missing.lock().remove(slot);
        self.swap(|table| table.without(&slot.scope, slot.question));
        self.retally(slot);
        Ok(())
    }

    /// Checks, compiles and loads, touching neither store nor table.
    fn prove(&self, upload: &Upload) -> Result<Proven, DeskError> {
        check_name(&upload.name)?;
        let (config, told) = match &upload.config {
            Some(config) => (config.clone(), None),
            None => self.config_in_force(&upload.slot, &upload.name)?,
        };
        check_config(&config)?;
        let names = self.names(&upload.slot);
        let rehearsal = Rehearsal {
            config: &config,
            names: Some(&names),
            owner: Some(PolicyOwner {
                scope: &upload.slot.scope,
                name: &upload.name,
            }),
        };
        let mut report =
            self.parts
                .loader
                .check(Some(upload.slot.question), &upload.component, Some(rehearsal));
        report.findings.extend(told);
        if !report.ok {
            return Err(DeskError::of_report(report));
        }
        let signatures = self.check_upload(upload, &mut report)?;
        if let Some(budget) = &upload.budget {
            budget.check()?;
        }
        let compiled = Bytes::from(self.parts.loader.compile(&upload.component)?);
        let told = Told {
            name: &upload.name,
            sha256: &report.sha256,
            config: &config,
            reuse: upload.reuse,
        };
        let binding = self.binding(&upload.slot, told);
        let policy = self
            .parts
            .loader
            .load(&binding, &upload.component, Some(&compiled))?;
        Ok(Proven {
            report,
            compiled,
            signatures,
            policy,
            config,
        })
    }

    /// Tells the store of a component, and prunes what made room for it. Only called while `changing` is held.
    fn keep(
        &self,
        upload: Upload,
        (sha256, (compiled, signatures)): (&str, (Bytes, Vec<VersionSignature>)),
        by: &By,
    ) -> Result<VersionRecord, DeskError> {
        let room = self.room_for(&upload.slot, (sha256, upload.component.len() as u64))?;
        let version = self.parts.store.put_version(NewVersion {
            scope: upload.slot.scope,
            question: upload.slot.question,
            name: upload.name,
            component: upload.component,
            compiled,
            signatures,
            actor: by.actor.clone(),
            reason: by.reason.clone(),
            at: self.parts.clock.now(),
        })?;
        self.prune(room);
        Ok(version)
    }

    /// Tells the store of a binding and puts the policy in place. Only called while `changing` is held.
    pub(super) fn bind(
        &self,
        slot: &PolicySlot,
        (new, policy): (NewBinding, Arc<dyn Policy>),
        by: &By,
    ) -> Result<BindingRecord, DeskError> {
        self.refuse_alone(slot, by)?;
        let rollout = self.rollout(slot)?;
        refuse_if_pinned(&rollout, slot)?;
        self.check_stored(slot, &new.sha256)?;
        let binding = BindingRecord {
            scope: slot.scope.clone(),
            question: slot.question,
            name: new.name,
            sha256: new.sha256,
            config: new.config,
            budget: new.budget,
            reuse: new.reuse,
            how: new.how,
            in_place_of: new.in_place_of,
            ended: None,
            generation: 0,
            actor: by.actor.clone(),
            reason: by.reason.clone(),
            at: self.parts.clock.now(),
        };
        let rollout = rollout.after_binding(&binding);
        self.share(slot, (Some(&binding), &rollout), by)?;
        let binding = self.parts.store.bind(binding)?;
        self.missing.lock().remove(slot);
        let policy = match &rollout.disabled {
            None => policy,
            Some(hold) => Arc::new(Unavailable::disabled(
                slot,
                (&binding.name, &binding.sha256),
                hold,
            )),
        };
        let policy = bound::bound(policy, &binding);
        self.swap(|table| {
            let table = table.with(slot.scope.clone(), slot.question, policy);
            match rollout.trial {
                Some(_) => table,
                None => table.without_trial(&slot.scope, slot.question),
            }
        });
        self.retally(slot);
        Ok(binding)
    }

    /// Puts a changed table in place. Only called while `changing` is held.
    pub(super) fn swap(&self, change: impl FnOnce(&PolicyTable) -> PolicyTable) {
        let table = change(&self.table.load());
        self.table.store(Arc::new(table));
    }
}
