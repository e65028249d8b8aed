//! Which policy answers which question for whom.

use portolan_base::TenantName;
use portolan_policy::{Policy, QuestionKind, Scope};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Every active policy. Immutable: a change makes a new table that shares the policies, so that a request which took
/// the table at admit keeps its versions to the end.
#[derive(Clone, Default)]
pub struct PolicyTable {
    active: HashMap<(Scope, QuestionKind), Arc<dyn Policy>>,
}

impl fmt::Debug for PolicyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.active.iter().map(|(key, p)| (key, p.descriptor())))
            .finish()
    }
}

/// The policies of one request, fixed when it was admitted.
#[derive(Clone, Default)]
pub struct RequestPolicies {
    /// The platform's answer on residency; the data's own jurisdiction decides when there is none.
    pub platform_residency: Option<Arc<dyn Policy>>,
    /// The tenant's answer on residency. It can only narrow the platform's.
    pub tenant_residency: Option<Arc<dyn Policy>>,
    /// Prices the routes, if anyone but the built-in does.
    pub cost: Option<Arc<dyn Policy>>,
    /// Chooses the route, if anyone but the built-in does.
    pub routing: Option<Arc<dyn Policy>>,
}

impl PolicyTable {
    /// A table with nothing bound: every question is answered by the built-in policies.
    pub fn new() -> Self {
        Self::default()
    }

    /// A table in which `policy` answers.
    #[must_use]
    pub fn with(&self, scope: Scope, question: QuestionKind, policy: Arc<dyn Policy>) -> Self {
        let mut active = self.active.clone();
        active.insert((scope, question), policy);
        Self { active }
    }

    /// A table in which nobody answers for `scope`.
    #[must_use]
    pub fn without(&self, scope: &Scope, question: QuestionKind) -> Self {
        let mut active = self.active.clone();
        active.remove(&(scope.clone(), question));
        Self { active }
    }

    /// Who answers for exactly this scope.
    pub fn get(&self, scope: &Scope, question: QuestionKind) -> Option<&Arc<dyn Policy>> {
        self.active.get(&(scope.clone(), question))
    }

    /// Everything that is bound.
    pub fn iter(&self) -> impl Iterator<Item = (&Scope, QuestionKind, &Arc<dyn Policy>)> {
        self.active
            .iter()
            .map(|((scope, question), policy)| (scope, *question, policy))
    }

    /// The policies that decide for a tenant. Residency: the platform's and the tenant's, both. Cost and routing: the
    /// tenant's, else the platform's.
    pub fn for_tenant(&self, tenant: &TenantName) -> RequestPolicies {
        let own = Scope::Tenant(tenant.clone());
        let first = |question| {
            self.get(&own, question)
                .or_else(|| self.get(&Scope::Platform, question))
                .cloned()
        };
        RequestPolicies {
            platform_residency: self.get(&Scope::Platform, QuestionKind::Residency).cloned(),
            tenant_residency: self.get(&own, QuestionKind::Residency).cloned(),
            cost: first(QuestionKind::Cost),
            routing: first(QuestionKind::Routing),
        }
    }
}
