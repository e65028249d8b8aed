//! What is kept of prompts, in the orders that they are forgotten in: each step takes the logarithm of how many there are.

use super::Prewarmed;
use portolan_base::{Moment, TenantName};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

type Id = Arc<str>;

/// Prompts by id, by their end, and by whose they are.
#[derive(Debug)]
pub(super) struct Kept<T> {
    by_id: HashMap<Id, Arc<Prewarmed<T>>>,
    ends: BTreeSet<(Moment, Id)>,
    tenants: HashMap<TenantName, OfTenant>,
    /// How much each tenant has, in order.
    sizes: BTreeSet<(usize, TenantName)>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct OfTenant {
    bytes: usize,
    ends: BTreeSet<(Moment, Id)>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self {
            by_id: HashMap::new(),
            ends: BTreeSet::new(),
            tenants: HashMap::new(),
            sizes: BTreeSet::new(),
            bytes: 0,
        }
    }
}

impl<T> Kept<T> {
    pub(super) fn get(&self, id: &str) -> Option<&Arc<Prewarmed<T>>> {
        self.by_id.get(id)
    }

    /// Bytes of all prompts.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn bytes_of(&self, tenant: &TenantName) -> usize {
        self.tenants.get(tenant).map_or(0, |of| of.bytes)
    }

    pub(super) fn count_of(&self, tenant: &TenantName) -> usize {
        self.tenants.get(tenant).map_or(0, |of| of.ends.len())
    }

    /// The tenant that has most, and how much.
    pub(super) fn largest(&self) -> Option<(usize, &TenantName)> {
        self.sizes.last().map(|(bytes, tenant)| (*bytes, tenant))
    }

    /// Keeps a prompt; one that was there under the same id goes.
    pub(super) fn insert(&mut self, id: Id, prompt: Prewarmed<T>) {
        self.forget(&id);
        let (end, tenant) = ((prompt.until, Arc::clone(&id)), prompt.tenant.clone());
        self.ends.insert(end.clone());
        self.bytes += prompt.bytes;
        let of = self.tenants.entry(tenant.clone()).or_default();
        of.ends.insert(end);
        self.sizes.remove(&(of.bytes, tenant.clone()));
        of.bytes += prompt.bytes;
        self.sizes.insert((of.bytes, tenant));
        self.by_id.insert(id, Arc::new(prompt));
    }

    /// Forgets what ended by `now`.
    pub(super) fn forget_until(&mut self, now: Moment) {
        while let Some((until, id)) = self.ends.first()
            && *until <= now
        {
            let id = Arc::clone(id);
            self.forget(&id);
        }
    }

    /// Forgets the prompt of a tenant that ends first; false when there is none.
    pub(super) fn forget_first_of(&mut self, tenant: &TenantName) -> bool {
        let first = self.tenants.get(tenant).and_then(|of| of.ends.first());
        let Some(id) = first.map(|(_, id)| Arc::clone(id)) else {
            return false;
        };
        self.forget(&id);
        true
    }

    /// Forgets those that are meant. Goes through all of them.
    pub(super) fn forget_where(&mut self, is_meant: impl Fn(&Prewarmed<T>) -> bool) {
        let meant = self.by_id.iter().filter(|(_, prompt)| is_meant(prompt));
        let meant: Vec<Id> = meant.map(|(id, _)| Arc::clone(id)).collect();
        for id in meant {
            self.forget(&id);
        }
    }

    fn forget(&mut self, id: &Id) {
        let Some(prompt) = self.by_id.remove(id) else {
            return;
        };
        let end = (prompt.until, Arc::clone(id));
        self.ends.remove(&end);
        self.bytes -= prompt.bytes;
        let Some(of) = self.tenants.get_mut(&prompt.tenant) else {
            return;
        };
        of.ends.remove(&end);
        self.sizes.remove(&(of.bytes, prompt.tenant.clone()));
        of.bytes -= prompt.bytes;
        if of.ends.is_empty() {
            self.tenants.remove(&prompt.tenant);
        } else {
            self.sizes.insert((of.bytes, prompt.tenant.clone()));
        }
    }

    /// Whether nothing is left of anything that was kept.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let orders = self.ends.is_empty() && self.tenants.is_empty() && self.sizes.is_empty();
        self.by_id.is_empty() && orders && self.bytes == 0
    }
}
