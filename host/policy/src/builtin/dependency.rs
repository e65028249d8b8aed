//! Invalidation `dependency`: differential; a change kills its dependants and nothing else.

use super::config::{self, ConfigError};
use super::contract::{Groups, Invalidation};
use super::version::VersionRule;
use crate::answer::Directive;
use crate::names::NameTables;
use crate::question::{Dependency, Event};
use serde::Deserialize;

/// What `dependency` can be told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DependencyConfig {
    /// Kinds of dependency whose changes leave KV alive. None by default: KV that depends on something stale is wrong
    /// until somebody says that it is not.
    pub ignore_kinds: Vec<String>,
}

/// As [`VersionRule`], but told which kinds of dependency do not matter, and silent where no block depends on what
/// changed.
#[derive(Clone, Debug, Default)]
pub struct DependencyRule {
    config: DependencyConfig,
}

/// Dependencies of an event that the `depends-bits` column can speak of.
const NAMED_IN_BITS: usize = 32;

impl DependencyRule {
    /// With this configuration.
    pub fn new(config: DependencyConfig) -> Self {
        Self { config }
    }

    fn dependants(&self, changed: &[Dependency], groups: Groups<'_>) -> Vec<Directive> {
        let in_use = groups.iter().fold(0, |bits, group| bits | group.depends_bits());
        let used = |index: usize| index >= NAMED_IN_BITS || in_use & (1 << index) != 0;
        let matters = |dependency: &Dependency| !self.config.ignore_kinds.contains(&dependency.kind);
        changed
            .iter()
            .enumerate()
            .filter(|(index, dependency)| used(*index) && matters(dependency))
            .map(|(_, dependency)| Directive::DependsOn(dependency.clone()))
            .collect()
    }
}

impl Invalidation for DependencyRule {
    fn configure(text: &str, _names: &NameTables) -> Result<Self, ConfigError> {
        config::parse(text).map(Self::new)
    }

    fn react(&self, event: &Event, groups: Groups<'_>) -> Vec<Directive> {
        match event {
            Event::DependenciesChanged(changed) => self.dependants(changed, groups),
            other => VersionRule.react(other, groups),
        }
    }
}
