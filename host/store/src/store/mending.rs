//! The store takes writes again after one that failed, once there is room.

use super::SledStore;
use crate::files;
use crate::ledger::Turn;
use crate::opening::{read_keys, read_tenants};
use parking_lot::MutexGuard;
use portolan_ports::StoreError;

/// Room that is looked for before the files are opened anew, as opening them writes: four of sled's segments of 512 KiB.
const ROOM_BYTES: usize = 2 << 20;

impl SledStore {
    /// Waits until no other change is under way. After a write that failed the files are opened anew first, where there
    /// is room again: nothing is risked before, for what is open can still be read.
    ///
    /// # Errors
    /// While there is no room.
    pub(super) fn turn(&self) -> Result<MutexGuard<'_, Turn>, StoreError> {
        let mut turn = self.ledger.turn();
        if turn.has_failed() {
            files::try_room(self.components(), ROOM_BYTES)?;
            self.ledger.reopen(&mut turn)?;
            // What was flushed and not acknowledged counts, as it does after a restart.
            self.keys.replace(read_keys(&self.ledger)?);
            *self.tenants.write() = read_tenants(&self.ledger)?;
            tracing::warn!("the store takes changes again after a write that failed");
        }
        Ok(turn)
    }
}
