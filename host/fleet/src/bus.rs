//! The bus of sites that share a process.

use portolan_ports::{Bus, BusMessage};
use tokio::sync::broadcast;

/// Messages a slow subscriber may be behind. A prefix change of a long prompt is one message, so this is minutes of
/// ordinary traffic; a subscriber beyond it is told and starts over.
const CAPACITY: usize = 4096;

/// Hands every message to every subscriber in the process.
#[derive(Debug)]
pub struct EmbeddedBus {
    sender: broadcast::Sender<BusMessage>,
}

impl EmbeddedBus {
    /// A bus without subscribers.
    pub fn new() -> Self {
        Self {
            sender: broadcast::channel(CAPACITY).0,
        }
    }
}

impl Default for EmbeddedBus {
    fn default() -> Self {
        Self::new()
    }
}

impl Bus for EmbeddedBus {
    fn publish(&self, message: BusMessage) {
        // No subscriber is no error: the first site to start has nobody to tell.
        drop(self.sender.send(message));
    }

    fn subscribe(&self) -> broadcast::Receiver<BusMessage> {
        self.sender.subscribe()
    }
}

#[cfg(test)]
pub(crate) mod conformance;
