//! A link's connections: what is said again when one breaks, and when the link counts as down.

use super::{Link, State, order_frame};
use crate::frame::Frame;
use portolan_ports::TransferError;
use tokio::time::Instant;

/// Broken connections for each lane, with nothing of use between them, after which a link counts as down: it is then
/// not the path that breaks them but something that is sent.
const BREAKS_MAX: usize = 8;

/// Why a lane is not up.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) detail: String,
    /// Nobody is there or it wants nothing to do with us; waiting hardly helps.
    pub(crate) firm: bool,
}

impl Link {
    pub(crate) fn is_up(&self) -> bool {
        self.state.lock().up > 0
    }

    /// A lane is open. Transfers ordered in an earlier session of the listener are lost.
    pub(crate) fn attach(&self, lane: usize, number: u128) {
        self.heard_now();
        let mut state = self.state.lock();
        state.up += 1;
        state.faults[lane] = None;
        if state.number != Some(number) {
            state.number = Some(number);
            let lost: Vec<_> = state
                .transfers
                .iter()
                .filter(|(_, t)| t.number != number)
                .map(|(id, _)| *id)
                .collect();
            for id in lost {
                if let Some(transfer) = state.transfers.remove(&id) {
                    transfer.fail(self.down("the peer has restarted or forgot this site"));
                }
            }
        }
    }

    /// A lane broke: what may have been lost with it is said again.
    pub(crate) fn detach(&self, lane: usize, detail: String) {
        let mut state = self.state.lock();
        state.up -= 1;
        if state.up == 0 {
            state.down_since = Instant::now();
        }
        state.breaks += 1;
        if state.breaks > BREAKS_MAX * state.faults.len() {
            state.breaks = 0;
            self.fail_locked(
                &mut state,
                &self.down(format!("its connections keep breaking: {detail}")),
            );
        }
        state.faults[lane] = Some(Fault { detail, firm: false });
        state
            .outbox
            .retain(|frame| !matches!(frame, Frame::Order(_) | Frame::Cancel(_) | Frame::Credit(..)));
        let orders: Vec<_> = state
            .transfers
            .iter()
            .filter(|(_, transfer)| !transfer.has_manifest())
            .map(|(id, transfer)| order_frame(*id, transfer))
            .collect();
        let cancels: Vec<_> = state.cancelled.iter().copied().map(Frame::Cancel).collect();
        let granted = state
            .transfers
            .iter()
            .filter(|(_, transfer)| transfer.has_manifest());
        let credits: Vec<_> = granted
            .map(|(id, t)| Frame::Credit(*id, t.ledger.granted()))
            .collect();
        state
            .outbox
            .extend(orders.into_iter().chain(cancels).chain(credits));
        drop(state);
        self.wake.notify_waiters();
    }

    /// A lane could not be opened.
    pub(crate) fn dial_failed(&self, lane: usize, fault: Fault) {
        self.state.lock().faults[lane] = Some(fault);
    }

    /// The error to give up with when no lane is open and `waited` is long enough.
    pub(super) fn verdict_down(&self, state: &State) -> Option<TransferError> {
        let waited = state.down_since.elapsed();
        let firm = state
            .faults
            .iter()
            .all(|fault| fault.as_ref().is_some_and(|f| f.firm));
        let limit = if firm {
            self.timing.refused()
        } else {
            self.timing.stall
        };
        (state.up == 0 && waited >= limit).then(|| self.down(last_fault(state)))
    }

    pub(crate) fn down(&self, detail: impl Into<String>) -> TransferError {
        TransferError::LinkDown {
            peer: self.peer.clone(),
            detail: detail.into(),
        }
    }

    /// Ends the waits between dials.
    pub(crate) fn redial(&self) {
        self.kick.notify_waiters();
    }

    /// Waits until a lane is open. A link known to be down is given a quarter of the stall time to come back.
    pub(crate) async fn wait_up(&self) -> Result<(), TransferError> {
        let begun = Instant::now();
        self.redial();
        loop {
            {
                let state = self.state.lock();
                if state.up > 0 {
                    return Ok(());
                }
                let waited = begun.elapsed();
                if waited >= self.timing.stall {
                    return Err(self.down(last_fault(&state)));
                }
                if let Some(error) = self
                    .verdict_down(&state)
                    .filter(|_| waited >= self.timing.refused())
                {
                    return Err(error);
                }
            }
            tokio::time::sleep(self.timing.tick() / 4).await;
        }
    }
}

fn last_fault(state: &State) -> String {
    let fault = state.faults.iter().flatten().next();
    fault.map_or_else(
        || "no connection could be made in time".into(),
        |fault| fault.detail.clone(),
    )
}
