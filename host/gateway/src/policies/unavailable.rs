//! Stands in for a bound policy that could not be loaded, or that somebody disabled.

use super::PolicySlot;
use portolan_policy::{Answered, BoundAs, Call, Policy, PolicyDescriptor, PolicyFault, PolicySource, Scope};
use portolan_ports::HoldRecord;

/// Answers every call with [`PolicyFault::Unavailable`]. Leaving the policy out instead would open what a residency
/// policy closes; with this in its place the question's fallback applies, and every path record says why.
pub(super) struct Unavailable {
    descriptor: PolicyDescriptor,
    reason: String,
}

impl Unavailable {
    pub(super) fn new(slot: &PolicySlot, (name, version): (&str, &str), reason: String) -> Self {
        let descriptor = PolicyDescriptor {
            question: slot.question,
            name: name.to_owned(),
            version: version.to_owned(),
            source: match slot.scope {
                Scope::Platform => PolicySource::Platform,
                Scope::Tenant(_) => PolicySource::Tenant,
            },
            bound: BoundAs::default(),
        };
        Self { descriptor, reason }
    }

    pub(super) fn disabled(slot: &PolicySlot, who: (&str, &str), hold: &HoldRecord) -> Self {
        let reason = format!("disabled by {}: {}", hold.actor, hold.reason);
        Self::new(slot, who, reason)
    }
}

impl Policy for Unavailable {
    fn descriptor(&self) -> &PolicyDescriptor {
        &self.descriptor
    }

    fn ask(&self, _call: &Call<'_>) -> Answered {
        Answered {
            result: Err(PolicyFault::Unavailable(self.reason.clone())),
            fuel: None,
        }
    }
}
