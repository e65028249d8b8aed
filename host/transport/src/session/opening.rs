//! The beginning of a transfer: its first piece goes before everything, the sender's own haste included.
//!
//! A holder that is quicker than its receiver fills every buffer between them with later pieces while the first one waits
//! to be read; on a machine that both share it takes the very cores the receiver needs. So on a short path little more
//! than what is read at once is under way until the first piece has arrived. A long path is left alone: there the time a
//! byte is under way is the path's, and waiting for acknowledgements would waste it.

use std::time::Duration;

/// What may be under way: enough that no core waits for an acknowledgement. Half of it was slower, twice as much made the
/// first piece later (two cores, both ends on one machine).
const WINDOW: u64 = 2 << 20;

/// A path on which a chunk was acknowledged so soon after it was sent is short.
const SHORT: Duration = Duration::from_millis(2);

/// A transfer whose first piece has not arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    window: u64,
    under_way: u64,
    /// Bytes of the first piece that are not acknowledged, once there is one.
    left: Option<u64>,
}

impl Opening {
    /// On a path whose quickest acknowledgement took so long; none where nothing is held back.
    pub(super) fn on(quickest: Option<Duration>, chunk: u32) -> Option<Self> {
        quickest.filter(|quickest| *quickest < SHORT).map(|_| Self {
            window: WINDOW.max(2 * u64::from(chunk)),
            under_way: 0,
            left: None,
        })
    }

    /// A piece is there; the first one counts.
    pub(super) fn piece(&mut self, len: u64) {
        self.left.get_or_insert(len);
    }

    /// Whether another chunk has to wait.
    pub(super) fn is_full(&self) -> bool {
        self.under_way >= self.window
    }

    pub(super) fn sent(&mut self, len: u64) {
        self.under_way += len;
    }

    /// What was under way is not any more, though it did not arrive.
    pub(super) fn lost(&mut self, len: u64) {
        self.under_way = self.under_way.saturating_sub(len);
    }

    /// A chunk arrived; true when that was the first piece.
    pub(super) fn arrived(&mut self, len: u64) -> bool {
        self.lost(len);
        self.left = self.left.map(|left| left.saturating_sub(len));
        self.left == Some(0)
    }
}
