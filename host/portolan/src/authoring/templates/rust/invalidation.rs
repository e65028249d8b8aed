//! Nothing outlives the version it was computed with; what nobody used for a while goes; room is made when asked.

use portolan_sdk::{ConfigError, Directive, Event, Groups, Invalidation, NameTables, config};

/// The binding's text, such as `{"max_idle_ms": 60000}`.
#[derive(serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FreshOnly {
    /// KV unused for longer goes at the next tick.
    max_idle_ms: u32,
}

impl Default for FreshOnly {
    fn default() -> Self {
        Self {
            max_idle_ms: 30 * 60 * 1000,
        }
    }
}

impl Invalidation for FreshOnly {
    /// `names` holds the tables of sites, models and user classes, for policies that need names.
    fn configure(text: &str, _names: &NameTables) -> Result<Self, ConfigError> {
        config::parse(text)
    }

    fn react(&self, event: &Event, groups: Groups<'_>) -> Vec<Directive> {
        match event {
            Event::ModelUpdated(change) => vec![Directive::BelowVersion {
                model: change.model,
                version: change.new_version,
            }],
            Event::DependenciesChanged(changed) => {
                changed.iter().cloned().map(Directive::DependsOn).collect()
            }
            Event::CapacityPressure(pressure) => {
                // A tenth stays free, so that the next request does not bring the next event.
                let excess = pressure.used_mib.checked_sub(pressure.limit_mib / 10 * 9);
                excess
                    .filter(|mib| *mib > 0)
                    .map(Directive::FreeMib)
                    .into_iter()
                    .collect()
            }
            Event::TenantRemoved => groups
                .iter()
                .map(|group| Directive::DropGroup(group.group()))
                .collect(),
            Event::Tick(_) => vec![Directive::IdleLongerThan(self.max_idle_ms.into())],
            // The host knows the prefix by its hash.
            Event::PrefixRevoked(_) => Vec::new(),
        }
    }
}

portolan_sdk::invalidation!(FreshOnly);
