//! From an order to the blocks it is about.

use super::SiteInvalidation;
use portolan_base::{ModelName, Provenance, Sequence};
use portolan_kv::Selector;
use portolan_kv::tier::Forgotten;
use portolan_ports::Invalidated;
use std::sync::Arc;

impl SiteInvalidation {
    /// Makes what an order is about unreachable in every pool and tier. May wait for a disk.
    pub(super) fn apply(self: &Arc<Self>, what: &Invalidated, at: Sequence) -> Forgotten {
        if let Invalidated::Model { model } = what {
            // Before the blocks go: what begins from here on is named by the new version.
            self.state.lock().record.raise(model, at);
        }
        self.state.lock().record.epochs.note(what, at);
        let selectors = self.selectors(what);
        let mut forgotten = Forgotten::default();
        for selector in &selectors {
            forgotten += self.parts.tiers.invalidate(selector);
        }
        if let Some(also) = self.also.get() {
            also.applied(what);
        }
        forgotten
    }

    /// Has policies look at what is cached as time passes.
    pub(super) fn apply_tick(&self) {
        for selector in self.parts.deciding.tick() {
            self.parts.tiers.invalidate(&selector);
        }
    }

    /// Has policies choose what goes where room runs out.
    pub(super) fn apply_pressure(&self) {
        for selector in self.parts.deciding.pressure() {
            let gone = match &selector {
                // Nothing is wrong with them: whoever runs on them goes on.
                Selector::Blocks(blocks) => self.parts.tiers.evict(blocks),
                _ => self.parts.tiers.invalidate(&selector),
            };
            tracing::info!(site = %self.parts.site, blocks = gone.blocks, bytes = gone.bytes.0,
                "a policy made room");
        }
    }

    /// What an order would do here.
    pub(super) fn would_apply(&self, what: &Invalidated) -> Forgotten {
        let selectors = match what {
            // Its version rises above whatever lies here.
            Invalidated::Model { model } => vec![Selector::Older {
                model: model.clone(),
                version: u64::MAX,
            }],
            what => self.selectors(what),
        };
        let mut forgotten = Forgotten::default();
        for selector in &selectors {
            forgotten += self.parts.tiers.would_forget(selector);
        }
        forgotten
    }

    /// What dies here.
    fn selectors(&self, what: &Invalidated) -> Vec<Selector> {
        let rule = self.rule(what);
        let decided = self.parts.deciding.react(what, rule.clone());
        match what {
            Invalidated::Dependency { .. } => decided,
            Invalidated::Model { .. } | Invalidated::Prefix { .. } | Invalidated::Tenant { .. } => {
                let more = decided.into_iter().filter(|selector| !rule.contains(selector));
                rule.iter().cloned().chain(more).collect()
            }
        }
    }

    /// The built-in version rule.
    fn rule(&self, what: &Invalidated) -> Vec<Selector> {
        vec![match what {
            Invalidated::Model { model } => Selector::Older {
                model: model.clone(),
                version: self.version_here(model),
            },
            Invalidated::Dependency { by, of } => Selector::Outdated {
                by: by.clone(),
                of: of.clone(),
            },
            Invalidated::Prefix { block, of: None } => Selector::Block(*block),
            Invalidated::Prefix {
                block,
                of: Some(scope),
            } => Selector::Owned {
                block: *block,
                of: scope.clone(),
            },
            Invalidated::Tenant { scope } => Selector::Scope(scope.clone()),
        }]
    }

    /// Whether an order is, or may be, about KV of which only this is known.
    pub(super) fn covers(&self, order: &Invalidated, about: &Provenance) -> bool {
        match order {
            // Every order about a model is about all that began before it.
            Invalidated::Model { model } => about.model == *model,
            Invalidated::Dependency { by, of } => Selector::Outdated {
                by: by.clone(),
                of: of.clone(),
            }
            .covers_some_of(about),
            Invalidated::Prefix { of, .. } => of.as_ref().is_none_or(|of| *of == about.scope),
            Invalidated::Tenant { scope } => *scope == about.scope,
        }
    }

    fn version_here(&self, model: &ModelName) -> u64 {
        let configured = self.parts.models.get(model).copied().unwrap_or_default();
        self.state.lock().record.version(model, configured)
    }
}
