//! The names of a prompt's blocks.

use crate::BLOCK_TOKENS;
use portolan_base::{BlockHash, BlockId, Provenance, TenantKey};
use portolan_kv::tier::Epoch;
use std::sync::Arc;

/// The names of a prompt's full blocks, and whose they are.
#[derive(Debug)]
pub(crate) struct Names {
    pub(super) ids: Vec<BlockId>,
    pub(super) hashes: Vec<BlockHash>,
    /// So many of the first are public.
    pub(super) public: usize,
    pub(super) about: Arc<Provenance>,
    /// Orders to forget that came since are held against its blocks.
    pub(super) epoch: Epoch,
}

impl Names {
    pub(crate) fn of(key: &TenantKey, tokens: &[u32], about: &Arc<Provenance>, epoch: Epoch) -> Self {
        let ids = BlockId::chain(key, tokens, BLOCK_TOKENS as usize);
        Self {
            public: ((key.public_tokens() / BLOCK_TOKENS) as usize).min(ids.len()),
            ids,
            hashes: BlockHash::chain(key, tokens),
            about: Arc::clone(about),
            epoch,
        }
    }

    /// How many full blocks there are.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whose block number `index` is.
    pub(super) fn about(&self, index: usize) -> Arc<Provenance> {
        let tenant = &self.about;
        if index >= self.public {
            return Arc::clone(tenant);
        }
        Arc::new(Provenance::public(tenant.model.clone(), tenant.model_version))
    }
}
