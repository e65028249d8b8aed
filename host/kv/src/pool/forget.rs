//! Blocks that go by order or by age: unreachable at once, and everything computed on top of them with them.

use super::{Entry, PrefixPool};
use crate::block::{Kept, PoolBlock};
use portolan_base::{BlockId, Dependency, Moment, Provenance, Scope};
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
    /// Those that depend on a thing at another version than the one it has from now on.
    Outdated {
        /// The thing and its version.
        by: Dependency,
        /// Whose blocks; none: everyone's.
        of: Option<Scope>,
    },
}

impl Selector {
    /// Whether the order is about a block, what the block was computed on left aside.
    pub fn covers<K>(&self, block: &PoolBlock<K>) -> bool {
        match self {
            Self::Block(id) => block.id == *id,
            _ => self.covers_some_of(&block.about),
        }
    }

    /// Whether the order is, or may be, about KV of which only this is known: any KV may have been computed on top of
    /// one block.
    pub fn covers_some_of(&self, about: &Provenance) -> bool {
        match self {
            Self::All | Self::Block(_) => true,
            Self::Scope(scope) => about.scope == *scope,
            Self::Outdated { by, of } => {
                let mut on = about.dependencies.iter();
                of.as_ref().is_none_or(|of| about.scope == *of)
                    && on.any(|d| d.kind == by.kind && d.name == by.name && d.version != by.version)
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
        let roots: Vec<BlockId> = match what {
            Selector::All => self.entries.keys().copied().collect(),
            Selector::Scope(scope) => {
                let part = self.tenants.find(scope);
                part.into_iter().flat_map(|part| &part.blocks).copied().collect()
            }
            Selector::Block(id) => vec![*id],
            Selector::Outdated { by, of } => {
                let mut ids = self.dependants.outdated(by);
                ids.retain(|id| of.as_ref().is_none_or(|of| self.is_of(id, of)));
                ids
            }
        };
        self.forget(&roots)
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
    fn take_tree(&mut self, root: BlockId) -> Vec<Entry<K>> {
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
