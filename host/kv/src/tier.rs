//! Places below an instance's own pool: host memory, then files.
//!
//! A block that a pool evicts is *demoted*: offered to the first tier, which may displace others to the next. A prompt
//! whose beginning lies in a tier has it *promoted* before prefill, when reading is cheaper than computing. Tiers never
//! hold a block that an order forgot: see [`Tiers`].

mod host;
mod log;
mod stair;
#[cfg(test)]
mod tests;
mod worth;

pub use host::HostTier;
pub use log::Epoch;
pub use stair::{Below, Found, Open, Tiers, Top};
pub use worth::{Lying, Reading, worth_reading};

use crate::block::PoolBlock;
use crate::index::Tier;
use crate::pool::{PrefixPool, Seen, Selector, TenantUse};
use crate::{BlockKv, Kept};
use portolan_base::{BlockHash, BlockId, Bytes, Dependency, Moment, Provenance, Scope};
use std::sync::Arc;
use std::time::Duration;

/// What became of a block that was offered to a tier.
#[derive(Debug, Default)]
pub struct Offered {
    /// Whether the tier holds the block.
    pub taken: bool,
    /// Blocks that made room for it and may go further down.
    pub displaced: Vec<Arc<PoolBlock>>,
    /// What left the tier and cannot go further.
    pub gone: Vec<Left>,
}

/// A block that a tier does not hold any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Its name.
    pub id: BlockId,
    /// As the prefix index names it.
    pub hashes: Vec<BlockHash>,
    /// What it counted against the budget.
    pub size: Bytes,
}

/// How much an order forgot, or would. Copies of one block in several places count each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// In copies of blocks.
    pub blocks: u64,
    /// What they counted against budgets.
    pub bytes: Bytes,
}

impl Forgotten {
    /// Counts one more.
    pub fn add(&mut self, size: Bytes) {
        self.blocks += 1;
        self.bytes += size;
    }
}

impl core::ops::AddAssign for Forgotten {
    fn add_assign(&mut self, more: Self) {
        self.blocks += more.blocks;
        self.bytes += more.bytes;
    }
}

impl<K: Kept> From<&PoolBlock<K>> for Left {
    fn from(block: &PoolBlock<K>) -> Self {
        Self {
            id: block.id,
            hashes: block.hashes.clone(),
            size: block.size(),
        }
    }
}

/// A place for blocks that a faster one has no room for.
pub trait BlockTier: Send + Sync {
    /// Which place this is.
    fn tier(&self) -> Tier;

    /// Takes a block, without waiting for anything slow.
    fn offer(&self, block: Arc<PoolBlock>, now: Moment) -> Offered;

    /// What the tier would have to read to give the block that comes after `parent` to what depends `on` these; none when it
    /// cannot, or the block depends on one of them at another version.
    fn holds(&self, id: &BlockId, parent: Option<BlockId>, on: &[Dependency], now: Moment) -> Option<Lying>;

    /// The block, verified; none when it is gone, or was found damaged and dropped. May wait for a disk.
    fn read(&self, id: &BlockId, now: Moment) -> Option<Arc<PoolBlock>>;

    /// How fast it reads.
    fn reading(&self) -> Reading;

    /// Counts blocks that a tenant asked for, by whether they were here.
    fn count(&self, scope: &Scope, hits: u64, misses: u64);

    /// Forgets blocks, and those computed on top of them or of `above`; returns what went. They cannot be found when
    /// this returns, nor after a restart.
    fn invalidate(&self, what: &Selector, above: &[BlockId]) -> Vec<Left>;

    /// What [`invalidate`](Self::invalidate) would forget of blocks, with what each counts against the budget.
    fn would_forget(&self, what: &Selector, above: &[BlockId]) -> Vec<(BlockId, Bytes)>;

    /// Forgets what nobody used for too long; returns what went.
    fn expire(&self, now: Moment) -> Vec<Left>;

    /// What it holds and what happened to it.
    fn usage(&self) -> TierUse;

    /// Shows every block, in no particular order.
    fn each(&self, show: &mut dyn FnMut(Card));

    /// Shows every block with its KV and its last use, until told to stop: what was used last first, a block before those
    /// computed on top of it. Nothing where blocks survive the process anyway.
    fn hand_down(&self, _take: &mut dyn FnMut(Arc<PoolBlock>, Moment) -> bool) {}
}

/// What a tier holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierUse {
    /// In bytes.
    pub used: Bytes,
    /// The most it may hold.
    pub budget: Bytes,
    /// In blocks.
    pub blocks: usize,
    /// By tenant.
    pub tenants: Vec<TenantUse>,
    /// Blocks that were found damaged and dropped.
    pub damaged: u64,
    /// Blocks that were not taken because too many were waiting to be written.
    pub refused: u64,
}

impl TierUse {
    /// Of a pool.
    pub fn of<K: Kept>(pool: &PrefixPool<K>) -> Self {
        Self {
            used: pool.used(),
            budget: pool.budget(),
            blocks: pool.blocks(),
            tenants: pool.tenants().collect(),
            damaged: 0,
            refused: 0,
        }
    }
}

/// A block as an operator may see it: everything but the tokens and their KV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Its name.
    pub id: BlockId,
    /// The block before it.
    pub parent: Option<BlockId>,
    /// Whose it is and everything it depends on.
    pub about: Arc<Provenance>,
    /// What it counts against the budget.
    pub size: Bytes,
    /// Whether it carries a recurrent state.
    pub has_snapshot: bool,
    /// What computing it again would take.
    pub rebuild: Duration,
    /// Its last use.
    pub used_at: Moment,
    /// How often it was found.
    pub reuses: u32,
    /// Whether a request holds it.
    pub leased: bool,
}

impl<K: Kept> From<Seen<'_, K>> for Card {
    fn from(seen: Seen<'_, K>) -> Self {
        let block = seen.block;
        let about = if block.about.dependencies == *seen.dependencies {
            Arc::clone(&block.about)
        } else {
            Arc::new(Provenance {
                dependencies: Arc::clone(seen.dependencies),
                ..Provenance::clone(&block.about)
            })
        };
        Self {
            id: block.id,
            parent: block.parent,
            about,
            size: block.size(),
            has_snapshot: block.kv.has_snapshot(),
            rebuild: block.rebuild,
            used_at: seen.used_at,
            reuses: seen.reuses,
            leased: seen.leased,
        }
    }
}

/// What there is to read of a block in memory.
pub(crate) fn lying(kv: &BlockKv) -> Lying {
    Lying {
        bytes: kv.size(),
        has_snapshot: kv.has_snapshot(),
    }
}
