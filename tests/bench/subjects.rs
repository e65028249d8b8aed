//! What is measured: the policies of one request, as components or built in.

use crate::inputs::{Inputs, names};
use portolan_base::{Clock, Moment, TenantName};
use portolan_plugin::{ArtefactKey, Compilation, ComponentLoader, Limits, LoaderConfig, VersionStats};
use portolan_policy::{Call, Policy, QuestionKind, Scope, builtin};
use portolan_ports::{Binding, MemoryState, PolicyLoader, Reuse};
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

/// How instances come to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Made ahead, each for one call.
    Ahead,
    /// Made within the call that needs it.
    Inline,
    /// Kept from call to call.
    Warm,
}

/// The policies of one request: residency of platform and tenant, cost, routing.
pub struct Decision {
    policies: Vec<Arc<dyn Policy>>,
    loader: Option<ComponentLoader>,
}

/// The shipped policies of one request, in the order in which they are asked.
const SHIPPED: [(QuestionKind, &str); 4] = [
    (QuestionKind::Residency, "jurisdiction"),
    (QuestionKind::Residency, "jurisdiction"),
    (QuestionKind::Cost, "ttft"),
    (QuestionKind::Routing, "lowest-cost"),
];

/// Something could not be prepared.
#[derive(Debug)]
pub struct Unprepared(String);

impl Unprepared {
    pub(crate) fn new(why: String) -> Self {
        Self(why)
    }
}

impl std::fmt::Display for Unprepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unprepared {}

struct Midnight;

impl Clock for Midnight {
    fn now(&self) -> Moment {
        Moment(0)
    }
}

impl Decision {
    /// The built-in functions.
    ///
    /// # Errors
    /// When a built-in policy refuses its own defaults.
    pub fn native() -> Result<Self, Unprepared> {
        let policy = |(question, name): (QuestionKind, &str)| {
            let made = builtin::policy(question, name, "", &names());
            made.map_err(|e| Unprepared(format!("{name}: {e}")))
        };
        let policies = SHIPPED.into_iter().map(policy).collect::<Result<_, _>>()?;
        Ok(Self {
            policies,
            loader: None,
        })
    }

    /// The shipped components in `folder`.
    ///
    /// # Errors
    /// When a component cannot be read or loaded.
    pub fn components(folder: &Path, readiness: Readiness) -> Result<Self, Unprepared> {
        let loader = loader(readiness)?;
        let policies = SHIPPED
            .iter()
            .enumerate()
            .map(|(i, (question, name))| {
                let scope = if i == 0 { Scope::Platform } else { tenant()? };
                load(&loader, folder, readiness, (scope, *question, name))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            policies,
            loader: Some(loader),
        })
    }

    /// Asks all four. Panics when one does not answer: what was measured would be something else.
    pub fn decide(&self, inputs: &Inputs) {
        let calls = [
            inputs.residency(),
            inputs.residency(),
            inputs.cost(),
            inputs.routing(),
        ];
        for (policy, call) in self.policies.iter().zip(&calls) {
            answer(policy.as_ref(), call);
        }
    }

    /// Asks the router alone.
    pub fn route(&self, inputs: &Inputs) {
        if let Some(router) = self.policies.last() {
            answer(router.as_ref(), &inputs.routing());
        }
    }

    /// Waits until every component has an instance ready, as between two requests of a host that is not saturated.
    pub fn settle(&self) {
        let Some(loader) = &self.loader else { return };
        let empty = |stats: &VersionStats| stats.ready_instances == 0;
        while loader.stats().versions.iter().any(|(_, stats)| empty(stats)) {
            std::thread::yield_now();
        }
    }

    /// Calls that a component did not answer on the calling thread, and instances made within a call.
    pub fn detours(&self) -> (u64, u64) {
        let versions = self.loader.as_ref().map(|loader| loader.stats().versions);
        versions
            .into_iter()
            .flatten()
            .fold((0, 0), |(slow, made), (_, stats)| {
                (slow + stats.slow_calls, made + stats.made_inline)
            })
    }
}

pub(crate) fn answer(policy: &dyn Policy, call: &Call<'_>) {
    let answered = black_box(policy.ask(black_box(call)));
    assert!(answered.result.is_ok(), "{:?}", answered.result);
}

pub(crate) fn tenant() -> Result<Scope, Unprepared> {
    let name = TenantName::new("acme").map_err(|e| Unprepared(e.to_string()))?;
    Ok(Scope::Tenant(name))
}

pub(crate) fn loader(readiness: Readiness) -> Result<ComponentLoader, Unprepared> {
    let defaults = Limits::default();
    let ready_instances = match readiness {
        Readiness::Inline => 0,
        Readiness::Ahead | Readiness::Warm => defaults.ready_instances,
    };
    let config = LoaderConfig {
        limits: Limits {
            ready_instances,
            // A neighbour on a shared machine may keep the whole process waiting for longer than the usual 20 ms.
            inline_deadline_ms: 2_000,
            ..defaults
        },
        key: ArtefactKey::from_bytes([7; 32]),
        state: Arc::new(MemoryState::default()),
        compilation: Compilation::InProcess,
    };
    ComponentLoader::new(config, Arc::new(Midnight)).map_err(|e| Unprepared(e.to_string()))
}

fn load(
    loader: &ComponentLoader,
    folder: &Path,
    readiness: Readiness,
    (scope, question, name): (Scope, QuestionKind, &str),
) -> Result<Arc<dyn Policy>, Unprepared> {
    let path = folder.join(format!("{name}.wasm"));
    let component = std::fs::read(&path).map_err(|e| Unprepared(format!("{}: {e}", path.display())))?;
    let binding = binding(loader, &component, readiness, (scope, question, name));
    let loaded = loader.load(&binding, &component, None);
    loaded.map_err(|e| Unprepared(format!("{name}: {e}")))
}

pub(crate) fn binding(
    loader: &ComponentLoader,
    component: &[u8],
    readiness: Readiness,
    (scope, question, name): (Scope, QuestionKind, &str),
) -> Binding {
    Binding {
        scope,
        question,
        name: name.to_owned(),
        version: loader.check(Some(question), component, None).sha256,
        config: String::new(),
        names: Arc::new(names()),
        reuse: match readiness {
            Readiness::Warm => Reuse::Warm,
            Readiness::Ahead | Readiness::Inline => Reuse::Fresh,
        },
    }
}
