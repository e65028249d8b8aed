//! How many calls a scope may have on serving threads at once.

use crate::limits::Limits;
use parking_lot::Mutex;
use portolan_policy::Scope;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// One scope's slots, shared by all its policies.
#[derive(Debug)]
pub(crate) struct Slots {
    free: AtomicUsize,
}

/// A slot in use.
pub(crate) struct Slot<'a>(&'a Slots);

impl Slots {
    fn new(count: usize) -> Self {
        Self {
            free: AtomicUsize::new(count),
        }
    }

    /// Takes a slot, if one is free.
    pub(crate) fn take(&self) -> Option<Slot<'_>> {
        let less = |free: usize| free.checked_sub(1);
        self.free
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, less)
            .ok()
            .map(|_| Slot(self))
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, Ordering::AcqRel);
    }
}

/// Finds a scope's slots, for as long as a policy of that scope is loaded.
#[derive(Default)]
pub(crate) struct ScopeSlots(Mutex<HashMap<Scope, Weak<Slots>>>);

impl ScopeSlots {
    pub(crate) fn of(&self, scope: &Scope, limits: &Limits) -> Arc<Slots> {
        let mut known = self.0.lock();
        if let Some(slots) = known.get(scope).and_then(Weak::upgrade) {
            return slots;
        }
        known.retain(|_, slots| slots.strong_count() > 0);
        let slots = Arc::new(Slots::new(match scope {
            Scope::Platform => limits.inline_calls_platform,
            Scope::Tenant(_) => limits.inline_calls_per_tenant,
        }));
        known.insert(scope.clone(), Arc::downgrade(&slots));
        slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::TenantName;

    #[test]
    fn a_tenants_policies_share_one_slot() {
        let (all, limits) = (ScopeSlots::default(), Limits::default());
        let tenant = |name| Scope::Tenant(TenantName::new(name).unwrap());
        let (first, second) = (all.of(&tenant("a"), &limits), all.of(&tenant("a"), &limits));
        let held = first.take().unwrap();
        assert!(second.take().is_none());
        assert!(all.of(&tenant("b"), &limits).take().is_some());
        drop(held);
        assert!(second.take().is_some());
    }
}
