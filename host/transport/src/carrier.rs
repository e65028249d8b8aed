//! Carriers: another way for the bytes of chunks than the connections, which keep everything else.
//!
//! Inside one datacenter a library may write into a peer's memory more cheaply than TCP does. A carrier lends it to a
//! link and no more: orders, manifests, heads of chunks, checksums, acknowledgements and deadlines stay with the link, and
//! so does the address of the receiver's window, which travels in the order. A chunk that a carrier does not bring in time,
//! or brings damaged, goes over the connection.

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest address of a window: what an agent of NIXL says of itself takes some hundred bytes for each device.
pub(crate) const INVITATION_MAX: usize = 64 << 10;

/// Why a carrier did not carry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CarrierError {
    /// It cannot be used on this machine.
    #[error("it cannot be used here: {0}")]
    Unavailable(String),
    /// Its process has ended.
    #[error("its process has ended: {0}")]
    Dead(String),
    /// It took too long.
    #[error("it did not answer within {0:?}")]
    Stalled(Duration),
    /// The library said no.
    #[error("{0}")]
    Failed(String),
    /// Other transfers use all its memory.
    #[error("it has no memory left")]
    Full,
}

/// One site's way to lend memory to peers, and to write into theirs.
#[async_trait]
pub trait Carrier: Send + Sync {
    /// Lends memory to one transfer, up to so many bytes.
    async fn open(&self, bytes: u64) -> Result<Arc<dyn Window>, CarrierError>;

    /// Writes into a window that a peer opened, at most as much as it lent. Says so when the bytes are there.
    async fn write(&self, invitation: &[u8], at: u64, bytes: Bytes) -> Result<(), CarrierError>;
}

/// Memory that is lent to one transfer, until it is dropped.
pub trait Window: Send + Sync {
    /// How a peer's carrier finds it.
    fn invitation(&self) -> &[u8];

    /// How large it is.
    fn bytes(&self) -> u64;

    /// What lies in it.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), CarrierError>;

    /// Everything came: the peer writes here no more, so that the memory may be lent again at once.
    fn settle(&self);
}

/// A receiver's window as the holder uses it: in slots of a chunk, each in use until its chunk is acknowledged.
pub(crate) struct Slots {
    pub(crate) carrier: Arc<dyn Carrier>,
    invitation: Vec<u8>,
    slot: u64,
    free: Mutex<Vec<u32>>,
    /// It failed once: nothing more of this transfer is given to it, since nobody knows what it still writes where.
    failed: AtomicBool,
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slots({} free)", self.free.lock().len())
    }
}

impl Slots {
    /// A window of so many bytes, for chunks up to `chunk`.
    pub(crate) fn new(carrier: Arc<dyn Carrier>, invitation: Vec<u8>, bytes: u64, chunk: u32) -> Self {
        let slot = u64::from(chunk.max(1));
        let count = u32::try_from(bytes / slot).unwrap_or(u32::MAX).min(SLOTS_MAX);
        Self {
            carrier,
            invitation,
            slot,
            free: Mutex::new((0..count).rev().collect()),
            failed: AtomicBool::new(false),
        }
    }

    /// Carries a chunk; says in which slot it lies. None when it has to go over the connection.
    pub(crate) async fn carry(&self, bytes: &Bytes, patience: Duration) -> Option<u32> {
        if self.failed.load(Ordering::Relaxed) || bytes.is_empty() {
            return None;
        }
        let slot = self.free.lock().pop()?;
        let write = self
            .carrier
            .write(&self.invitation, self.place(slot), bytes.clone());
        let written = tokio::time::timeout(patience, write).await;
        match written.unwrap_or(Err(CarrierError::Stalled(patience))) {
            Ok(()) => Some(slot),
            Err(error) => {
                if !self.failed.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "a carrier failed; the transfer goes on over its connections");
                }
                None
            }
        }
    }

    /// Where in the window a slot begins.
    pub(crate) fn place(&self, slot: u32) -> u64 {
        u64::from(slot) * self.slot
    }

    /// The receiver has taken what lay in a slot.
    pub(crate) fn free(&self, slot: u32) {
        self.free.lock().push(slot);
    }
}

/// Most slots of a window: a peer says how large it is.
const SLOTS_MAX: u32 = 1 << 16;
