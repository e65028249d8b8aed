//! What comes over a link, given to the transfer that it is of.

use super::{Link, State};
use crate::carrier::Window;
use crate::codec::Coding;
use crate::frame::{Announcement, Carriage, ChunkMeta, Frame, Outcome};
use crate::inbound::{Breach, Inbound, Place};
use crate::landing::Ground;
use crate::quarantine::Damage;
use bytes::BytesMut;
use portolan_base::TransferId;
use portolan_ports::TransferError;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::time::Instant;

impl Link {
    /// Runs `step` on a transfer. A breach of protocol ends it; a transfer that is not here is cancelled at the peer.
    fn with<T>(&self, id: TransferId, step: impl FnOnce(&mut Inbound) -> Result<T, Breach>) -> Option<T> {
        let mut state = self.state.lock();
        let Some(transfer) = state.transfers.get_mut(&id) else {
            // Said again when the lane that carries the word breaks: the holder may wait for nothing else.
            let queued = state.outbox.iter().any(|frame| *frame == Frame::Cancel(id));
            if !queued {
                self.say_cancel(&mut state, id);
            }
            return None;
        };
        match step(transfer) {
            Ok(value) => {
                state.breaks = 0;
                Some(value)
            }
            Err(breach) => {
                if breach == Breach::OtherTotals {
                    self.strike(&state, id, breach.to_string(), None);
                }
                let error = TransferError::Protocol {
                    peer: self.peer.clone(),
                    detail: breach.to_string(),
                };
                self.end(&mut state, id, error);
                None
            }
        }
    }

    /// Where a verified chunk of a transfer lands; none when it does not.
    pub(crate) fn landing_of(&self, id: TransferId) -> Option<Ground> {
        self.state.lock().transfers.get(&id)?.landing_of()
    }

    /// Where the chunks of a transfer lie that landed before.
    pub(crate) fn ground(&self, id: TransferId) -> Option<Ground> {
        self.state.lock().transfers.get(&id)?.ground()
    }

    /// Where a carrier puts chunks of a transfer.
    pub(crate) fn window(&self, id: TransferId) -> Option<Arc<dyn Window>> {
        self.state.lock().transfers.get(&id)?.window()
    }

    /// A chunk is not where it should lie: its place waits for its bytes.
    pub(crate) fn not_there(&self, meta: &ChunkMeta, chunk: u32, buffer: BytesMut) {
        self.with(meta.head.transfer, |transfer| {
            transfer.give_back(meta, chunk, buffer);
            Ok(())
        });
    }

    pub(crate) fn manifest(&self, id: TransferId, announcement: Announcement) {
        let granted = self
            .with(id, |transfer| transfer.manifest(announcement))
            .flatten();
        let mut state = self.state.lock();
        if let Some(granted) = granted {
            self.say(&mut state, [Frame::Credit(id, granted)]);
        }
        self.look_out(&mut state);
    }

    /// The coding of a transfer's coded chunks.
    pub(crate) fn coding(&self, id: TransferId) -> Coding {
        self.state
            .lock()
            .transfers
            .get(&id)
            .map_or(Coding::Plain, Inbound::coding)
    }

    /// Notes that a set came damaged beyond repair.
    fn strike(&self, state: &State, id: TransferId, detail: String, bad: Option<(&ChunkMeta, u64)>) {
        let Some(transfer) = state.transfers.get(&id) else {
            return;
        };
        let damage = Damage {
            transfer: id,
            detail,
            chunk: bad.map(|(meta, _)| meta.clone()),
            found: bad.map(|(_, found)| found),
        };
        if self
            .quarantine
            .strike(&self.peer, &transfer.order, damage, Instant::now())
        {
            self.counters.quarantined.fetch_add(1, Relaxed);
            tracing::warn!(peer = %self.peer, tenant = %transfer.order.tenant, transfer = %id, "a set of KV is in quarantine");
        }
    }

    /// Where a chunk's payload goes; `None` when nobody wants it.
    pub(crate) fn place(&self, meta: &ChunkMeta, len: u32, chunk: u32) -> Option<Place> {
        self.counters.chunks.fetch_add(1, Relaxed);
        self.counters
            .resent
            .fetch_add(u64::from(meta.attempt > 0), Relaxed);
        self.with(meta.head.transfer, |transfer| transfer.place(meta, len, chunk))
    }

    /// Takes verified bytes.
    pub(crate) fn fill(&self, meta: &ChunkMeta, chunk: u32, buffer: BytesMut) {
        if meta.carriage == Carriage::Landed {
            self.counters.landed.fetch_add(buffer.len() as u64, Relaxed);
        }
        let whole = self.with(meta.head.transfer, |transfer| {
            transfer.fill(meta, chunk, buffer)?;
            transfer.complete()
        });
        self.forget_if(whole, meta.head.transfer);
    }

    /// A chunk came damaged, with checksum `found`; says whether it should be sent again.
    pub(crate) fn damaged(&self, meta: &ChunkMeta, found: u64, chunk: u32, buffer: BytesMut) -> bool {
        let id = meta.head.transfer;
        let Some(attempts) = self.with(id, |transfer| Ok(transfer.damaged(meta, chunk, buffer))) else {
            return false;
        };
        if attempts <= self.max_resend {
            return true;
        }
        let error = TransferError::Damaged {
            peer: self.peer.clone(),
            chunk: meta.head.no,
            attempts,
        };
        let mut state = self.state.lock();
        self.strike(&state, id, error.to_string(), Some((meta, found)));
        self.end(&mut state, id, error);
        false
    }

    /// Takes the holder's last word on a transfer.
    pub(crate) fn finish(&self, id: TransferId, outcome: Outcome) {
        let step = self.with(id, |transfer| match transfer.finish(outcome)? {
            None => Ok((None, transfer.complete()?)),
            refusal => Ok((refusal, true)),
        });
        let Some((refusal, whole)) = step else { return };
        if let Some(detail) = refusal {
            let removed = self.state.lock().transfers.remove(&id);
            if let Some(transfer) = removed {
                transfer.fail(TransferError::Refused {
                    peer: self.peer.clone(),
                    detail,
                });
            }
            return;
        }
        self.forget_if(Some(whole), id);
    }

    fn forget_if(&self, whole: Option<bool>, id: TransferId) {
        if whole == Some(true)
            && let Some(transfer) = self.state.lock().transfers.remove(&id)
        {
            self.quarantine.clear(&self.peer, &transfer.order);
            if let Some(window) = transfer.window() {
                window.settle();
            }
            if let Some(ground) = transfer.landing_of() {
                // Removing a large file takes a while, and nobody waits for it.
                tokio::task::spawn_blocking(move || ground.set.clear());
            }
        }
    }
}
