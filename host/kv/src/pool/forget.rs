//! Blocks that go by order or by age: unreachable at once, and everything computed on top of them with them.

use super::{Entry, PrefixPool};
use crate::block::{Kept, PoolBlock};
use portolan_base::{BlockId, Bytes, Dependency, ModelName, Moment, Provenance, Scope};
use std::collections::HashSet;
use std::sync::Arc;

/// Which blocks an order is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// All.
    All,
    /// Those of one tenant, or the public ones.
    Scope(Scope),
    /// One.
    Block(BlockId),
    /// One, where it is this scope's; what was computed on top of it, as far as that is.
    Owned {
        /// Which.
        block: BlockId,
        /// Whose it has to be.
        of: Scope,
    },
    /// Those that depend on a thing at another version than the one it has from now on.
    Outdated {
        /// The thing and its version.
        by: Dependency,
        /// Whose blocks; none: everyone's.
        of: Option<Scope>,
    },
    /// These.
    Blocks(Arc<HashSet<BlockId>>),
    /// Those that another order is about, but for some scopes'.
    Except {
        /// The other order.
        what: Box<Selector>,
        /// Whose it is not about.
        but: Arc<[Scope]>,
    },
    /// Those that a model computed at a version below this one.
    Older {
        /// Which model.
        model: ModelName,
        /// The lowest version that stays.
        version: u64,
    },
}

impl Selector {
    /// Whether the order is about a block, what the block was computed on left aside.
    pub fn covers<K>(&self, block: &PoolBlock<K>) -> bool {
        match self {
            Self::Block(id) => block.id == *id,
            Self::Blocks(ids) => ids.contains(&block.id),
            Self::Except { what, but } => !but.contains(&block.about.scope) && what.covers(block),
            Self::Owned { block: id, of } => block.id == *id && block.about.scope == *of,
            _ => self.covers_some_of(&block.about),
        }
    }

    /// Whether the order is about a block, or names one of those `beneath` it that it was computed on top of.
    pub fn reaches<K>(&self, block: &PoolBlock<K>, beneath: &[BlockId]) -> bool {
        self.covers(block) || self.names_one_of(beneath, &block.about.scope)
    }

    /// Whether the order is about one block, and what was computed on top of it.
    pub fn names_one_block(&self) -> bool {
        match self {
            Self::Block(_) | Self::Owned { .. } => true,
            Self::Except { what, .. } => what.names_one_block(),
            _ => false,
        }
    }

    /// Whether blocks of a scope may have been computed on top of the one block that the order is about.
    pub fn may_lie_beneath(&self, scope: &Scope) -> bool {
        match self {
            Self::Block(_) => true,
            Self::Owned { of, .. } => of == scope,
            Self::Except { what, but } => !but.contains(scope) && what.may_lie_beneath(scope),
            _ => false,
        }
    }

    fn names_one_of(&self, ids: &[BlockId], scope: &Scope) -> bool {
        match self {
            Self::Block(id) => ids.contains(id),
            Self::Blocks(named) => ids.iter().any(|id| named.contains(id)),
            Self::Owned { block, of } => of == scope && ids.contains(block),
            Self::Except { what, but } => !but.contains(scope) && what.names_one_of(ids, scope),
            Self::All | Self::Scope(_) | Self::Outdated { .. } | Self::Older { .. } => false,
        }
    }

    /// Whether the order is, or may be, about KV of which only this is known: any KV may have been computed on top of
    /// one block.
    pub fn covers_some_of(&self, about: &Provenance) -> bool {
        match self {
            Self::All | Self::Block(_) => true,
            Self::Blocks(ids) => !ids.is_empty(),
            Self::Except { what, but } => !but.contains(&about.scope) && what.covers_some_of(about),
            Self::Scope(scope) | Self::Owned { of: scope, .. } => about.scope == *scope,
            Self::Older { model, version } => about.model == *model && about.model_version < *version,
            Self::Outdated { by, of } => {
                let mut on = about.dependencies.iter();
                of.as_ref().is_none_or(|of| about.scope == *of) && on.any(|d| d.contradicts(by))
            }
        }
    }
}

impl<K: Kept> PrefixPool<K> {
    /// Forgets blocks, leased or not, and what was computed on top of them; returns what was forgotten. None of it can
    /// be found afterwards. Leases stay valid, but their bytes count against the budget no more.
    ///
    /// Costs O(log n) for each block that goes, whatever else the pool holds.
    pub fn invalidate(&mut self, what: &Selector) -> Vec<Arc<PoolBlock<K>>> {
        self.forget(&self.roots(what))
    }

    /// What [`invalidate`](Self::invalidate) would forget, and what [`forget`](Self::forget) would of `others`, with what
    /// each counts against the budget.
    pub fn would_forget(&self, what: &Selector, others: &[BlockId]) -> Vec<(BlockId, Bytes)> {
        let (mut met, mut found) = (HashSet::new(), Vec::new());
        let mut open = self.roots(what);
        open.extend_from_slice(others);
        while let Some(id) = open.pop() {
            if met.insert(id) {
                open.extend(self.children.get(&id).into_iter().flatten().copied());
                found.extend(self.entries.get(&id).map(|entry| (id, entry.block.size())));
            }
        }
        found
    }

    /// The blocks that an order names, without those computed on top of them.
    fn roots(&self, what: &Selector) -> Vec<BlockId> {
        match what {
            Selector::All => self.entries.keys().copied().collect(),
            Selector::Scope(scope) => {
                let part = self.tenants.find(scope);
                part.into_iter().flat_map(|part| &part.blocks).copied().collect()
            }
            Selector::Block(id) => vec![*id],
            Selector::Owned { block, of } => {
                let on_top = self.children.get(block).into_iter().flatten();
                let named = std::iter::once(block).chain(on_top);
                named.filter(|id| self.is_of(id, of)).copied().collect()
            }
            Selector::Outdated { by, of } => {
                let mut ids = self.dependants.outdated(by);
                ids.retain(|id| of.as_ref().is_none_or(|of| self.is_of(id, of)));
                ids
            }
            Selector::Blocks(ids) => ids.iter().copied().collect(),
            Selector::Except { what, but } => {
                let mut ids = self.roots(what);
                ids.retain(|id| !but.iter().any(|scope| self.is_of(id, scope)));
                ids
            }
            // Of the one model of an instance's pool: nearly everything goes.
            Selector::Older { .. } => {
                let old = self.entries.values().filter(|entry| what.covers(&entry.block));
                old.map(|entry| entry.block.id).collect()
            }
        }
    }

    /// Forgets blocks and what was computed on top of them, also where a block itself is kept elsewhere.
    pub fn forget(&mut self, roots: &[BlockId]) -> Vec<Arc<PoolBlock<K>>> {
        let gone: Vec<_> = roots.iter().flat_map(|root| self.take_tree(*root)).collect();
        for entry in &gone {
            self.tenants.counts(entry.tenant).invalidated += 1;
        }
        gone.into_iter().map(|entry| entry.block).collect()
    }

    /// Forgets what nobody used for the pool's time to live. Lookups pass over such blocks anyway; this gives their
    /// bytes back.
    pub fn expire(&mut self, now: Moment) -> Vec<Arc<PoolBlock<K>>> {
        let mut gone = Vec::new();
        while let Some((_, id)) = self
            .by_time
            .first_key_value()
            .filter(|((used, _), _)| self.is_over(*used, now))
        {
            let id = *id;
            match self.window {
                None => gone.extend(self.take_tree(id)),
                // What was computed on top of it is of use without it.
                Some(_) => {
                    gone.extend(self.take(&id));
                    self.unlink(id);
                }
            }
        }
        for entry in &gone {
            self.tenants.counts(entry.tenant).expired += 1;
        }
        gone.into_iter().map(|entry| entry.block).collect()
    }

    pub(super) fn is_over(&self, used: Moment, now: Moment) -> bool {
        self.time_to_live.is_some_and(|live| now.since(used) >= live)
    }

    fn is_of(&self, id: &BlockId, scope: &Scope) -> bool {
        self.entries
            .get(id)
            .is_some_and(|entry| entry.block.about.scope == *scope)
    }

    /// Takes a block and all its descendants out, descendants first.
    pub(super) fn take_tree(&mut self, root: BlockId) -> Vec<Entry<K>> {
        let (mut order, mut open) = (Vec::new(), vec![root]);
        while let Some(id) = open.pop() {
            open.extend(self.children.get(&id).into_iter().flatten().copied());
            order.push(id);
        }
        let taken = order.iter().rev().filter_map(|id| self.take(id)).collect();
        order.iter().rev().for_each(|id| self.unlink(*id));
        taken
    }
}
