//! Policies by name or file.

use crate::lab::LabError;
use crate::lab::component::{ComponentFile, Workshop};
use portolan_base::Clock;
use portolan_decide::RequestPolicies;
use portolan_policy::builtin::{self, BUILT_IN};
use portolan_policy::{NameTables, Policy, QuestionKind};
use portolan_ports::Reuse;
use portolan_sim::VirtualClock;
use std::path::Path;
use std::sync::Arc;

/// A policy to play with: a built-in one or a component.
#[derive(Clone, Debug)]
pub enum Player {
    /// Compiled into this program.
    BuiltIn {
        /// What it answers.
        question: QuestionKind,
        /// Its name.
        name: String,
        /// Its configuration; empty means the defaults.
        config: String,
    },
    /// A component's file, checked.
    Component(Box<ComponentFile>),
}

impl Player {
    /// A built-in policy by name, or a component by its path: a name with an ending or a folder.
    pub fn find(text: &str, workshop: &Workshop) -> Result<Self, LabError> {
        let of_name = BUILT_IN
            .iter()
            .find(|(question, name)| *name == text && *question != QuestionKind::Invalidation);
        if let Some(&(question, name)) = of_name {
            return Ok(Self::BuiltIn {
                question,
                name: name.to_owned(),
                config: String::new(),
            });
        }
        let path = Path::new(text);
        if path.extension().is_some() || path.components().count() > 1 {
            let file = workshop.open(path, None)?;
            if file.question == QuestionKind::Invalidation {
                let problem = format!("{text} answers invalidation, which is not simulated");
                return Err(LabError::value("--policy", problem));
            }
            return Ok(Self::Component(Box::new(file)));
        }
        Err(LabError::value("--policy", unknown(text)))
    }

    /// The same policy with this configuration; components keep theirs.
    #[must_use]
    pub fn configured(mut self, text: &str) -> Self {
        if let Self::BuiltIn { config, .. } = &mut self {
            text.clone_into(config);
        }
        self
    }

    /// What it is called in tables.
    pub fn name(&self) -> &str {
        match self {
            Self::BuiltIn { name, .. } => name,
            Self::Component(file) => &file.name,
        }
    }

    /// Loads it for one run, on that run's clock. A component's instances are kept warm: what is simulated is the
    /// decision, not the making of instances.
    pub fn load(
        &self,
        workshop: &Workshop,
        names: &NameTables,
        clock: &Arc<VirtualClock>,
    ) -> Result<RequestPolicies, LabError> {
        let policy = match self {
            Self::BuiltIn {
                question,
                name,
                config,
            } => builtin::policy(*question, name, config, names)
                .map_err(|wrong| LabError::value(name.clone(), wrong.to_string()))?,
            Self::Component(file) => {
                workshop
                    .on(Arc::clone(clock) as Arc<dyn Clock>)?
                    .load_for(file, "", names, Reuse::Warm)?
            }
        };
        Ok(taking_part(policy))
    }
}

/// With this policy in its place, and the built-in rules everywhere else.
fn taking_part(policy: Arc<dyn Policy>) -> RequestPolicies {
    let mut policies = RequestPolicies::default();
    let slot = match policy.descriptor().question {
        QuestionKind::Residency => &mut policies.platform_residency,
        QuestionKind::Cost => &mut policies.cost,
        QuestionKind::Routing | QuestionKind::Invalidation => &mut policies.routing,
    };
    *slot = Some(policy);
    policies
}

/// Names of the policies that can be simulated.
pub fn known() -> Vec<&'static str> {
    let decides = |question: &QuestionKind| *question != QuestionKind::Invalidation;
    BUILT_IN
        .iter()
        .filter(|(question, _)| decides(question))
        .map(|(_, name)| *name)
        .collect()
}

fn unknown(text: &str) -> String {
    let known = known();
    let closest = super::scenario::closest(text, known.iter().copied());
    let hint = closest.map_or_else(String::new, |name| format!(", did you mean {name}?"));
    format!(
        "no policy is called {text:?}{hint}; there are {}, and any component by its path",
        known.join(", ")
    )
}
