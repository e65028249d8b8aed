//! Which orders came while a block was in nobody's pool.

use crate::block::PoolBlock;
use crate::pool::Selector;
use portolan_base::{BlockId, ModelName, Provenance};
use std::collections::{HashMap, VecDeque};

/// Orders remembered. A block is on its way for as long as a prefill or a read lasts, seconds at most; one that was on
/// its way through more orders than these is not taken.
const ORDERS_MAX: usize = 1024;

/// Position in the sequence of orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(u64);

/// The latest orders.
#[derive(Debug, Default)]
pub(super) struct Orders {
    latest: VecDeque<Selector>,
    given: u64,
    /// The lowest version of each model that may be kept. A request that began with an older one finishes with it, and
    /// leaves nothing.
    versions: HashMap<ModelName, u64>,
}

impl Orders {
    pub(super) fn epoch(&self) -> Epoch {
        Epoch(self.given)
    }

    pub(super) fn note(&mut self, what: Selector) {
        self.given += 1;
        if let Selector::Older { model, version } = &what {
            let lowest = self.versions.entry(model.clone()).or_default();
            *lowest = (*lowest).max(*version);
        }
        if what == Selector::All {
            // Whoever begins anew learns the versions anew.
            self.versions.clear();
        }
        self.latest.push_back(what);
        if self.latest.len() > ORDERS_MAX {
            self.latest.pop_front();
        }
    }

    /// Whether no order since `epoch` is about the block, or about one of those `beneath` it.
    pub(super) fn allow<K>(&self, block: &PoolBlock<K>, beneath: &[BlockId], epoch: Epoch) -> bool {
        let version = self.versions.get(&block.about.model);
        version.is_none_or(|lowest| block.about.model_version >= *lowest)
            && self.none_since(epoch, |order| order.reaches(block, beneath))
    }

    /// Whether no order since `epoch` is, or may be, about KV of which only this is known.
    pub(super) fn spare(&self, about: &Provenance, epoch: Epoch) -> bool {
        self.none_since(epoch, |order| order.covers_some_of(about))
    }

    fn none_since(&self, epoch: Epoch, is_about: impl Fn(&Selector) -> bool) -> bool {
        let since = usize::try_from(self.given - epoch.0).unwrap_or(usize::MAX);
        since <= self.latest.len() && !self.latest.iter().rev().take(since).any(is_about)
    }
}
