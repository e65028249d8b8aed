//! Which policy answers which question for whom.

use crate::rollout::{Draw, TrialStage};
use portolan_base::TenantName;
use portolan_policy::{Policy, PolicySource, QuestionKind, Scope};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

/// Every active policy. Immutable: a change makes a new table that shares the policies, so that a request which took
/// the table at admit keeps its versions to the end.
#[derive(Clone, Default)]
pub struct PolicyTable {
    active: HashMap<(Scope, QuestionKind), Arc<dyn Policy>>,
    trials: HashMap<(Scope, QuestionKind), Trial>,
}

/// A version that is tried beside, or before, the active one.
#[derive(Clone)]
pub struct Trial {
    /// The version.
    pub policy: Arc<dyn Policy>,
    /// How far it has come.
    pub stage: TrialStage,
}

/// Who answers one question in a table, so that it can be told later whether that has changed. Keeps none of them.
#[derive(Clone, Default)]
pub struct Answerers(HashMap<Scope, Answerer>);

/// The active version, and one on trial with how far it has come.
type Answerer = (Option<Weak<dyn Policy>>, Option<(Weak<dyn Policy>, TrialStage)>);

impl PartialEq for Answerers {
    fn eq(&self, other: &Self) -> bool {
        let active = |a: &Option<Weak<dyn Policy>>, b: &Option<Weak<dyn Policy>>| match (a, b) {
            (Some(a), Some(b)) => Weak::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        let same = |a: &Answerer, b: &Answerer| {
            let trials = match (&a.1, &b.1) {
                (Some((a, at)), Some((b, bt))) => Weak::ptr_eq(a, b) && at == bt,
                (a, b) => a.is_none() && b.is_none(),
            };
            active(&a.0, &b.0) && trials
        };
        self.0.len() == other.0.len()
            && self
                .0
                .iter()
                .all(|(scope, a)| other.0.get(scope).is_some_and(|b| same(a, b)))
    }
}

/// Shows pairs as a map.
struct Entries<I>(I);

impl<K: fmt::Debug, V: fmt::Debug, I: Iterator<Item = (K, V)> + Clone> fmt::Debug for Entries<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.clone()).finish()
    }
}

impl fmt::Debug for PolicyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trials = self
            .trials
            .iter()
            .map(|(key, trial)| (key, (trial.policy.descriptor(), trial.stage)));
        f.debug_struct("PolicyTable")
            .field(
                "active",
                &Entries(self.active.iter().map(|(key, p)| (key, p.descriptor()))),
            )
            .field("trials", &Entries(trials))
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
    /// Versions that are asked once the answer is out, and not obeyed.
    pub shadows: Vec<Arc<dyn Policy>>,
    /// The draw they were taken with: whoever is asked again for this request takes the same versions.
    pub draw: Draw,
}

impl RequestPolicies {
    /// Whether all questions of a route are the built-in policies' to answer: none takes longer than a look at the rows.
    pub fn are_built_in(&self) -> bool {
        let asked = [
            &self.platform_residency,
            &self.tenant_residency,
            &self.cost,
            &self.routing,
        ];
        let components = asked.into_iter().flatten();
        components
            .into_iter()
            .all(|policy| policy.descriptor().source == PolicySource::BuiltIn)
    }
}

impl PolicyTable {
    /// A table with nothing bound: every question is answered by the built-in policies.
    pub fn new() -> Self {
        Self::default()
    }

    /// A table in which `policy` answers.
    #[must_use]
    pub fn with(&self, scope: Scope, question: QuestionKind, policy: Arc<dyn Policy>) -> Self {
        let mut table = self.clone();
        table.active.insert((scope, question), policy);
        table
    }

    /// A table in which nobody answers for `scope`, a version on trial excepted.
    #[must_use]
    pub fn without(&self, scope: &Scope, question: QuestionKind) -> Self {
        let mut table = self.clone();
        table.active.remove(&(scope.clone(), question));
        table
    }

    /// A table in which `trial` is on trial, and nothing else in its slot.
    #[must_use]
    pub fn with_trial(&self, scope: Scope, question: QuestionKind, trial: Trial) -> Self {
        let mut table = self.clone();
        table.trials.insert((scope, question), trial);
        table
    }

    /// A table in which nothing is on trial for `scope`.
    #[must_use]
    pub fn without_trial(&self, scope: &Scope, question: QuestionKind) -> Self {
        let mut table = self.clone();
        table.trials.remove(&(scope.clone(), question));
        table
    }

    /// Who answers for exactly this scope, trials aside.
    pub fn get(&self, scope: &Scope, question: QuestionKind) -> Option<&Arc<dyn Policy>> {
        self.active.get(&(scope.clone(), question))
    }

    /// What is on trial for exactly this scope.
    pub fn trial(&self, scope: &Scope, question: QuestionKind) -> Option<&Trial> {
        self.trials.get(&(scope.clone(), question))
    }

    /// Who answers a question, for whichever scope. Two tables' are equal while nothing about that question was changed
    /// between them.
    pub fn answerers(&self, question: QuestionKind) -> Answerers {
        let mut answerers = Answerers::default();
        for ((scope, _), policy) in self.active.iter().filter(|((_, of), _)| *of == question) {
            answerers.0.entry(scope.clone()).or_default().0 = Some(Arc::downgrade(policy));
        }
        for ((scope, _), trial) in self.trials.iter().filter(|((_, of), _)| *of == question) {
            let on_trial = (Arc::downgrade(&trial.policy), trial.stage);
            answerers.0.entry(scope.clone()).or_default().1 = Some(on_trial);
        }
        answerers
    }

    /// Everything that is active.
    pub fn iter(&self) -> impl Iterator<Item = (&Scope, QuestionKind, &Arc<dyn Policy>)> {
        self.active
            .iter()
            .map(|((scope, question), policy)| (scope, *question, policy))
    }

    /// The policies that decide for a tenant's request. Residency: the platform's and the tenant's, both. Cost and
    /// routing: the tenant's, else the platform's. A canary stands in for the active version where the draw falls into
    /// its share; a shadow is asked where its own active version, or none, would be.
    pub fn for_tenant(&self, tenant: &TenantName, draw: Draw) -> RequestPolicies {
        let own = Scope::Tenant(tenant.clone());
        let mut shadows = Vec::new();
        let mut ask = |scope: &Scope, question| self.choose(scope, question, draw, &mut shadows);
        let platform_residency = ask(&Scope::Platform, QuestionKind::Residency);
        let tenant_residency = ask(&own, QuestionKind::Residency);
        let mut first = |question| ask(&own, question).or_else(|| ask(&Scope::Platform, question));
        let cost = first(QuestionKind::Cost);
        let routing = first(QuestionKind::Routing);
        RequestPolicies {
            platform_residency,
            tenant_residency,
            cost,
            routing,
            shadows,
            draw,
        }
    }

    fn choose(
        &self,
        scope: &Scope,
        question: QuestionKind,
        draw: Draw,
        shadows: &mut Vec<Arc<dyn Policy>>,
    ) -> Option<Arc<dyn Policy>> {
        if let Some(trial) = self.trial(scope, question) {
            match trial.stage {
                TrialStage::Shadow => shadows.push(Arc::clone(&trial.policy)),
                TrialStage::Canary { percent } if draw.falls_in(percent) => {
                    return Some(Arc::clone(&trial.policy));
                }
                TrialStage::Canary { .. } => {}
            }
        }
        self.get(scope, question).cloned()
    }
}
