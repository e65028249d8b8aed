//! Residency policies that answer from a seed, and the loader that makes them.

use super::mix;
use portolan_policy::{
    Answer, Answered, BoundAs, Call, Placement, Policy, PolicyDescriptor, PolicyFault, PolicySource, Purpose,
    Question,
};
use portolan_ports::{Binding, FakeLoader, PolicyLoader, PolicyRejection, PolicyReport, Rehearsal, Scope};
use std::sync::Arc;

/// What the policy of a seed says, or nothing: then it fails.
pub(super) fn said(seed: u64, purpose: Purpose, jurisdiction: u32, sites: usize) -> Option<Vec<Placement>> {
    let about = |more: u64| {
        mix(seed
            ^ mix(purpose as u64 + 1)
            ^ mix(u64::from(jurisdiction) + 100)
            ^ mix(more.wrapping_add(1000)))
    };
    if about(u64::MAX).is_multiple_of(8) {
        return None;
    }
    let placement = |site: u64| match about(site) % 6 {
        0 => Placement::Denied,
        1 => Placement::Transient,
        _ => Placement::Resident,
    };
    Some((0..sites as u64).map(placement).collect())
}

/// Makes the policy of the seed that a component is.
pub(super) struct SeedLoader;

struct SeedPolicy {
    descriptor: PolicyDescriptor,
    seed: u64,
}

impl Policy for SeedPolicy {
    fn descriptor(&self) -> &PolicyDescriptor {
        &self.descriptor
    }

    fn ask(&self, call: &Call<'_>) -> Answered {
        let Question::Residency { subject, sites, .. } = call.question else {
            unreachable!("bound to residency only")
        };
        let said = said(self.seed, subject.purpose, subject.data_jurisdiction, sites);
        Answered {
            result: said
                .map(Answer::Residency)
                .ok_or_else(|| PolicyFault::Trap("by lot".to_owned())),
            fuel: None,
        }
    }
}

impl PolicyLoader for SeedLoader {
    fn check(
        &self,
        question: Option<portolan_policy::QuestionKind>,
        component: &[u8],
        _: Option<Rehearsal<'_>>,
    ) -> PolicyReport {
        PolicyReport {
            ok: true,
            question,
            findings: Vec::new(),
            ..FakeLoader.check(question, component, None)
        }
    }

    fn compile(&self, component: &[u8]) -> Result<Vec<u8>, PolicyRejection> {
        Ok(component.to_vec())
    }

    fn accepts(&self, _: &str, _: &[u8]) -> bool {
        true
    }

    fn load(
        &self,
        binding: &Binding,
        component: &[u8],
        _: Option<&[u8]>,
    ) -> Result<Arc<dyn Policy>, PolicyRejection> {
        let seed = std::str::from_utf8(component).unwrap().parse().unwrap();
        let descriptor = PolicyDescriptor {
            question: binding.question,
            name: binding.name.clone(),
            version: binding.version.clone(),
            source: match &binding.scope {
                Scope::Platform => PolicySource::Platform,
                Scope::Tenant(_) => PolicySource::Tenant,
            },
            bound: BoundAs::default(),
        };
        Ok(Arc::new(SeedPolicy { descriptor, seed }))
    }
}
