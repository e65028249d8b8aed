//! How many requests each tenant has in flight: one tenant's burst must not fill the site.

use parking_lot::Mutex;
use portolan_base::TenantName;
use std::collections::HashMap;
use std::sync::Arc;

/// Counts requests in flight by tenant. Tenants without any take no memory.
#[derive(Debug)]
pub struct TenantsInFlight {
    most: usize,
    counts: Mutex<HashMap<TenantName, usize>>,
}

/// A request of a tenant in flight, until it is dropped.
#[derive(Debug)]
pub struct TenantPass {
    tenant: TenantName,
    answers: usize,
    of: Arc<TenantsInFlight>,
}

impl TenantsInFlight {
    /// Lets each tenant have at most `most` requests in flight.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            counts: Mutex::default(),
        })
    }

    /// Lets one more in, or not.
    pub fn enter(self: &Arc<Self>, tenant: &TenantName) -> Option<TenantPass> {
        self.enter_with(tenant, 1)
    }

    /// Lets one in that is so many requests at once, or not.
    pub fn enter_with(self: &Arc<Self>, tenant: &TenantName, answers: usize) -> Option<TenantPass> {
        let mut counts = self.counts.lock();
        let before = counts.get(tenant).copied().unwrap_or(0);
        if before.saturating_add(answers) > self.most {
            return None;
        }
        counts.insert(tenant.clone(), before + answers);
        Some(TenantPass {
            tenant: tenant.clone(),
            answers,
            of: Arc::clone(self),
        })
    }
}

impl Drop for TenantPass {
    fn drop(&mut self) {
        let mut counts = self.of.counts.lock();
        if let Some(count) = counts.get_mut(&self.tenant) {
            *count -= self.answers;
            if *count == 0 {
                counts.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_tenant_does_not_keep_another_out_and_comes_back_when_one_ends() {
        let (acme, globex) = (
            TenantName::new("acme").unwrap(),
            TenantName::new("globex").unwrap(),
        );
        let in_flight = TenantsInFlight::new(2);
        let first = in_flight.enter(&acme).unwrap();
        let _second = in_flight.enter(&acme).unwrap();
        assert!(in_flight.enter(&acme).is_none());
        assert!(in_flight.enter(&globex).is_some());
        drop(first);
        assert!(in_flight.enter(&acme).is_some());
        assert_eq!(in_flight.counts.lock().len(), 1, "only who has one is remembered");
        assert!(in_flight.enter_with(&globex, 3).is_none());
        let two = in_flight.enter_with(&globex, 2).unwrap();
        assert!(in_flight.enter(&globex).is_none());
        drop(two);
        assert!(in_flight.enter(&globex).is_some());
    }
}
