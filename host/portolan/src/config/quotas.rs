//! What tenants may use, as the file says it: the usual quotas of the platform, and a tenant's own above them.

use super::{Config, ConfigError};
use portolan_base::TenantName;
use portolan_plugin::{Limits, TenantLimits};
use portolan_ports::{QuotaBook, Quotas};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Quotas. What is left out is as one level up: the platform's, then the built-in ones.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QuotaConfig {
    /// Components sent with the tenant's own keys in any hour.
    pub uploads_per_hour: Option<u32>,
    /// Versions kept, of all questions together.
    pub stored_versions: Option<u32>,
    /// Bytes of their components.
    pub stored_bytes: Option<u64>,
    /// Keys that its policies keep between calls.
    pub state_keys: Option<u64>,
    /// Bytes of those keys and their values.
    pub state_bytes: Option<u64>,
    /// Most fuel of a call to one of its policies.
    pub fuel_per_call: Option<u64>,
    /// Most milliseconds of a call by the clock.
    pub call_ms: Option<u64>,
    /// Memory of an instance.
    pub memory_mib: Option<usize>,
    /// Calls under way at once, of all its policies together.
    pub concurrent_calls: Option<usize>,
    /// Log lines of one policy.
    pub log_lines_per_second: Option<u32>,
}

/// What the policy runtime holds tenants to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeQuotas {
    /// A tenant that is not named.
    pub usual: TenantLimits,
    /// Each tenant of the configuration.
    pub tenants: BTreeMap<TenantName, TenantLimits>,
}

impl QuotaConfig {
    /// These quotas where they are given, else those of `base`.
    fn over(&self, base: Quotas) -> Quotas {
        Quotas {
            uploads_per_hour: self.uploads_per_hour.unwrap_or(base.uploads_per_hour),
            stored_versions: self.stored_versions.unwrap_or(base.stored_versions),
            stored_bytes: self.stored_bytes.unwrap_or(base.stored_bytes),
            state_keys: self.state_keys.unwrap_or(base.state_keys),
            state_bytes: self.state_bytes.unwrap_or(base.state_bytes),
        }
    }

    /// Those of them that the policy runtime enforces.
    const fn limits(&self) -> TenantLimits {
        TenantLimits {
            fuel_per_call: self.fuel_per_call,
            call_ms: self.call_ms,
            memory_mib: self.memory_mib,
            concurrent_calls: self.concurrent_calls,
            log_lines_per_second: self.log_lines_per_second,
        }
    }
}

impl Config {
    /// The quotas of everyone.
    pub fn quotas(&self) -> QuotaBook {
        let usual = self.policies.quotas.over(Quotas::default());
        let tenants = self.tenants.iter();
        let own = tenants.map(|tenant| (tenant.name.clone(), tenant.quotas.over(usual)));
        QuotaBook::new(usual, own.collect())
    }

    /// What the policy runtime holds everyone to.
    pub fn runtime_quotas(&self) -> RuntimeQuotas {
        let usual = self.policies.quotas.limits();
        let tenants = self.tenants.iter();
        let own = tenants.map(|tenant| (tenant.name.clone(), tenant.quotas.limits().over(usual)));
        RuntimeQuotas {
            usual,
            tenants: own.collect(),
        }
    }

    pub(super) fn check_quotas(&self) -> Result<(), ConfigError> {
        let places = std::iter::once(("policies".to_owned(), self.policies.quotas));
        let tenants = self.tenants.iter();
        let tenants = tenants.map(|tenant| (format!("tenants.{}", tenant.name), tenant.quotas));
        for (place, quotas) in places.chain(tenants) {
            if quotas.stored_versions == Some(0) {
                let key = format!("{place}.quotas.stored_versions");
                return Err(ConfigError::value(
                    key,
                    "at least 1, or no policy can be uploaded",
                ));
            }
            quotas
                .limits()
                .check(&Limits::default())
                .map_err(|e| ConfigError::value(format!("{place}.quotas.{}", e.key), e.to_string()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_ports::Scope;

    fn parse(policies: &str, tenant: &str) -> Result<Config, ConfigError> {
        Config::parse(&format!(
            "{{data_dir: data, operator_keys: [op], models: [], policies: {policies},
               tenants: [{{name: acme, keys: [k1], quotas: {tenant}}}, {{name: globex, keys: [k2]}}],
               sites: [{{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: []}}]}}"
        ))
    }

    #[test]
    fn a_tenants_quotas_lie_over_the_platforms_and_those_over_the_built_in_ones() {
        let config = parse(
            "{quotas: {uploads_per_hour: 5, state_keys: 9}}",
            "{uploads_per_hour: 7, stored_bytes: 1000}",
        );
        let book = config.unwrap().quotas();
        let of = |name: &str| book.of(&Scope::Tenant(TenantName::new(name).unwrap()));
        let usual = Quotas {
            uploads_per_hour: 5,
            state_keys: 9,
            ..Quotas::default()
        };
        let own = Quotas {
            uploads_per_hour: 7,
            stored_bytes: 1000,
            ..usual
        };
        assert_eq!((of("acme"), of("globex")), (own, usual));
    }

    #[test]
    fn what_the_runtime_enforces_lies_over_the_platforms_too() {
        let config = parse(
            "{quotas: {fuel_per_call: 50000, call_ms: 5}}",
            "{fuel_per_call: 90000, memory_mib: 2, concurrent_calls: 3, log_lines_per_second: 0}",
        );
        let quotas = config.unwrap().runtime_quotas();
        let usual = TenantLimits {
            fuel_per_call: Some(50_000),
            call_ms: Some(5),
            ..TenantLimits::default()
        };
        let acme = TenantLimits {
            fuel_per_call: Some(90_000),
            call_ms: Some(5),
            memory_mib: Some(2),
            concurrent_calls: Some(3),
            log_lines_per_second: Some(0),
        };
        let name = |name| TenantName::new(name).unwrap();
        assert_eq!(quotas.usual, usual);
        let tenants = BTreeMap::from([(name("acme"), acme), (name("globex"), usual)]);
        assert_eq!(quotas.tenants, tenants);
    }

    #[test]
    fn a_limit_beyond_what_the_runtime_allows_is_refused_with_its_range() {
        for (policies, tenant, said) in [
            (
                "{}",
                "{fuel_per_call: 20000001}",
                "tenants.acme.quotas.fuel_per_call: 20000001 is not in the allowed range, 1 to 20000000",
            ),
            (
                "{quotas: {call_ms: 51}}",
                "{}",
                "policies.quotas.call_ms: 51 is not in the allowed range, 1 to 50",
            ),
            (
                "{}",
                "{memory_mib: 0}",
                "memory_mib: 0 is not in the allowed range, 1 to 128",
            ),
        ] {
            let error = parse(policies, tenant).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_quota_that_is_misspelt_or_lets_nothing_in_is_named() {
        let said = |policies, tenant| parse(policies, tenant).unwrap_err().to_string();
        assert!(said("{quotas: {uploads: 5}}", "{}").contains("uploads"));
        let none = said("{}", "{stored_versions: 0}");
        assert!(none.contains("tenants.acme.quotas.stored_versions"), "{none}");
    }
}
