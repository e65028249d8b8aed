//! How the configuration of a running host is changed, as the file says it; and which keys can be.

use super::tree::{Change, matches};
use super::{Config, ConfigError, OperatorKey};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// How the configuration of a running host is changed.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChangingConfig {
    /// A change waits until two operators stand behind it ([Changing it](configuration.md#changing-it)); every operator
    /// key then needs a name, and two different ones.
    pub four_eyes: bool,
    /// How long it can be approved, in hours.
    pub proposal_hours: u32,
    /// Versions that are kept.
    pub keep_versions: usize,
}

impl Default for ChangingConfig {
    fn default() -> Self {
        Self {
            four_eyes: false,
            proposal_hours: 24,
            // A year of weekly changes, twice; a version takes a few kilobytes.
            keep_versions: 100,
        }
    }
}

impl ChangingConfig {
    /// How long a change can be approved.
    pub fn expiry(&self) -> Duration {
        Duration::from_secs(3600 * u64::from(self.proposal_hours))
    }
}

/// When a change of a key counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// At once.
    Effect,
    /// When the host starts again.
    Restart,
}

/// Which changes count at once; the last pattern that covers a place decides, and what none covers needs a restart.
const RULES: &[(&str, Takes)] = &[
    ("operator_keys", Takes::Effect),
    ("tenants", Takes::Effect),
    // These shape pools and limits that exist.
    ("tenants.*.quotas", Takes::Restart),
    ("tenants.*.kv_share_permille", Takes::Restart),
    ("tenants.*.require_signature", Takes::Restart),
    ("tenants.*.signing_keys", Takes::Restart),
    ("exact_kv_classes", Takes::Effect),
    ("timeouts", Takes::Effect),
    ("retries", Takes::Effect),
    ("routing", Takes::Effect),
    ("observability", Takes::Effect),
    ("links.*.budget_mbps", Takes::Effect),
    ("changing", Takes::Effect),
];

/// When a change of what stands at a place counts.
pub(super) fn takes(place: &str) -> Takes {
    let covering = RULES.iter().rev().find(|(pattern, _)| matches(pattern, place));
    covering.map_or(Takes::Restart, |(_, takes)| *takes)
}

/// When a change counts.
pub fn takes_of(change: &Change) -> Takes {
    takes(&change.key)
}

impl Config {
    pub(super) fn check_changing(&self) -> Result<(), ConfigError> {
        let changing = &self.changing;
        if changing.proposal_hours == 0 {
            return Err(ConfigError::value(
                "changing.proposal_hours",
                "at least 1 is needed",
            ));
        }
        if changing.keep_versions == 0 {
            let problem = "at least 1 is needed: the one in force";
            return Err(ConfigError::value("changing.keep_versions", problem));
        }
        if changing.four_eyes {
            let holders: BTreeSet<_> = self
                .operator_keys
                .iter()
                .filter_map(OperatorKey::holder)
                .collect();
            let unnamed = self.operator_keys.iter().any(|key| key.holder().is_none());
            if unnamed || holders.len() < 2 {
                let problem = "changing.four_eyes needs keys of at least two operators, each written {name: NAME, key: KEY}";
                return Err(ConfigError::value("operator_keys", problem));
            }
        }
        Ok(())
    }
}
