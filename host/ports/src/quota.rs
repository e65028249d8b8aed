//! What a tenant may use, and the book in which it is looked up.

use portolan_base::TenantName;
use portolan_policy::Scope;
use std::collections::BTreeMap;

/// What one tenant may use altogether, whatever its policies are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Components sent with its own keys in any hour, refused ones included.
    pub uploads_per_hour: u32,
    /// Versions kept, of all questions together.
    pub stored_versions: u32,
    /// Bytes of the components of those versions.
    pub stored_bytes: u64,
    /// Keys that its policies keep between calls.
    pub state_keys: u64,
    /// Bytes of those keys and their values.
    pub state_bytes: u64,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            // One a minute: more than a person tries by hand, and a pipeline that sends each commit. A large component
            // takes a minute of the compiler.
            uploads_per_hour: 60,
            // A hundred compact versions are a few MiB; a day of hourly uploads can be gone back over.
            stored_versions: 100,
            // Ten of the largest components, or a hundred JavaScript ones.
            stored_bytes: 256 << 20,
            // Four policies with a counter for each of some thousand sessions or routes.
            state_keys: 16_384,
            // Keys of 48 bytes on average, each with its value.
            state_bytes: 1 << 20,
        }
    }
}

/// The quotas of everyone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaBook {
    usual: Quotas,
    tenants: BTreeMap<TenantName, Quotas>,
}

impl QuotaBook {
    /// A book in which every tenant has the usual quotas, but for those named.
    pub const fn new(usual: Quotas, tenants: BTreeMap<TenantName, Quotas>) -> Self {
        Self { usual, tenants }
    }

    /// What a scope may use. The platform's own uploads and versions are the operator's affair and have no bound; its
    /// policies' state has the usual one, since a policy fills it and no person does.
    pub fn of(&self, scope: &Scope) -> Quotas {
        match scope {
            Scope::Tenant(tenant) => self.tenants.get(tenant).copied().unwrap_or(self.usual),
            Scope::Platform => Quotas {
                uploads_per_hour: u32::MAX,
                stored_versions: u32::MAX,
                stored_bytes: u64::MAX,
                ..self.usual
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_its_own_quotas_or_the_usual_ones_and_the_platform_stores_without_a_bound() {
        let tenant = |name: &str| TenantName::new(name).unwrap();
        let own = Quotas {
            stored_versions: 3,
            ..Quotas::default()
        };
        let usual = Quotas {
            state_keys: 7,
            ..Quotas::default()
        };
        let book = QuotaBook::new(usual, BTreeMap::from([(tenant("acme"), own)]));
        assert_eq!(book.of(&Scope::Tenant(tenant("acme"))), own);
        assert_eq!(book.of(&Scope::Tenant(tenant("globex"))), usual);
        let platform = book.of(&Scope::Platform);
        assert_eq!((platform.stored_versions, platform.state_keys), (u32::MAX, 7));
    }
}
