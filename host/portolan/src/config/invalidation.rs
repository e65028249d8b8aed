//! How long what is cached is trusted without a word from the control stream, and when policies are asked to make room, as
//! the file says it.

use super::{Config, ConfigError};
use portolan_base::Permille;
use portolan_fleet::LeaseRules;
use portolan_gateway::PressureRules;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Shortest lease: four beats a lease have to come through a quorum.
const LEASE_LEAST_MS: u64 = 200;

/// Longest: `--wait` takes as long when a site does not answer.
const LEASE_MOST_MS: u64 = 60_000;

/// How long what is cached is trusted, the same for all sites of a fleet; when policies are asked to make room.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InvalidationConfig {
    /// How long a site uses what it cached after it last heard from the control stream.
    pub lease_ms: u64,
    /// How far the clocks of two sites may drift apart within a lease.
    pub clock_drift_ms: u64,
    /// When a bound invalidation policy is asked what goes since room runs out.
    pub pressure: PressureConfig,
}

/// When a bound invalidation policy is asked what goes since room runs out.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PressureConfig {
    /// How full a pool, a tier or a tenant's part of one has to be, in percent.
    pub high_percent: u32,
    /// Beneath this it counts as relieved; it is asked again when it is full again.
    pub low_percent: u32,
    /// Seconds that pass at least before it is asked about the same again.
    pub pause_s: u64,
}

impl Default for PressureConfig {
    fn default() -> Self {
        let rules = PressureRules::default();
        Self {
            high_percent: rules.high.0 / 10,
            low_percent: rules.low.0 / 10,
            pause_s: rules.pause.as_secs(),
        }
    }
}

impl PressureConfig {
    /// As the gateway takes it.
    pub fn rules(&self) -> PressureRules {
        PressureRules {
            high: Permille(self.high_percent * 10),
            low: Permille(self.low_percent * 10),
            pause: Duration::from_secs(self.pause_s),
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        if !(1..=100).contains(&self.high_percent) {
            let problem = "1 to 100 are possible";
            return Err(ConfigError::value("invalidation.pressure.high_percent", problem));
        }
        if self.low_percent >= self.high_percent {
            let problem = format!(
                "it has to be beneath `high_percent`, which is {}",
                self.high_percent
            );
            return Err(ConfigError::value("invalidation.pressure.low_percent", problem));
        }
        if !(1..=86_400).contains(&self.pause_s) {
            let problem = "1 to 86400 are possible";
            return Err(ConfigError::value("invalidation.pressure.pause_s", problem));
        }
        Ok(())
    }
}

impl Default for InvalidationConfig {
    fn default() -> Self {
        let rules = LeaseRules::default();
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            lease_ms: ms(rules.lease),
            clock_drift_ms: ms(rules.drift),
            pressure: PressureConfig::default(),
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
        self.pressure.check()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_that_cannot_both_be_passed_are_refused() {
        let check = |high_percent, low_percent, pause_s| {
            let pressure = PressureConfig {
                high_percent,
                low_percent,
                pause_s,
            };
            pressure.check().map_err(|error| error.to_string())
        };
        assert!(check(95, 92, 10).is_ok() && check(1, 0, 1).is_ok() && check(100, 99, 86_400).is_ok());
        for (bad, key) in [
            (check(101, 90, 10), "high_percent"),
            (check(0, 0, 10), "high_percent"),
            (check(90, 90, 10), "low_percent"),
            (check(90, 80, 0), "pause_s"),
        ] {
            let error = bad.expect_err(key);
            assert!(error.contains(key), "{error}");
        }
    }
}
