//! What goes into a pool, and what comes out of it.

use super::tenants::{Counts, Shares};
use super::window::BlockWindow;
use crate::block::{BlockKv, PoolBlock};
use portolan_base::{Bytes, Dependency, Moment, Scope};
use std::sync::Arc;
use std::time::Duration;

/// Where a usable prefix may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// After any block: the model has attention only.
    AnyBlock,
    /// After a block with a snapshot: the model has recurrent layers.
    Snapshots,
}

/// Which blocks a pool takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parents {
    /// Those whose parent it holds: no other can be found in it.
    Held,
    /// Any: it is a lower tier, and parents lie in a higher one.
    Elsewhere,
}

/// What a pool is to be.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// The most it may hold.
    pub budget: Bytes,
    /// What each tenant is promised of it.
    pub shares: Shares,
    /// Where prefixes may end.
    pub reuse: Reuse,
    /// Which blocks it takes.
    pub parents: Parents,
    /// How long a block stays when nobody uses it; none: until its room is needed.
    pub time_to_live: Option<Duration>,
    /// What a hit needs, where that is not every block before it.
    pub window: Option<BlockWindow>,
}

impl PoolConfig {
    /// A pool of attention KV of which every tenant is promised the whole: the oldest goes first, whosever it is.
    pub fn of(budget: Bytes) -> Self {
        Self {
            budget,
            shares: Shares::equal(budget, 1),
            reuse: Reuse::AnyBlock,
            parents: Parents::Held,
            time_to_live: None,
            window: None,
        }
    }
}

/// The longest usable prefix of a prompt.
#[derive(Clone, Debug)]
pub struct Held<K = BlockKv> {
    /// The prefix' blocks in order. Each is leased for as long as its `Arc` is kept.
    pub blocks: Vec<Arc<PoolBlock<K>>>,
}

/// What an insertion did.
#[derive(Clone, Debug)]
pub struct Inserted<K = BlockKv> {
    /// Whether the pool took anything from the block: the whole of it, or the snapshot its own copy lacked.
    pub added: bool,
    /// Blocks that made room, the first due first. They can no longer be found.
    pub evicted: Vec<Arc<PoolBlock<K>>>,
    /// Blocks that made way, since they depend on a thing at another version than the block of the same name that came, or
    /// were computed on top of such a one. They can no longer be found.
    pub replaced: Vec<Arc<PoolBlock<K>>>,
}

impl<K> Inserted<K> {
    pub(super) fn nothing() -> Self {
        Self {
            added: false,
            evicted: Vec::new(),
            replaced: Vec::new(),
        }
    }
}

/// What a pool holds of one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantUse {
    /// Whose.
    pub scope: Scope,
    /// What it is promised.
    pub share: Bytes,
    /// What it uses.
    pub used: Bytes,
    /// In so many blocks.
    pub blocks: usize,
    /// What happened to them.
    pub counts: Counts,
}

/// What an operator may see of a block.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'p, K> {
    /// The block.
    pub block: &'p PoolBlock<K>,
    /// Everything it depends on.
    pub dependencies: &'p Arc<[Dependency]>,
    /// Its last use.
    pub used_at: Moment,
    /// How often it was found.
    pub reuses: u32,
    /// Whether someone holds it.
    pub leased: bool,
}
