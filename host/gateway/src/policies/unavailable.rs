//! Stands in for a bound policy that could not be loaded.

use portolan_policy::{Answered, Call, Policy, PolicyDescriptor, PolicyFault, PolicySource, Scope};
use portolan_ports::BindingRecord;

/// Answers every call with [`PolicyFault::Unavailable`]. Leaving the policy out instead would open what a residency
/// policy closes; with this in its place the question's fallback applies, and every path record says why.
pub(super) struct Unavailable {
    descriptor: PolicyDescriptor,
    reason: String,
}

impl Unavailable {
    pub(super) fn new(binding: &BindingRecord, reason: String) -> Self {
        let descriptor = PolicyDescriptor {
            question: binding.question,
            name: binding.name.clone(),
            version: binding.sha256.clone(),
            source: match binding.scope {
                Scope::Platform => PolicySource::Platform,
                Scope::Tenant(_) => PolicySource::Tenant,
            },
        };
        Self { descriptor, reason }
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
