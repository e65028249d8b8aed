//! One peer as the ordering site sees it: its lanes, its transfers, and the verdict that it is down or stalled.
//!
//! | part | what it does |
//! |---|---|
//! | `lanes` | open and broken connections, and whether the link counts as down |
//! | `arrivals` | manifests, chunks and last words, given to the transfers they are of |

mod arrivals;
mod lanes;

pub(crate) use lanes::Fault;

use crate::carrier::Window;
use crate::config::{Backend, Timing};
use crate::counters::Counters;
use crate::frame::{Beside, Frame, HolderReport, OrderBody};
use crate::inbound::{Events, Inbound};
use crate::landing::{CUT_COUNTS, Ground, Outlook, StoreAndForward};
use crate::memory::{Ledger, Memory};
use crate::paths::Paths;
use crate::quarantine::Quarantine;
use crate::spares::KEPT;
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

    /// Transfers under way.
    pub(crate) fn transfers(&self) -> usize {
        self.state.lock().transfers.len()
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

    /// Waits until a transfer has begun. Buffers that none needs meanwhile go back to the system.
    pub(crate) async fn idle(&self, begun: impl Future<Output = ()>) {
        tokio::pin!(begun);
        while tokio::time::timeout(KEPT, &mut begun).await.is_err() {
            self.memory.trim(Instant::now());
        }
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

    fn end(&self, state: &mut State, id: TransferId, error: TransferError) {
        if let Some(transfer) = state.transfers.remove(&id) {
            transfer.fail(error);
            self.say_cancel(state, id);
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
