//! Host memory as a tier: blocks that the instances of one site share.

use super::{BlockTier, Card, Left, Lying, Offered, Reading, TierUse, lying};
use crate::block::PoolBlock;
use crate::index::Tier;
use crate::pool::{Parents, PoolConfig, PrefixPool, Selector};
use parking_lot::Mutex;
use portolan_base::{BlockId, Bytes, Dependency, Moment, Scope};
use std::sync::Arc;

/// A pool in host memory. A block that is read moves out: whoever reads it holds it from then on, and demotes it again.
#[derive(Debug)]
pub struct HostTier(Mutex<PrefixPool>);

impl HostTier {
    /// An empty tier.
    pub fn new(config: PoolConfig) -> Self {
        Self(Mutex::new(PrefixPool::new(PoolConfig {
            parents: Parents::Elsewhere,
            ..config
        })))
    }
}

impl BlockTier for HostTier {
    fn tier(&self) -> Tier {
        Tier::Host
    }

    fn offer(&self, block: Arc<PoolBlock>, now: Moment) -> Offered {
        let id = block.id;
        let mut pool = self.0.lock();
        let inserted = pool.insert(Arc::unwrap_or_clone(block), now);
        Offered {
            taken: pool.see(&id).is_some(),
            displaced: inserted.evicted,
            gone: inserted
                .replaced
                .iter()
                .map(|block| block.as_ref().into())
                .collect(),
        }
    }

    fn holds(&self, id: &BlockId, parent: Option<BlockId>, on: &[Dependency], now: Moment) -> Option<Lying> {
        let pool = self.0.lock();
        pool.find_for(id, parent, on, now).map(|block| lying(&block.kv))
    }

    fn read(&self, id: &BlockId, _now: Moment) -> Option<Arc<PoolBlock>> {
        self.0.lock().remove(id)
    }

    fn reading(&self) -> Reading {
        Reading::AT_ONCE
    }

    fn count(&self, scope: &Scope, hits: u64, misses: u64) {
        self.0.lock().count(scope, hits, misses);
    }

    fn invalidate(&self, what: &Selector, above: &[BlockId]) -> Vec<Left> {
        let mut pool = self.0.lock();
        let mut gone = pool.invalidate(what);
        gone.extend(pool.forget(above));
        gone.iter().map(|block| block.as_ref().into()).collect()
    }

    fn would_forget(&self, what: &Selector, above: &[BlockId]) -> Vec<(BlockId, Bytes)> {
        self.0.lock().would_forget(what, above)
    }

    fn expire(&self, now: Moment) -> Vec<Left> {
        let gone = self.0.lock().expire(now);
        gone.iter().map(|block| block.as_ref().into()).collect()
    }

    fn usage(&self) -> TierUse {
        TierUse::of(&self.0.lock())
    }

    fn each(&self, show: &mut dyn FnMut(Card)) {
        self.0.lock().iter().for_each(|seen| show(seen.into()));
    }

    fn hand_down(&self, take: &mut dyn FnMut(Arc<PoolBlock>, Moment) -> bool) {
        let order = self.0.lock().latest_first();
        for id in order {
            let handed = self.0.lock().handed(&id);
            if handed.is_some_and(|(block, used_at)| !take(block, used_at)) {
                return;
            }
        }
    }
}
