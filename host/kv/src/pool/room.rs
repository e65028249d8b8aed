//! Room: what goes so that something else can come.

use super::credit::Due;
use super::tenants::TenantIndex;
use super::{Entry, PrefixPool};
use crate::block::{Kept, PoolBlock};
use portolan_base::{BlockId, Bytes, Moment};
use std::sync::Arc;

impl<K: Kept> PrefixPool<K> {
    /// Evicts until `size` more bytes of a tenant fit; `None`, with the pool as it was, when that cannot be.
    pub(super) fn make_room(&mut self, tenant: TenantIndex, size: Bytes) -> Option<Vec<Arc<PoolBlock<K>>>> {
        if size > self.budget {
            return None;
        }
        let mut evicted = Vec::new();
        while self.used > self.budget - size {
            let is_free = |id: &BlockId| self.entries.get(id).is_some_and(|entry| !entry.is_leased());
            let victim = self.tenants.victim(tenant, size, is_free);
            let Some(entry) = victim.and_then(|id| self.take(&id)) else {
                // Parents left last, so they return first.
                evicted.into_iter().rev().for_each(|entry| self.put(entry));
                return None;
            };
            evicted.push(entry);
        }
        for entry in &evicted {
            self.unlink(entry.block.id);
            self.tenants.counts(entry.tenant).evicted += 1;
        }
        Some(evicted.into_iter().map(Entry::into_block).collect())
    }

    /// Adds an entry.
    pub(super) fn put(&mut self, entry: Entry<K>) {
        let (id, due, size) = (entry.block.id, entry.due, entry.block.size());
        if let Some(parent) = entry.block.parent {
            self.children.entry(parent).or_default().insert(id);
            if self.window.is_none() {
                self.list_leaf(&parent, None);
            }
        }
        self.missing.remove(&id);
        self.used += size;
        self.worth.add(entry.block.rebuild, size);
        self.dependants.add(id, &entry.dependencies);
        if self.time_to_live.is_some() {
            self.by_time.insert((entry.used_at, due.used), id);
        }
        let is_leaf = self.may_go(&id);
        self.tenants.change(entry.tenant, |part| {
            part.used += size;
            part.blocks.insert(id);
            if is_leaf {
                part.leaves.insert(due, id);
            }
        });
        self.entries.insert(id, entry);
    }

    /// Removes an entry. Under a window its place between its neighbours stays until [`Self::unlink`].
    pub(super) fn take(&mut self, id: &BlockId) -> Option<Entry<K>> {
        let entry = self.entries.remove(id)?;
        let size = entry.block.size();
        self.used = self.used - size;
        self.worth.remove(entry.block.rebuild, size);
        self.dependants.remove(id, &entry.dependencies);
        self.by_time.remove(&(entry.used_at, entry.due.used));
        self.tenants.change(entry.tenant, |part| {
            part.used = part.used - size;
            part.blocks.remove(id);
            part.leaves.remove(&entry.due);
        });
        if self.window.is_some() {
            self.missing
                .extend(entry.block.parent.map(|parent| (*id, parent)));
        } else if let Some(parent) = entry.block.parent
            && let Some(siblings) = self.children.get_mut(&parent)
        {
            siblings.remove(id);
            if siblings.is_empty() {
                self.children.remove(&parent);
                let due = self.entries.get(&parent).map(|entry| entry.due);
                self.list_leaf(&parent, due);
            }
        }
        Some(entry)
    }

    /// Marks a block as used, and as found again `reuses` times more.
    pub(super) fn touch(&mut self, id: &BlockId, now: Moment, reuses: u32) {
        let used = self.next_use();
        let is_leaf = self.may_go(id);
        let (budget, worth, turnover) = (self.budget, self.worth, self.turnover);
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        entry.reuses = entry.reuses.saturating_add(reuses);
        let credit = worth.credit(budget, entry.reuses, entry.block.rebuild, entry.block.size());
        let due = Due {
            at: turnover.saturating_add(credit),
            used,
        };
        let before = std::mem::replace(&mut entry.due, due);
        let used_at = entry.used_at;
        entry.used_at = used_at.max(now);
        if self.time_to_live.is_some() {
            self.by_time.remove(&(used_at, before.used));
            self.by_time.insert((entry.used_at, used), *id);
        }
        if is_leaf {
            self.tenants.change(entry.tenant, |part| {
                part.leaves.remove(&before);
                part.leaves.insert(due, *id);
            });
        }
    }

    /// Whether a held block may be evicted: nothing needs it to be found.
    fn may_go(&self, id: &BlockId) -> bool {
        self.window.is_some() || !self.children.contains_key(id)
    }

    pub(super) fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// Lists a held block as a leaf that is due then, or takes it off the list.
    fn list_leaf(&mut self, id: &BlockId, due: Option<Due>) {
        let Some(entry) = self.entries.get(id) else { return };
        let before = entry.due;
        self.tenants.change(entry.tenant, |part| {
            match due {
                Some(due) => part.leaves.insert(due, *id),
                None => part.leaves.remove(&before),
            };
        });
    }
}
