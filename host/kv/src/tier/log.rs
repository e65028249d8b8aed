//! Which orders came while a block was in nobody's pool.

use crate::block::PoolBlock;
use crate::pool::Selector;
use std::collections::VecDeque;

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
}

impl Orders {
    pub(super) fn epoch(&self) -> Epoch {
        Epoch(self.given)
    }

    pub(super) fn note(&mut self, what: Selector) {
        self.given += 1;
        self.latest.push_back(what);
        if self.latest.len() > ORDERS_MAX {
            self.latest.pop_front();
        }
    }

    /// Whether no order since `epoch` is about the block.
    pub(super) fn allow<K>(&self, block: &PoolBlock<K>, epoch: Epoch) -> bool {
        let since = usize::try_from(self.given - epoch.0).unwrap_or(usize::MAX);
        since <= self.latest.len()
            && !self
                .latest
                .iter()
                .rev()
                .take(since)
                .any(|order| order.covers(block))
    }
}
