//! What a site lets in at once, as the file says it.

use super::{Config, ConfigError};
use portolan_gateway::Limits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bounds of each site's door.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Requests in flight at a site before further ones get 503.
    pub max_concurrent_requests: usize,
    /// Of them, those of one tenant before its own get 429; none: half.
    pub max_concurrent_requests_per_tenant: Option<usize>,
    /// Longest request body, in KiB.
    pub body_kib: usize,
    /// Path records that a site keeps.
    pub path_records: usize,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let Limits {
            in_flight,
            body_bytes,
            records,
            ..
        } = Limits::default();
        Self {
            max_concurrent_requests: in_flight,
            max_concurrent_requests_per_tenant: None,
            body_kib: body_bytes >> 10,
            path_records: records,
        }
    }
}

impl LimitsConfig {
    /// As the gateway takes them.
    pub fn limits(&self) -> Limits {
        let half = self.max_concurrent_requests.div_ceil(2);
        Limits {
            in_flight: self.max_concurrent_requests,
            tenant_in_flight: self.max_concurrent_requests_per_tenant.unwrap_or(half),
            body_bytes: self.body_kib << 10,
            records: self.path_records,
        }
    }
}

impl Config {
    pub(super) fn check_limits(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        for (key, value, most) in [
            ("max_concurrent_requests", limits.max_concurrent_requests, 1 << 20),
            (
                "max_concurrent_requests_per_tenant",
                limits.limits().tenant_in_flight,
                1 << 20,
            ),
            ("body_kib", limits.body_kib, 1 << 20),
            ("path_records", limits.path_records, 10_000_000),
        ] {
            if !(1..=most).contains(&value) {
                let problem = format!("1 to {most} are possible");
                return Err(ConfigError::value(format!("limits.{key}"), problem));
            }
        }
        Ok(())
    }
}
