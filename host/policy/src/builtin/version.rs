//! Invalidation `version`: nothing outlives the version it was computed with. The host's fallback rule.

use super::config::{self, ConfigError, Nothing};
use super::contract::{Groups, Invalidation};
use crate::answer::Directive;
use crate::names::NameTables;
use crate::question::{Event, ModelChange};

/// A raised model version kills every older block of the model; a changed dependency kills what recorded another
/// version of it; a removed tenant loses everything. Age and pressure are left to the pool's own eviction, and a
/// revoked prefix to the host, which knows the prefix by its hash.
#[derive(Clone, Copy, Debug, Default)]
pub struct VersionRule;

impl Invalidation for VersionRule {
    fn configure(text: &str, _names: &NameTables) -> Result<Self, ConfigError> {
        config::parse::<Nothing>(text)?;
        Ok(Self)
    }

    fn react(&self, event: &Event, groups: Groups<'_>) -> Vec<Directive> {
        match event {
            Event::ModelUpdated(change) => vec![below_version(change)],
            Event::DependenciesChanged(changed) => {
                changed.iter().cloned().map(Directive::DependsOn).collect()
            }
            Event::TenantRemoved => every_group(groups),
            Event::CapacityPressure(_) | Event::PrefixRevoked(_) | Event::Tick(_) => Vec::new(),
        }
    }
}

pub(super) fn below_version(change: &ModelChange) -> Directive {
    Directive::BelowVersion {
        model: change.model,
        version: change.new_version,
    }
}

pub(super) fn every_group(groups: Groups<'_>) -> Vec<Directive> {
    groups
        .iter()
        .map(|group| Directive::DropGroup(group.group()))
        .collect()
}
