//! One peer as the ordering site sees it: its lanes, its transfers, and the verdict that it is down or stalled.

use crate::carrier::Window;
use crate::codec::Coding;
use crate::config::{Backend, Timing};
use crate::counters::Counters;
use crate::frame::{Announcement, Beside, Carriage, ChunkMeta, Frame, HolderReport, OrderBody, Outcome};
use crate::inbound::{Breach, Events, Inbound, Place};
use crate::landing::{CUT_COUNTS, Ground, Outlook, StoreAndForward};
use crate::memory::{Ledger, Memory};
use crate::paths::Paths;
use crate::quarantine::{Damage, Quarantine};
use bytes::BytesMut;
use parking_lot::Mutex;
use portolan_base::kv::KvQuant;
use portolan_base::{Bytes, SiteName, TransferId};
use portolan_ports::{Fidelity, KvOrder, TransferError};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::DropGuard;

/// Cancelled transfers that are told to the peer again when a lane broke, in case the word was lost with it.
const CANCELS_KEPT: usize = 256;

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

#[derive(Debug)]
struct State {
    transfers: HashMap<TransferId, Inbound>,
    up: usize,
    down_since: Instant,
    /// Lanes broken since something of use came.
    breaks: usize,
    /// The listener's session number.
    number: Option<u128>,
    faults: Vec<Option<Fault>>,
    cancelled: VecDeque<TransferId>,
    /// When the link last cut a transfer.
    cut_at: Option<Instant>,
    /// Frames any lane may send.
    outbox: VecDeque<Frame>,
}

/// The link to one peer.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: SiteName,
    pub(crate) paths: Paths,
    /// Largest chunk this site wants on this link.
    pub(crate) chunk: u32,
    /// Groups this link's lanes at the listener.
    pub(crate) session: u128,
    pub(crate) timing: Timing,
    pub(crate) counters: Arc<Counters>,
    /// Wakes lanes that have nothing to send.
    pub(crate) wake: Notify,
    /// Wakes the link's judge when a transfer begins.
    pub(crate) begun: Notify,
    /// Wakes lanes that wait to dial again.
    pub(crate) kick: Notify,
    /// When chunks land.
    pub(crate) landing: StoreAndForward,
    pub(crate) backend: Backend,
    quantised: Option<KvQuant>,
    max_resend: u32,
    deadline: Duration,
    window: Bytes,
    memory: Arc<Memory>,
    quarantine: Arc<Quarantine>,
    start: Instant,
    /// Microseconds from `start` to the last byte on any lane.
    heard: AtomicU64,
    state: Mutex<State>,
}

/// What a transfer begins with.
pub(crate) struct Start {
    pub(crate) order: KvOrder,
    pub(crate) priority: u8,
    /// Where its chunks may land.
    pub(crate) ground: Option<Ground>,
    /// Where a carrier may put them.
    pub(crate) window: Option<Arc<dyn Window>>,
}

/// What a link is made of.
pub(crate) struct LinkSpec {
    pub(crate) peer: SiteName,
    pub(crate) paths: Paths,
    pub(crate) session: u128,
    pub(crate) lanes: usize,
    pub(crate) chunk: u32,
    /// How KV that need not be exact may come quantised.
    pub(crate) quantised: Option<KvQuant>,
    /// When chunks land.
    pub(crate) landing: StoreAndForward,
    pub(crate) backend: Backend,
    pub(crate) max_resend: u32,
    pub(crate) deadline: Duration,
    pub(crate) window: Bytes,
    pub(crate) timing: Timing,
    pub(crate) memory: Arc<Memory>,
    pub(crate) quarantine: Arc<Quarantine>,
}

impl Link {
    pub(crate) fn new(spec: LinkSpec, counters: Arc<Counters>) -> Self {
        let start = Instant::now();
        Self {
            peer: spec.peer,
            paths: spec.paths,
            chunk: spec.chunk,
            session: spec.session,
            timing: spec.timing,
            counters,
            wake: Notify::new(),
            kick: Notify::new(),
            begun: Notify::new(),
            landing: spec.landing,
            backend: spec.backend,
            quantised: spec.quantised,
            max_resend: spec.max_resend,
            deadline: spec.deadline,
            window: spec.window,
            memory: spec.memory,
            quarantine: spec.quarantine,
            start,
            heard: AtomicU64::new(0),
            state: Mutex::new(State {
                transfers: HashMap::new(),
                up: 0,
                down_since: start,
                breaks: 0,
                number: None,
                faults: vec![None; spec.lanes],
                cancelled: VecDeque::new(),
                cut_at: None,
                outbox: VecDeque::new(),
            }),
        }
    }

    /// Microseconds since the link was made.
    pub(crate) fn now_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(crate) fn heard_now(&self) -> u64 {
        let now = self.now_us();
        self.heard.store(now, Relaxed);
        now
    }

    pub(crate) fn is_up(&self) -> bool {
        self.state.lock().up > 0
    }

    /// Transfers under way.
    pub(crate) fn transfers(&self) -> usize {
        self.state.lock().transfers.len()
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
    fn verdict_down(&self, state: &State) -> Option<TransferError> {
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

    /// Waits until a lane is open. A link known to be down is given a quarter of the stall time to come back.
    pub(crate) async fn wait_up(&self) -> Result<(), TransferError> {
        let begun = Instant::now();
        self.kick.notify_waiters();
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

    /// Begins a transfer; `false` when the last lane broke meanwhile.
    pub(crate) fn begin(&self, id: TransferId, start: Start, to: (Events, DropGuard)) -> bool {
        let Start {
            order,
            priority,
            ground,
            window,
        } = start;
        let mut state = self.state.lock();
        let Some(number) = state.number else { return false };
        let ledger = Ledger::open(&self.memory, self.window);
        let lossy = self.quantised.filter(|_| order.fidelity == Fidelity::Quantised);
        let transfer = Inbound::new(order, priority, number, ledger, to);
        let transfer = transfer.accepting(lossy).on(ground).beside(window);
        let frame = order_frame(id, &transfer);
        state.transfers.insert(id, transfer);
        state.outbox.push_back(frame);
        drop(state);
        self.wake.notify_waiters();
        self.begun.notify_one();
        true
    }

    /// Nobody wants this transfer any more.
    pub(crate) fn cancel(&self, id: TransferId) {
        let mut state = self.state.lock();
        if state.transfers.remove(&id).is_some() {
            self.say_cancel(&mut state, id);
        }
    }

    fn say_cancel(&self, state: &mut State, id: TransferId) {
        if !state.cancelled.contains(&id) {
            if state.cancelled.len() == CANCELS_KEPT {
                state.cancelled.pop_front();
            }
            state.cancelled.push_back(id);
        }
        state.outbox.push_back(Frame::Cancel(id));
        self.wake.notify_waiters();
    }

    /// The next frame for whichever lane asks.
    pub(crate) fn next_frame(&self) -> Option<Frame> {
        self.state.lock().outbox.pop_front()
    }

    /// Ends every transfer when the link is down or silent for too long, and any that takes too long. To be called
    /// every tick.
    pub(crate) fn check(&self) {
        let mut state = self.state.lock();
        if state.transfers.is_empty() {
            return;
        }
        self.end_overdue(&mut state);
        self.look_out(&mut state);
        let silence = Duration::from_micros(self.now_us().saturating_sub(self.heard.load(Relaxed)));
        let verdict = if state.up == 0 {
            self.verdict_down(&state)
        } else {
            let peer = self.peer.clone();
            (silence >= self.timing.stall).then_some(TransferError::Stalled {
                peer,
                waited: silence,
            })
        };
        if let Some(error) = verdict {
            self.fail_locked(&mut state, &error);
        }
    }

    fn end_overdue(&self, state: &mut State) {
        let overdue = state
            .transfers
            .iter()
            .filter(|(_, t)| t.begun_at.elapsed() >= self.deadline);
        let overdue: Vec<_> = overdue.map(|(id, _)| *id).collect();
        for id in overdue {
            let peer = self.peer.clone();
            let waited = self.deadline;
            state.cut_at = Some(Instant::now());
            self.end(state, id, TransferError::Stalled { peer, waited });
        }
    }

    /// Lets the chunks of transfers land for which the link is too poor.
    fn look_out(&self, state: &mut State) {
        let is_cut = state.cut_at.is_some_and(|at| at.elapsed() < CUT_COUNTS);
        let (delivery, least) = (self.counters.delivery(), self.timing.lane_silence());
        for (id, transfer) in &mut state.transfers {
            let Some(left) = transfer.could_land() else {
                continue;
            };
            let outlook = Outlook {
                left,
                // On a link whose buffers are full, what the holder knows of it comes late.
                rate: delivery.into_iter().chain(transfer.coming(least)).min(),
                time_left: self.deadline.saturating_sub(transfer.begun_at.elapsed()),
                is_cut,
                trifle: self.timing.stall,
            };
            let lands = match self.landing {
                StoreAndForward::Never => false,
                StoreAndForward::WhenPoor => outlook.is_poor(),
                StoreAndForward::Always => true,
            };
            if lands {
                tracing::debug!(peer = %self.peer, transfer = %id, ?outlook, "what comes is kept on disk");
                transfer.land();
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

    /// Grants room to transfers that found none, the most urgent first. To be called every tick.
    pub(crate) fn replenish(&self) {
        let mut state = self.state.lock();
        let mut waiting: Vec<_> = state.transfers.iter_mut().collect();
        waiting.sort_by_key(|(_, transfer)| (transfer.priority, transfer.begun_at));
        let credits: Vec<_> = waiting
            .into_iter()
            .filter_map(|(id, transfer)| Some(Frame::Credit(*id, transfer.ledger.top_up()?)))
            .collect();
        self.say(&mut state, credits);
    }

    /// The consumer of a transfer took so many bytes.
    pub(crate) fn consumed(&self, id: TransferId, bytes: u64) {
        let mut state = self.state.lock();
        let granted = state
            .transfers
            .get_mut(&id)
            .and_then(|t| t.ledger.consumed(bytes));
        self.say(&mut state, granted.map(|granted| Frame::Credit(id, granted)));
    }

    fn say(&self, state: &mut State, frames: impl IntoIterator<Item = Frame>) {
        let before = state.outbox.len();
        state.outbox.extend(frames);
        if state.outbox.len() > before {
            self.wake.notify_waiters();
        }
    }

    /// Takes a pong: what was sent at `at` has come back, with what the holder knows.
    pub(crate) fn pong(&self, at: u64, report: HolderReport) {
        self.counters
            .rtt_sample(Duration::from_micros(self.now_us().saturating_sub(at)));
        self.counters.heard(report);
    }

    /// When any lane was last heard, in microseconds since the link was made.
    pub(crate) fn last_heard(&self) -> u64 {
        self.heard.load(Relaxed)
    }

    /// Ends every transfer.
    pub(crate) fn fail_all(&self, error: &TransferError) {
        self.fail_locked(&mut self.state.lock(), error);
    }

    fn fail_locked(&self, state: &mut State, error: &TransferError) {
        if !state.transfers.is_empty() {
            state.cut_at = Some(Instant::now());
        }
        for (id, transfer) in std::mem::take(&mut state.transfers) {
            transfer.fail(error.clone());
            self.say_cancel(state, id);
        }
    }

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

    fn end(&self, state: &mut State, id: TransferId, error: TransferError) {
        if let Some(transfer) = state.transfers.remove(&id) {
            transfer.fail(error);
            self.say_cancel(state, id);
        }
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

fn order_frame(id: TransferId, transfer: &Inbound) -> Frame {
    let (priority, order) = (transfer.priority, transfer.order.clone());
    Frame::Order(Box::new(OrderBody {
        transfer: id,
        priority,
        credit: transfer.ledger.granted(),
        accepts: transfer.accepts(),
        landed: transfer.claims(),
        beside: transfer.window().map(|window| Beside {
            invitation: window.invitation().to_vec(),
            bytes: window.bytes(),
        }),
        order,
    }))
}

fn last_fault(state: &State) -> String {
    let fault = state.faults.iter().flatten().next();
    fault.map_or_else(
        || "no connection could be made in time".into(),
        |fault| fault.detail.clone(),
    )
}
