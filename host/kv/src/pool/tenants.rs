//! The pool's room by tenant: what each is promised, what it uses, what of it goes first.

use super::credit::Due;
use portolan_base::{BlockId, Bytes, Scope};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// How much of a pool each tenant is promised. Room that others leave free may be used by anyone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Of a tenant that is not named.
    pub usual: Bytes,
    /// Of those that are.
    pub named: HashMap<Scope, Bytes>,
}

impl Shares {
    /// `budget` cut into equal parts for `tenants`.
    pub fn equal(budget: Bytes, tenants: usize) -> Self {
        Self {
            usual: Bytes(budget.0 / (tenants as u64).max(1)),
            named: HashMap::new(),
        }
    }

    fn of(&self, scope: &Scope) -> Bytes {
        self.named.get(scope).copied().unwrap_or(self.usual)
    }
}

/// What happened to a tenant's blocks since the pool began. All but `hits` and `misses` count what befell them here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks asked for and found.
    pub hits: u64,
    /// Blocks asked for and not found, or of no use without a snapshot.
    pub misses: u64,
    /// Taken in.
    pub stored: u64,
    /// Gone to make room, or way for what depends on another version of something.
    pub evicted: u64,
    /// Gone because nobody used them for too long.
    pub expired: u64,
    /// Gone by order.
    pub invalidated: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.stored += other.stored;
        self.evicted += other.evicted;
        self.expired += other.expired;
        self.invalidated += other.invalidated;
    }
}

/// Position of a tenant in [`Tenants`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TenantIndex(usize);

/// One tenant's part.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) scope: Scope,
    pub(super) share: Bytes,
    pub(super) used: Bytes,
    pub(super) blocks: HashSet<BlockId>,
    /// Its blocks that nothing hangs on: what may be evicted, the first due first.
    pub(super) leaves: BTreeMap<Due, BlockId>,
    pub(super) counts: Counts,
    /// Where it stands in [`Tenants::over`].
    listed: Option<Due>,
}

/// All parts.
#[derive(Debug)]
pub(super) struct Tenants {
    shares: Shares,
    parts: Vec<Part>,
    by_scope: HashMap<Scope, TenantIndex>,
    /// Those above their share with something to evict, by their first leaf.
    over: BTreeSet<(Due, TenantIndex)>,
}

impl Tenants {
    pub(super) fn new(shares: Shares) -> Self {
        Self {
            shares,
            parts: Vec::new(),
            by_scope: HashMap::new(),
            over: BTreeSet::new(),
        }
    }

    pub(super) fn index(&mut self, scope: &Scope) -> TenantIndex {
        if let Some(index) = self.by_scope.get(scope) {
            return *index;
        }
        let index = TenantIndex(self.parts.len());
        self.parts.push(Part {
            scope: scope.clone(),
            share: self.shares.of(scope),
            used: Bytes(0),
            blocks: HashSet::new(),
            leaves: BTreeMap::new(),
            counts: Counts::default(),
            listed: None,
        });
        self.by_scope.insert(scope.clone(), index);
        index
    }

    pub(super) fn find(&self, scope: &Scope) -> Option<&Part> {
        self.by_scope.get(scope).map(|index| self.part(*index))
    }

    pub(super) fn part(&self, index: TenantIndex) -> &Part {
        &self.parts[index.0]
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Changes counters only; whatever moves blocks goes through [`Self::change`].
    pub(super) fn counts(&mut self, index: TenantIndex) -> &mut Counts {
        &mut self.parts[index.0].counts
    }

    pub(super) fn change(&mut self, index: TenantIndex, change: impl FnOnce(&mut Part)) {
        let part = &mut self.parts[index.0];
        change(part);
        let first = part.leaves.first_key_value().map(|(due, _)| *due);
        let listed = first.filter(|_| part.used > part.share);
        if listed == part.listed {
            return;
        }
        if let Some(before) = std::mem::replace(&mut part.listed, listed) {
            self.over.remove(&(before, index));
        }
        if let Some(due) = listed {
            self.over.insert((due, index));
        }
    }

    /// The block that makes room for `size` more of `index`: its own when that takes it above its share, otherwise the
    /// first that is due of those above theirs. When there is none, more was promised than there is, and the first that
    /// is due of all goes. `is_free` tells blocks that may go.
    pub(super) fn victim(
        &self,
        index: TenantIndex,
        size: Bytes,
        is_free: impl Fn(&BlockId) -> bool,
    ) -> Option<BlockId> {
        let free_leaf = |index: TenantIndex| {
            let mut leaves = self.part(index).leaves.iter();
            leaves.find(|(_, id)| is_free(id)).map(|(due, id)| (*due, *id))
        };
        let own = self.part(index);
        if own.used + size > own.share {
            return free_leaf(index).map(|(_, id)| id);
        }
        // The order is that of first leaves. Where those are leased a later one counts, so the search goes on until
        // no tenant's first leaf can be due before what was found.
        let mut best: Option<(Due, BlockId)> = None;
        for (first, index) in &self.over {
            if best.is_some_and(|(due, _)| due < *first) {
                break;
            }
            best = best.into_iter().chain(free_leaf(*index)).min();
        }
        let everyone = || {
            (0..self.parts.len())
                .filter_map(|index| free_leaf(TenantIndex(index)))
                .min()
        };
        best.or_else(everyone).map(|(_, id)| id)
    }
}
