//! How far emptying a site came, and what could not be moved.

use super::Served;
use crate::site::Site;
use portolan_base::{BlockId, Bytes};
use portolan_decide::Hot;
use serde::Serialize;

/// What the operator sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Progress {
    /// Whether nothing is left to try.
    pub(crate) ended: bool,
    /// Prefixes that were worth moving.
    pub(crate) prefixes: usize,
    /// Those that another site has, all of them, since it took what it lacked.
    pub(crate) moved: usize,
    /// Those that another site had.
    pub(crate) there_already: usize,
    /// Those that went here before their turn came.
    pub(crate) gone: usize,
    /// Tokens whose KV crossed.
    pub(crate) tokens: u64,
    /// Bytes that crossed, those of what failed too.
    pub(crate) bytes: u64,
    /// What is not at another site, or not all of it.
    pub(crate) not_moved: Vec<NotMoved>,
    /// Bytes that are thought to be under way.
    #[serde(skip)]
    reserved: u64,
}

/// A prefix that could not be moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NotMoved {
    tenant: String,
    model: String,
    /// Its last block, as `kv ls` names it.
    block: String,
    tokens: u64,
    /// Requests that asked for it.
    asks: u32,
    why: String,
}

/// What came of one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) end: End,
    pub(super) tokens: u64,
    pub(super) bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Moved,
    ThereAlready,
    Gone,
    NotMoved(String),
}

impl Outcome {
    pub(super) fn without_bytes(end: End) -> Self {
        Self {
            end,
            tokens: 0,
            bytes: 0,
        }
    }

    pub(super) fn not_moved(why: impl Into<String>) -> Self {
        Self::without_bytes(End::NotMoved(why.into()))
    }
}

impl Progress {
    pub(super) fn of(prefixes: usize) -> Self {
        Self {
            prefixes,
            ended: false,
            ..Self::default()
        }
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Takes so many bytes of the bound for an order, if they are left.
    pub(super) fn reserve(&mut self, bytes: Bytes, most: Bytes) -> bool {
        let fits = self.bytes.saturating_add(self.reserved).saturating_add(bytes.0) <= most.0;
        if fits {
            self.reserved += bytes.0;
        }
        fits
    }

    /// Gives them back; what crossed is counted when the prefix is.
    pub(super) fn release(&mut self, bytes: Bytes) {
        self.reserved = self.reserved.saturating_sub(bytes.0);
    }

    pub(super) fn count(&mut self, site: &Site, hot: &Hot<Served>, outcome: Outcome) {
        self.tokens += outcome.tokens;
        self.bytes += outcome.bytes;
        match outcome.end {
            End::Moved => self.moved += 1,
            End::ThereAlready => self.there_already += 1,
            End::Gone => self.gone += 1,
            End::NotMoved(why) => self.not_moved.push(NotMoved::new(site, hot, why)),
        }
    }
}

impl NotMoved {
    fn new(site: &Site, hot: &Hot<Served>, why: String) -> Self {
        let order = &hot.what.order;
        let layout = site
            .parts
            .models
            .get(&order.model)
            .map(|model| &model.description.layout);
        let block = layout.map(|layout| {
            let tokens = order.tokens.get(..hot.blocks * layout.block_tokens as usize);
            let tokens = tokens.unwrap_or(&order.tokens);
            let version = site.model_version(layout);
            let key = site.cache_key(&order.tenant, (layout, version), tokens);
            let last = BlockId::chain(&key, tokens, layout.block_tokens as usize)
                .last()
                .copied();
            (last, tokens.len() as u64)
        });
        let (last, tokens) = block.unwrap_or_default();
        Self {
            tenant: order.tenant.to_string(),
            model: order.model.to_string(),
            block: last.map(|BlockId(id)| hex::encode(id)).unwrap_or_default(),
            tokens,
            asks: hot.asks,
            why,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_counts_against_the_bound() {
        let mut progress = Progress::of(3);
        let most = Bytes(100);
        assert!(progress.reserve(Bytes(60), most));
        assert!(!progress.reserve(Bytes(41), most) && progress.reserve(Bytes(40), most));
        progress.release(Bytes(60));
        progress.bytes += 50;
        assert!(progress.reserve(Bytes(10), most) && !progress.reserve(Bytes(1), most));
    }
}
