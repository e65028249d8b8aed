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
    /// Calls that may still begin, wherever they run.
    calls: AtomicUsize,
}

/// A slot in use.
pub(crate) struct Slot<'a>(&'a AtomicUsize);

impl Slots {
    fn new(count: usize, calls: usize) -> Self {
        Self {
            free: AtomicUsize::new(count),
            calls: AtomicUsize::new(calls),
        }
    }

    /// Counts a call in, if the scope may have one more.
    pub(crate) fn begin_call(&self) -> Option<Slot<'_>> {
        take(&self.calls)
    }

    /// Takes a slot, if one is free.
    pub(crate) fn take(&self) -> Option<Slot<'_>> {
        take(&self.free)
    }
}

fn take(left: &AtomicUsize) -> Option<Slot<'_>> {
    let less = |left: usize| left.checked_sub(1);
    left.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less)
        .ok()
        .map(|_| Slot(left))
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
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
        let inline = match scope {
            Scope::Platform => limits.inline_calls_platform,
            Scope::Tenant(_) => limits.inline_calls_per_tenant,
        };
        let slots = Arc::new(Slots::new(inline, limits.concurrent_calls));
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

    #[test]
    fn a_tenants_calls_are_counted_over_all_its_policies() {
        let all = ScopeSlots::default();
        let limits = Limits {
            concurrent_calls: 2,
            ..Limits::default()
        };
        let tenant = Scope::Tenant(TenantName::new("a").unwrap());
        let (first, second) = (all.of(&tenant, &limits), all.of(&tenant, &limits));
        let held = (first.begin_call().unwrap(), second.begin_call().unwrap());
        assert!(first.begin_call().is_none());
        drop(held);
        assert!(first.begin_call().is_some());
    }
}
