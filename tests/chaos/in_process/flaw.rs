//! What can be wrong with the parts of a world, to see that the checker would find it.

use super::content::{BLOCK, MODEL};
use super::engine::ChaosEngine;
use portolan_base::{BlockId, TenantKey};
use portolan_kv::PoolBlock;
use std::sync::Arc;

/// What is wrong with a part, to see that it would be found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Flaw {
    #[default]
    None,
    /// An engine uses what an order forgot, as long as its site has a lease.
    KeepsForgotten,
    /// An engine begins on what lies there whether or not its site has a lease.
    IgnoresLeases,
    /// An engine finds KV by its tokens, whosever they are.
    MixesTenants,
    /// Orders are acknowledged and not kept.
    ForgetsOrders,
    /// Orders for KV go to any site.
    AsksAnyone,
}

impl ChaosEngine {
    /// What an engine with a flaw finds beyond what it should.
    pub(super) fn rummage(
        &self,
        key: &TenantKey,
        tokens: &[u32],
        held: Vec<Arc<PoolBlock>>,
    ) -> Vec<Arc<PoolBlock>> {
        let has_lease = self.tiers.is_trusted(self.clock.now());
        let looks = match self.flaw {
            Flaw::KeepsForgotten => has_lease,
            Flaw::MixesTenants => has_lease,
            Flaw::IgnoresLeases => !has_lease,
            _ => false,
        };
        if !looks {
            return held;
        }
        let attic = self.attic.lock();
        let ids = BlockId::chain(&self.key_of_attic(key), tokens, BLOCK as usize);
        let found: Vec<_> = ids.iter().map_while(|id| attic.get(id).cloned()).collect();
        if found.len() > held.len() { found } else { held }
    }

    fn key_of_attic(&self, key: &TenantKey) -> TenantKey {
        match self.flaw {
            Flaw::MixesTenants => TenantKey::derive(&[0; 32], "all", MODEL, 1),
            _ => *key,
        }
    }

    pub(super) fn stow(&self, (key, tokens): (&TenantKey, &[u32]), index: usize, block: &Arc<PoolBlock>) {
        if matches!(
            self.flaw,
            Flaw::KeepsForgotten | Flaw::MixesTenants | Flaw::IgnoresLeases
        ) {
            let ids = BlockId::chain(&self.key_of_attic(key), tokens, BLOCK as usize);
            self.attic.lock().insert(ids[index], Arc::clone(block));
        }
    }
}
