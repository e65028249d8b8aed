//! Four eyes: a change of the platform's policies by one operator waits until another one approves it.
//!
//! What is proposed is written out and kept with the state of its slot; approving it does exactly that, or nothing when
//! the slot has changed meanwhile. One change is open to a single operator, because waiting would cost more than it
//! saves: taking a question out of force (`disable`). The host's own changes, a spent budget, wait for nobody.

use super::change::left;
use super::load::Told;
use super::order::Authority;
use super::{
    Activation, By, DeskError, Done, Order, PolicyDesk, PolicySlot, RollBack, Sender, Stored, TrialOrder,
    Upload, UploadDone,
};
use portolan_policy::Scope;
use portolan_ports::{
    BindingRecord, ProposalRecord, ProposalState, ProposedChange, RolloutRecord, SlotState, Verdict,
    VerdictKind,
};
use std::time::Duration;

/// That changes of the platform's policies wait for a second operator.
#[derive(Clone, Copy, Debug)]
pub struct FourEyes {
    /// How long a proposal can be approved.
    pub expiry: Duration,
}

/// What came of a decision.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The proposal with its verdict.
    pub proposal: ProposalRecord,
    /// What was done, when it was approved.
    pub done: Option<Done>,
}

impl PolicyDesk {
    /// Does what is ordered, or proposes it where a second operator is needed.
    pub fn submit(&self, order: Order, by: &By) -> Result<Done, DeskError> {
        let alone = matches!(order, Order::Disable(_));
        match self.four_eyes_over(order.slot()) {
            Some(rule) if !alone => Ok(Done::Proposed(Box::new(self.propose(order, by, rule)?))),
            _ => self.perform(order, by),
        }
    }

    /// Keeps a component and makes it active, or proposes that where a second operator is needed.
    pub fn submit_upload(&self, upload: Upload, by: &By, sender: &Sender) -> Result<UploadDone, DeskError> {
        if self.four_eyes_over(&upload.slot).is_none() {
            let uploaded = self.upload_from(upload, by, sender)?;
            let stored = Stored {
                version: uploaded.version,
                report: uploaded.report,
                config: uploaded.binding.config.clone(),
            };
            let done = Done::Bound(Box::new(uploaded.binding));
            return Ok(UploadDone { stored, done });
        }
        let slot = upload.slot.clone();
        let (budget, reuse) = (upload.budget, upload.reuse);
        let stored = self.push(upload, by)?;
        if sender.has_left() {
            return Err(left(&slot));
        }
        let order = Order::Activate(Activation {
            slot,
            sha256: stored.version.sha256.clone(),
            config: Some(stored.config.clone()),
            budget,
            reuse: Some(reuse),
        });
        let done = self.submit(order, by)?;
        Ok(UploadDone { stored, done })
    }

    /// Every proposal with where it stands, newest first.
    pub fn proposals(&self) -> Result<Vec<(ProposalRecord, ProposalState)>, DeskError> {
        let now = self.parts.clock.now();
        let mut proposals = self.parts.store.proposals()?;
        proposals.reverse();
        let with_state = |proposal: ProposalRecord| {
            let state = proposal.state(now);
            (proposal, state)
        };
        Ok(proposals.into_iter().map(with_state).collect())
    }

    /// Approves a proposal, which does what it says, or rejects it. Whoever made it may reject it, not approve it.
    pub fn decide(&self, id: u64, kind: VerdictKind, by: &By) -> Result<Decision, DeskError> {
        let _proposing = self.proposing.lock();
        let mut proposals = self.proposals()?.into_iter();
        let found = proposals.find(|(proposal, _)| proposal.id == id);
        let (proposal, state) = found.ok_or_else(|| DeskError::NotFound(format!("proposal {id}")))?;
        if let Some(closed) = closed(state) {
            return Err(DeskError::Conflict(format!("proposal {id} {closed}")));
        }
        let done = match kind {
            VerdictKind::Rejected => None,
            VerdictKind::Approved => Some(self.approved(&proposal, by)?),
        };
        let verdict = Some(Verdict {
            kind,
            actor: by.actor.clone(),
            reason: by.reason.clone(),
            at: self.parts.clock.now(),
        });
        let proposal = ProposalRecord { verdict, ..proposal };
        match (self.parts.store.put_proposal(proposal.clone()), &done) {
            (Err(error), None) => return Err(error.into()),
            // The change is made and audited; the proposal stays open and can do nothing more, as its slot changed.
            (Err(error), Some(_)) => tracing::error!(id, %error, "an approved proposal could not be closed"),
            (Ok(()), _) => {}
        }
        Ok(Decision { proposal, done })
    }

    fn approved(&self, proposal: &ProposalRecord, by: &By) -> Result<Done, DeskError> {
        if by.actor == proposal.actor {
            let text = format!(
                "proposal {} is {}'s own; another operator must approve it",
                proposal.id, by.actor
            );
            return Err(DeskError::NotYours(text));
        }
        let both = By {
            actor: format!("{}, with {}", proposal.actor, by.actor),
            reason: format!(
                "{} (proposal {}, approved: {})",
                proposal.reason, proposal.id, by.reason
            ),
            authority: Authority::Approved(Box::new(proposal.found.clone())),
        };
        self.perform(order_of(proposal), &both)
    }

    /// Refuses what needs a second person and has none, and what was approved for a slot that has changed since. Called
    /// while `changing` is held, wherever store and table change.
    pub(super) fn refuse_alone(&self, slot: &PolicySlot, by: &By) -> Result<(), DeskError> {
        match &by.authority {
            Authority::Host => Ok(()),
            Authority::Own if self.four_eyes_over(slot).is_none() => Ok(()),
            Authority::Own => Err(DeskError::NeedsApproval(slot.clone())),
            Authority::Approved(found) if self.slot_state(slot)? == **found => Ok(()),
            Authority::Approved(_) => {
                let text = format!("{slot} has changed since that was proposed; reject it and propose anew");
                Err(DeskError::Conflict(text))
            }
        }
    }

    /// The reason as the audit log tells it: a change that one operator made alone where two are the rule stands out.
    pub(super) fn told_reason(&self, slot: &PolicySlot, by: &By) -> String {
        match by.authority {
            Authority::Own if self.four_eyes_over(slot).is_some() => {
                format!("{} (alone, without approval)", by.reason)
                    .trim_start()
                    .to_owned()
            }
            _ => by.reason.clone(),
        }
    }

    fn four_eyes_over(&self, slot: &PolicySlot) -> Option<FourEyes> {
        self.four_eyes.filter(|_| slot.scope == Scope::Platform)
    }

    fn propose(&self, order: Order, by: &By, rule: FourEyes) -> Result<ProposalRecord, DeskError> {
        let slot = order.slot().clone();
        let found = self.slot_state(&slot)?;
        let change = self.written_out(order, by)?;
        let _proposing = self.proposing.lock();
        let (proposals, now) = (self.parts.store.proposals()?, self.parts.clock.now());
        let same = |open: &&ProposalRecord| {
            let slots = (&open.scope, open.question) == (&slot.scope, slot.question);
            slots && open.change == change && open.state(now) == ProposalState::Pending && open.found == found
        };
        if let Some(open) = proposals.iter().find(same) {
            let text = format!("proposal {} of {} asks for that already", open.id, open.actor);
            return Err(DeskError::Conflict(text));
        }
        let proposal = ProposalRecord {
            id: proposals.last().map_or(1, |last| last.id + 1),
            scope: slot.scope,
            question: slot.question,
            change,
            found,
            actor: by.actor.clone(),
            reason: by.reason.clone(),
            at: now,
            expires: now + rule.expiry,
            verdict: None,
        };
        self.parts.store.put_proposal(proposal.clone())?;
        Ok(proposal)
    }

    /// An order with all that it leaves open filled in, refused when it could not be carried out now.
    fn written_out(&self, order: Order, by: &By) -> Result<ProposedChange, DeskError> {
        Ok(match order {
            Order::Activate(Activation {
                slot,
                sha256,
                config,
                budget,
                reuse,
            }) => {
                budget.iter().try_for_each(|budget| budget.check())?;
                let known = self.known_with(&slot, &sha256, (config, reuse))?;
                self.check_stored(&slot, &sha256)?;
                self.load_stored(&slot, known.as_told())?;
                ProposedChange::Activate {
                    sha256,
                    config: known.config,
                    budget,
                    reuse: known.reuse,
                }
            }
            Order::Try(order) => {
                let slot = order.slot.clone();
                let trial = self.trial_of(order, by)?;
                trial.budget.check()?;
                self.check_stored(&slot, &trial.sha256)?;
                self.load_stored(&slot, Told::from(&trial))?;
                ProposedChange::Try {
                    sha256: trial.sha256,
                    config: trial.config,
                    budget: trial.budget,
                    reuse: trial.reuse,
                    stage: trial.stage,
                }
            }
            Order::Promote(slot) => {
                let trial = self.on_trial(&self.rollout(&slot)?, &slot)?;
                ProposedChange::Promote { sha256: trial.sha256 }
            }
            Order::Withdraw(slot) => {
                self.on_trial(&self.rollout(&slot)?, &slot)?;
                ProposedChange::Withdraw
            }
            Order::RollBack(order) => {
                let earlier = self.earlier(&order, self.bound(&order.slot)?.as_ref())?;
                self.check_stored(&order.slot, &earlier.sha256)?;
                ProposedChange::Rollback {
                    sha256: earlier.sha256,
                    config: earlier.config,
                    reuse: earlier.reuse,
                    to: order.to,
                }
            }
            Order::Unbind(slot) => {
                let bound = self.bound(&slot)?;
                bound.ok_or_else(|| DeskError::NotFound(format!("a binding of {slot}")))?;
                ProposedChange::Unbind
            }
            Order::Pin(_) => ProposedChange::Pin,
            Order::Unpin(_) => ProposedChange::Unpin,
            Order::Disable(_) => ProposedChange::Disable,
            Order::Enable(_) => ProposedChange::Enable,
        })
    }

    fn slot_state(&self, slot: &PolicySlot) -> Result<SlotState, DeskError> {
        Ok(SlotState {
            bound: self.bound(slot)?.map(|binding| binding.generation),
            made: self.history(slot)?.last().map_or(0, |last| last.generation),
            rollout: self.rollout(slot)?,
        })
    }

    fn perform(&self, order: Order, by: &By) -> Result<Done, DeskError> {
        let bound = |binding: BindingRecord| Done::Bound(Box::new(binding));
        let rollout = |rollout: RolloutRecord| Done::Rollout(Box::new(rollout));
        match order {
            Order::Activate(activation) => self.activate(activation, by).map(bound),
            Order::Try(order) => self.try_out(order, by).map(rollout),
            Order::Promote(slot) => self.promote(&slot, by).map(bound),
            Order::Withdraw(slot) => self.withdraw(&slot, by).map(rollout),
            Order::RollBack(order) => self.roll_back(&order, by).map(bound),
            Order::Unbind(slot) => self.unbind(&slot, by).map(|()| Done::Unbound),
            Order::Pin(slot) => self.pin(&slot, by).map(rollout),
            Order::Unpin(slot) => self.unpin(&slot, by).map(rollout),
            Order::Disable(slot) => self.disable(&slot, by).map(rollout),
            Order::Enable(slot) => self.enable(&slot, by).map(rollout),
        }
    }
}

/// Why a proposal cannot be decided on any more.
const fn closed(state: ProposalState) -> Option<&'static str> {
    match state {
        ProposalState::Pending => None,
        ProposalState::Approved => Some("was approved already"),
        ProposalState::Rejected => Some("was rejected"),
        ProposalState::Expired => Some("has expired; propose anew"),
    }
}

fn order_of(proposal: &ProposalRecord) -> Order {
    let slot = PolicySlot::new(proposal.scope.clone(), proposal.question);
    match proposal.change.clone() {
        ProposedChange::Activate {
            sha256,
            config,
            budget,
            reuse,
        } => Order::Activate(Activation {
            slot,
            sha256,
            config: Some(config),
            budget,
            reuse: Some(reuse),
        }),
        ProposedChange::Try {
            sha256,
            config,
            budget,
            reuse,
            stage,
        } => Order::Try(TrialOrder {
            slot,
            sha256: Some(sha256),
            stage,
            config: Some(config),
            budget: Some(budget),
            reuse: Some(reuse),
        }),
        ProposedChange::Promote { .. } => Order::Promote(slot),
        ProposedChange::Withdraw => Order::Withdraw(slot),
        ProposedChange::Rollback { to, .. } => Order::RollBack(RollBack { slot, to }),
        ProposedChange::Unbind => Order::Unbind(slot),
        ProposedChange::Pin => Order::Pin(slot),
        ProposedChange::Unpin => Order::Unpin(slot),
        ProposedChange::Disable => Order::Disable(slot),
        ProposedChange::Enable => Order::Enable(slot),
    }
}

#[cfg(test)]
mod tests;
