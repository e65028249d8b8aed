//! How long what is cached is trusted without a word from the control stream, as the file says it.

use super::{Config, ConfigError};
use portolan_fleet::LeaseRules;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Shortest lease: four beats a lease have to come through a quorum.
const LEASE_LEAST_MS: u64 = 200;

/// Longest: `--wait` takes as long when a site does not answer.
const LEASE_MOST_MS: u64 = 60_000;

/// How long what is cached is trusted. The same for all sites of a fleet.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InvalidationConfig {
    /// How long a site uses what it cached after it last heard from the control stream.
    pub lease_ms: u64,
    /// How far the clocks of two sites may drift apart within a lease.
    pub clock_drift_ms: u64,
}

impl Default for InvalidationConfig {
    fn default() -> Self {
        let rules = LeaseRules::default();
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            lease_ms: ms(rules.lease),
            clock_drift_ms: ms(rules.drift),
        }
    }
}

impl InvalidationConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if !(LEASE_LEAST_MS..=LEASE_MOST_MS).contains(&self.lease_ms) {
            let problem = format!(
                "{} is not between {LEASE_LEAST_MS} and {LEASE_MOST_MS}",
                self.lease_ms
            );
            return Err(ConfigError::value("invalidation.lease_ms", problem));
        }
        if self.clock_drift_ms > self.lease_ms {
            let problem = "clocks that drift further than a lease lasts are broken";
            return Err(ConfigError::value("invalidation.clock_drift_ms", problem));
        }
        Ok(())
    }
}

impl Config {
    /// How long leases last.
    pub fn lease_rules(&self) -> LeaseRules {
        LeaseRules {
            lease: Duration::from_millis(self.invalidation.lease_ms),
            drift: Duration::from_millis(self.invalidation.clock_drift_ms),
        }
    }
}
