//! A queue in which tenants take turns: one tenant's burst delays its own requests, not another's.
//!
//! Tenants go by their names. A cache key would not do: a client's own salt, a newer version of the model or an order whose
//! KV is not to be found again makes it another one, and with it a turn of its own.

use portolan_base::Scope;
use std::collections::VecDeque;

/// First come, first served within a tenant; tenants one after the other.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    /// The tenant at the front is next. No queue in here is empty.
    tenants: VecDeque<(Scope, VecDeque<T>)>,
}

impl<T> FairQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            tenants: VecDeque::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// Adds an item behind the tenant's others.
    pub(crate) fn push(&mut self, tenant: Scope, item: T) {
        match self.tenants.iter_mut().find(|(known, _)| *known == tenant) {
            Some((_, queue)) => queue.push_back(item),
            None => self.tenants.push_back((tenant, VecDeque::from([item]))),
        }
    }

    /// Takes the first item of the tenant whose turn it is; the next turn is another tenant's.
    pub(crate) fn pop(&mut self) -> Option<(Scope, T)> {
        self.pop_from(0)
    }

    /// Takes the first item of the tenant that has the least by `has`, the one whose turn comes first among equals.
    pub(crate) fn pop_of_least(&mut self, has: impl Fn(&Scope) -> usize) -> Option<(Scope, T)> {
        let least = self.least(has)?;
        self.pop_from(least)
    }

    /// The item that [`pop_of_least`](Self::pop_of_least) would take.
    pub(crate) fn of_least(&self, has: impl Fn(&Scope) -> usize) -> Option<(&Scope, &T)> {
        let (tenant, queue) = self.tenants.get(self.least(has)?)?;
        queue.front().map(|item| (tenant, item))
    }

    fn least(&self, has: impl Fn(&Scope) -> usize) -> Option<usize> {
        (0..self.tenants.len()).min_by_key(|&i| has(&self.tenants[i].0))
    }

    /// Puts an item that needs another turn back before the tenant's others.
    pub(crate) fn put_back(&mut self, tenant: Scope, item: T) {
        match self.tenants.iter_mut().find(|(known, _)| *known == tenant) {
            Some((_, queue)) => queue.push_front(item),
            None => self.tenants.push_back((tenant, VecDeque::from([item]))),
        }
    }

    /// Takes out every item that `gone` says has nobody waiting.
    pub(crate) fn take_out(&mut self, gone: impl Fn(&T) -> bool) -> Vec<T> {
        let mut out = Vec::new();
        for (_, queue) in &mut self.tenants {
            let (left, kept) = std::mem::take(queue).into_iter().partition::<Vec<_>, _>(&gone);
            out.extend(left);
            queue.extend(kept);
        }
        self.tenants.retain(|(_, queue)| !queue.is_empty());
        out
    }

    fn pop_from(&mut self, index: usize) -> Option<(Scope, T)> {
        let (tenant, mut queue) = self.tenants.remove(index)?;
        let item = queue.pop_front()?;
        if !queue.is_empty() {
            self.tenants.push_back((tenant.clone(), queue));
        }
        Some((tenant, item))
    }
}

impl<T> IntoIterator for FairQueue<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.tenants
            .into_iter()
            .flat_map(|(_, queue)| queue)
            .collect::<Vec<_>>()
            .into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::TenantName;

    fn tenant(name: &str) -> Scope {
        Scope::Tenant(TenantName::new(name).unwrap())
    }

    #[test]
    fn a_late_tenant_with_one_item_comes_second_not_last() {
        let mut queue = FairQueue::new();
        for i in 0..100 {
            queue.push(tenant("burst"), i);
        }
        queue.push(tenant("quiet"), 1000);
        let order: Vec<i32> = std::iter::from_fn(|| queue.pop()).map(|(_, item)| item).collect();
        assert_eq!(order[..4], [0, 1000, 1, 2]);
        assert_eq!(order.len(), 101);
        assert!(queue.is_empty());
    }

    #[test]
    fn an_unfinished_item_keeps_its_place_within_its_tenant() {
        let mut queue = FairQueue::new();
        queue.push(tenant("a"), 1);
        queue.push(tenant("a"), 2);
        queue.push(tenant("b"), 10);
        let (first, item) = queue.pop().unwrap();
        queue.put_back(first, item);
        let order: Vec<i32> = std::iter::from_fn(|| queue.pop()).map(|(_, item)| item).collect();
        assert_eq!(order, [10, 1, 2]);
    }

    #[test]
    fn a_free_slot_goes_to_whoever_has_the_fewest() {
        let mut queue = FairQueue::new();
        queue.push(tenant("many"), 1);
        queue.push(tenant("few"), 2);
        let running = |of: &Scope| if *of == tenant("many") { 7 } else { 0 };
        assert_eq!(queue.pop_of_least(running).map(|(_, item)| item), Some(2));
        assert_eq!(queue.pop_of_least(running).map(|(_, item)| item), Some(1));
        assert!(queue.pop_of_least(running).is_none());
    }

    #[test]
    fn what_nobody_waits_for_is_taken_out() {
        let mut queue = FairQueue::new();
        (0..6).for_each(|i| queue.push(tenant(if i < 3 { "a" } else { "b" }), i));
        assert_eq!(
            queue.take_out(|i| i % 2 == 0 || *i == 5 || *i == 3),
            [0, 2, 3, 4, 5]
        );
        assert_eq!(queue.into_iter().collect::<Vec<_>>(), [1]);
    }
}
