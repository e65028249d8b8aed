//! What each version costs: calls and faults since the last change of its slot, and its budget.

use super::{DeskError, PolicyDesk, PolicySlot};
use portolan_base::TenantName;
use portolan_decide::{BudgetMeter, PathRecord, PolicyRecord, ShadowRecord, Spent, TrialStage};
use portolan_policy::{PolicySource, Scope};
use portolan_ports::{BindingRecord, RolloutRecord};
use serde::Serialize;
use std::collections::HashMap;

/// Outcome of a call that found its lane full. Others may have filled it, so it is on nobody's budget.
const SATURATED: &str = "saturated";

/// How often a version was asked since the last change of its slot on this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Calls that counted for a request.
    pub calls: u64,
    /// Those that ended in the fallback.
    pub faults: u64,
    /// Calls as a shadow.
    pub shadow_calls: u64,
    /// Those that ended in a fault.
    pub shadow_faults: u64,
    /// Those that would have decided otherwise.
    pub shadow_differs: u64,
}

/// A version whose budget is spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Where it answers.
    pub slot: PolicySlot,
    /// SHA-256 of its component.
    pub version: String,
    /// In numbers.
    pub spent: Spent,
    /// The latest fault that counted, in words.
    pub last_fault: Option<String>,
}

/// Tallies by slot and version.
#[derive(Debug, Default)]
pub(super) struct Tallies(HashMap<PolicySlot, HashMap<String, Tally>>);

#[derive(Debug, Default)]
struct Tally {
    counts: Counts,
    meter: Option<BudgetMeter>,
    last_fault: Option<String>,
}

impl Tallies {
    fn of(&mut self, call: &PolicyRecord, tenant: Option<&TenantName>) -> Option<(PolicySlot, &mut Tally)> {
        let scope = scope_of(call, tenant)?;
        let slot = PolicySlot::new(scope, call.question);
        let versions = self.0.entry(slot.clone()).or_default();
        Some((slot, versions.entry(call.version.clone()).or_default()))
    }
}

/// Whose policy answered a call that was made for `tenant`; none where it is built in.
pub(super) fn scope_of(call: &PolicyRecord, tenant: Option<&TenantName>) -> Option<Scope> {
    match call.source {
        PolicySource::BuiltIn => None,
        PolicySource::Platform => Some(Scope::Platform),
        PolicySource::Tenant => tenant.cloned().map(Scope::Tenant),
    }
}

impl PolicyDesk {
    /// Counts the calls of a request that was settled. What it gives is to be handed to [`PolicyDesk::enforce`], off
    /// the request's way. Does not block on the disk.
    pub fn observe(&self, record: &PathRecord) -> Vec<Breach> {
        self.observe_calls(Some(&record.tenant), &record.policies)
    }

    /// The same of calls that were made for a tenant, or for nobody.
    pub fn observe_calls(&self, tenant: Option<&TenantName>, calls: &[PolicyRecord]) -> Vec<Breach> {
        let mut tallies = self.tallies.lock();
        let mut breaches = Vec::new();
        let mut used = self.used.lock();
        for call in calls {
            used.count(call, tenant, false);
            let Some((slot, tally)) = tallies.of(call, tenant) else {
                continue;
            };
            let failed = call.outcome != "ok";
            tally.counts.calls += 1;
            tally.counts.faults += u64::from(failed);
            let at_fault = failed && call.outcome != SATURATED;
            if at_fault && tally.meter.is_some() {
                tally.last_fault = Some(call.detail.as_ref().unwrap_or(&call.outcome).clone());
            }
            let spent = tally
                .meter
                .as_mut()
                .and_then(|meter| meter.observe(at_fault, call.micros));
            breaches.extend(spent.map(|spent| Breach {
                slot,
                version: call.version.clone(),
                spent,
                last_fault: tally.last_fault.clone(),
            }));
        }
        breaches
    }

    /// Counts what the shadows of a request would have done.
    pub fn observe_shadows(&self, record: &PathRecord, shadows: &[ShadowRecord]) {
        let mut tallies = self.tallies.lock();
        let mut used = self.used.lock();
        for shadow in shadows {
            used.count(&shadow.call, Some(&record.tenant), true);
            if let Some((_, tally)) = tallies.of(&shadow.call, Some(&record.tenant)) {
                tally.counts.shadow_calls += 1;
                tally.counts.shadow_faults += u64::from(shadow.call.outcome != "ok");
                tally.counts.shadow_differs += u64::from(shadow.differs.is_some());
            }
        }
    }

    /// How often each version of a slot was asked, by SHA-256.
    pub fn counts(&self, slot: &PolicySlot) -> HashMap<String, Counts> {
        let tallies = self.tallies.lock();
        let versions = tallies.0.get(slot).into_iter().flatten();
        versions
            .map(|(version, tally)| (version.clone(), tally.counts))
            .collect()
    }

    /// Begins the tallies of a slot anew, with the budgets that hold from this change on. Only called while `changing`
    /// is held.
    pub(super) fn retally(&self, slot: &PolicySlot) {
        match self.state_of(slot) {
            Ok((bound, rollout)) => self.retally_as(slot, bound, rollout),
            // The change itself is made; what is lost is that its budget is watched.
            Err(error) => tracing::error!(%slot, %error, "the budgets of a slot cannot be read"),
        }
    }

    fn state_of(&self, slot: &PolicySlot) -> Result<(Option<BindingRecord>, RolloutRecord), DeskError> {
        Ok((self.bound(slot)?, self.rollout(slot)?))
    }

    fn retally_as(&self, slot: &PolicySlot, bound: Option<BindingRecord>, rollout: RolloutRecord) {
        let bound = bound.and_then(|bound| Some((bound.sha256, bound.budget?)));
        let trial = rollout
            .trial
            .filter(|trial| matches!(trial.stage, TrialStage::Canary { .. }));
        let budgets = bound
            .into_iter()
            .chain(trial.map(|trial| (trial.sha256, trial.budget)))
            // A disabled slot's calls fail by order of a person.
            .filter(|_| rollout.disabled.is_none());
        let versions = budgets.map(|(version, budget)| {
            let tally = Tally {
                counts: Counts::default(),
                meter: Some(BudgetMeter::new(budget)),
                last_fault: None,
            };
            (version, tally)
        });
        self.tallies.lock().0.insert(slot.clone(), versions.collect());
    }
}
