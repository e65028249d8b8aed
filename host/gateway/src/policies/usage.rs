//! What a tenant used: what the desk counted since the host started, and what the store and the state hold.

use super::tally::scope_of;
use super::{DeskError, PolicyDesk, PolicySlot};
use portolan_base::TenantName;
use portolan_decide::PolicyRecord;
use portolan_policy::{QuestionKind, Scope};
use portolan_ports::{Reading, Sample, StateUsed};
use serde::Serialize;
use std::collections::BTreeMap;

/// What one policy did at this host since it started, over all its versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PolicyUse {
    /// Calls that counted for a request.
    pub calls: u64,
    /// Those that ended in a fault, so that the question's fallback answered.
    pub faults: u64,
    /// Calls as a shadow.
    pub shadow_calls: u64,
    /// Fuel of all calls.
    pub fuel: u64,
    /// Microseconds of all calls.
    pub micros: u64,
}

/// One policy with what it did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PolicyUsage {
    /// The question it answers.
    pub question: QuestionKind,
    /// The policy's name.
    pub name: String,
    /// What it did.
    #[serde(flatten)]
    pub used: PolicyUse,
}

/// A quantity and how much of it there may be; no limit where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Share {
    /// What is used.
    pub used: u64,
    /// The most that may be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// Log lines of the versions that are loaded at present, since each was loaded. Of the busiest ones only, where the host
/// has more than the runtime tells apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogLines {
    /// Those in the host's log.
    pub written: u64,
    /// Those left out because there were too many.
    pub dropped: u64,
}

impl LogLines {
    /// What the runtime counted for a scope.
    fn of(samples: &[Sample], scope: &Scope) -> Self {
        let owner = match scope {
            Scope::Platform => "_platform",
            Scope::Tenant(tenant) => tenant.as_str(),
        };
        let mut lines = Self::default();
        for sample in samples {
            let is_theirs = sample
                .labels
                .iter()
                .any(|(label, value)| *label == "tenant" && value == owner);
            match (sample.name, &sample.value) {
                ("policy_runtime_log_lines", Reading::Counter(count)) if is_theirs => lines.written += count,
                ("policy_runtime_log_lines_dropped", Reading::Counter(count)) if is_theirs => {
                    lines.dropped += count;
                }
                _ => {}
            }
        }
        lines
    }
}

/// What a scope used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Each policy that was asked since the host started.
    pub policies: Vec<PolicyUsage>,
    /// Components sent with the tenant's own keys in the last hour.
    pub uploads_last_hour: Share,
    /// Versions kept.
    pub stored_versions: Share,
    /// Bytes of their components.
    pub stored_bytes: Share,
    /// Keys its policies keep.
    pub state_keys: Share,
    /// Bytes of those keys and their values.
    pub state_bytes: Share,
    /// Lines its policies logged.
    pub log_lines: LogLines,
}

/// How a record words that nobody was asked.
const UNASKED: &str = "unavailable";

/// What each policy did, by scope.
#[derive(Debug, Default)]
pub(super) struct Ledger(BTreeMap<Scope, BTreeMap<(QuestionKind, String), PolicyUse>>);

impl Ledger {
    /// Counts a call; what the built-in policies do is nobody's use.
    pub(super) fn count(&mut self, call: &PolicyRecord, tenant: Option<&TenantName>, is_shadow: bool) {
        let Some(scope) = scope_of(call, tenant) else {
            return;
        };
        // Nobody was asked: it was disabled, or its component could not be loaded.
        if call.outcome == UNASKED {
            return;
        }
        let policies = self.0.entry(scope).or_default();
        let used = policies.entry((call.question, call.name.clone())).or_default();
        if is_shadow {
            used.shadow_calls += 1;
        } else {
            used.calls += 1;
            used.faults += u64::from(call.outcome != "ok");
        }
        used.fuel += call.fuel.unwrap_or(0);
        used.micros += call.micros;
    }

    fn of(&self, scope: &Scope) -> Vec<PolicyUsage> {
        let policies = self.0.get(scope).into_iter().flatten();
        policies
            .map(|((question, name), used)| PolicyUsage {
                question: *question,
                name: name.clone(),
                used: *used,
            })
            .collect()
    }
}

impl PolicyDesk {
    /// The platform and every tenant, by name.
    pub fn scopes(&self) -> Result<Vec<Scope>, DeskError> {
        let mut tenants = self.parts.store.tenants()?;
        tenants.sort_by(|a, b| a.name.cmp(&b.name));
        let tenants = tenants.into_iter().map(|tenant| Scope::Tenant(tenant.name));
        Ok(std::iter::once(Scope::Platform).chain(tenants).collect())
    }

    /// What a scope used.
    pub fn usage(&self, scope: &Scope) -> Result<Usage, DeskError> {
        let quotas = self.quotas.of(scope);
        let (mut versions, mut bytes) = (0, 0);
        for question in QuestionKind::ALL {
            for version in self.versions(&PolicySlot::new(scope.clone(), question))? {
                versions += 1;
                bytes += version.bytes;
            }
        }
        let uploads = match scope {
            Scope::Platform => 0,
            Scope::Tenant(tenant) => self.parts.store.uploads(tenant, self.parts.clock.now())?,
        };
        let state = self.state.as_ref();
        let state = state.map_or(StateUsed::default(), |state| state.used(scope));
        Ok(Usage {
            policies: self.used.lock().of(scope),
            uploads_last_hour: share(uploads.into(), quotas.uploads_per_hour.into(), u32::MAX.into()),
            stored_versions: share(versions, quotas.stored_versions.into(), u32::MAX.into()),
            stored_bytes: share(bytes, quotas.stored_bytes, u64::MAX),
            state_keys: share(state.keys, quotas.state_keys, u64::MAX),
            state_bytes: share(state.bytes, quotas.state_bytes, u64::MAX),
            log_lines: LogLines::of(&self.parts.loader.samples(), scope),
        })
    }
}

fn share(used: u64, limit: u64, boundless: u64) -> Share {
    Share {
        used,
        limit: (limit < boundless).then_some(limit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_are_those_of_the_scopes_own_versions() {
        let sample = |name, tenant: &str, count| Sample {
            name,
            help: "",
            labels: vec![("tenant", tenant.to_owned())],
            value: Reading::Counter(count),
        };
        let (written, dropped) = ("policy_runtime_log_lines", "policy_runtime_log_lines_dropped");
        let samples = [
            sample(written, "acme", 3),
            sample(written, "acme", 4),
            sample(dropped, "acme", 5),
            sample(written, "_platform", 6),
            sample("policy_runtime_calls", "acme", 7),
        ];
        let acme = Scope::Tenant(TenantName::new("acme").unwrap());
        let of = |scope: &Scope| LogLines::of(&samples, scope);
        assert_eq!((of(&acme).written, of(&acme).dropped), (7, 5));
        assert_eq!(
            (of(&Scope::Platform).written, of(&Scope::Platform).dropped),
            (6, 0)
        );
    }
}
