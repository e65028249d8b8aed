//! One peer as the holding site sees it: the transfers it ordered, and which chunk goes out next.

use crate::config::Timing;
use crate::counters::Counters;
use crate::frame::{ChunkHead, Frame, Outcome, Part, Totals, cut_text};
use bytes::Bytes;
use parking_lot::Mutex;
use portolan_base::kv::KvManifest;
use portolan_base::{SiteName, TransferId};
use portolan_ports::{KvPiece, PieceSink, PrefillReport};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

/// Transfers one peer may have under way; more are refused, not queued, so that the caller takes another route.
const TRANSFERS_MAX: usize = 4096;

/// Ended transfers remembered, so that an order that was overtaken by its own cancellation is not begun.
const ENDED_KEPT: usize = 1024;

#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// Nothing but the manifest, so that the receiver knows what comes while the first piece is computed.
    Manifest,
    Chunk {
        head: ChunkHead,
        payload: Bytes,
        checksum: Arc<OnceLock<u64>>,
    },
    Final(Outcome),
}

/// Something the peer has to acknowledge.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) part: Part,
    pub(crate) attempt: u32,
    pub(crate) body: Body,
}

/// What a lane is to send next.
pub(crate) struct Outgoing {
    pub(crate) transfer: TransferId,
    /// Goes first when this lane has not carried it yet: TCP keeps the order, so no chunk is ever before it.
    pub(crate) manifest: Option<Frame>,
    pub(crate) item: Item,
}

#[derive(Debug)]
struct Outbound {
    priority: u8,
    cancelled: Arc<AtomicBool>,
    manifest: Option<KvManifest>,
    announced: HashSet<u64>,
    ready: VecDeque<Item>,
    /// In the ring of its class.
    queued: bool,
    unacked: HashMap<Part, (u64, Item)>,
    totals: Totals,
    /// The source did not keep to manifest first.
    misuse: bool,
    ended: bool,
}

#[derive(Debug, Default)]
struct State {
    transfers: HashMap<TransferId, Outbound>,
    /// Transfers with something to send, by class, each class a ring.
    rings: BTreeMap<u8, VecDeque<TransferId>>,
    lanes: HashSet<u64>,
    next_lane: u64,
    ended: VecDeque<TransferId>,
    closed: bool,
}

/// One link of one peer.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) peer: SiteName,
    /// Drawn when the session began.
    pub(crate) number: u128,
    pub(crate) chunk: u32,
    pub(crate) timing: Timing,
    pub(crate) counters: Arc<Counters>,
    pub(crate) wake: Notify,
    state: Mutex<State>,
}

impl Session {
    pub(crate) fn new(
        peer: SiteName,
        number: u128,
        chunk: u32,
        timing: Timing,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            peer,
            number,
            chunk,
            timing,
            counters,
            wake: Notify::new(),
            state: Mutex::default(),
        }
    }

    /// Adds a lane; `None` when the session is over.
    pub(crate) fn attach(&self) -> Option<u64> {
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        state.next_lane += 1;
        let lane = state.next_lane;
        state.lanes.insert(lane);
        Some(lane)
    }

    /// Removes a lane; what it carried without acknowledgement goes to the others. When it was the last, yields
    /// what [`Session::close_if_unused_since`] wants to know.
    pub(crate) fn detach(&self, lane: u64) -> Option<u64> {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.lanes.remove(&lane);
        for (id, transfer) in &mut state.transfers {
            transfer.announced.remove(&lane);
            let mut lost: Vec<_> = transfer
                .unacked
                .extract_if(|_, (carrier, _)| *carrier == lane)
                .map(|(_, (_, item))| item)
                .collect();
            lost.sort_by_key(|item| std::cmp::Reverse(order_of(item.part)));
            for item in lost {
                transfer.ready.push_front(Item {
                    attempt: item.attempt + 1,
                    ..item
                });
            }
            enqueue(&mut state.rings, *id, transfer);
        }
        self.wake.notify_waiters();
        state.lanes.is_empty().then_some(state.next_lane)
    }

    /// Ends the session if no lane was added since it became empty.
    pub(crate) fn close_if_unused_since(&self, then: u64) -> bool {
        let unused = {
            let state = self.state.lock();
            state.lanes.is_empty() && state.next_lane == then
        };
        if unused {
            self.close();
        }
        unused
    }

    /// Ends the session and cancels its transfers.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.rings.clear();
        for (_, transfer) in state.transfers.drain() {
            transfer.cancelled.store(true, Ordering::Release);
        }
    }

    /// Begins a transfer; `None` when it was begun before or ended.
    pub(crate) fn begin(&self, id: TransferId, priority: u8) -> Option<Arc<AtomicBool>> {
        let mut state = self.state.lock();
        if state.closed || state.transfers.contains_key(&id) || state.ended.contains(&id) {
            return None;
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        let transfer = Outbound {
            priority,
            cancelled: Arc::clone(&cancelled),
            manifest: None,
            announced: HashSet::new(),
            ready: VecDeque::new(),
            queued: false,
            unacked: HashMap::new(),
            totals: Totals {
                report: PrefillReport::default(),
                chunks: 0,
                pieces: 0,
                bytes: 0,
            },
            misuse: false,
            ended: false,
        };
        state.transfers.insert(id, transfer);
        Some(cancelled)
    }

    /// Whether this peer has more transfers under way than it may.
    pub(crate) fn is_full(&self) -> bool {
        self.state.lock().transfers.len() > TRANSFERS_MAX
    }

    /// Transfers under way.
    pub(crate) fn transfers(&self) -> usize {
        self.state.lock().transfers.len()
    }

    /// The peer wants no more of it.
    pub(crate) fn cancel(&self, id: TransferId) {
        let mut state = self.state.lock();
        if let Some(transfer) = state.transfers.remove(&id) {
            transfer.cancelled.store(true, Ordering::Release);
        }
        state.remember_ended(id);
    }

    fn with(&self, id: TransferId, step: impl FnOnce(&mut Outbound)) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(transfer) = state.transfers.get_mut(&id) {
            step(transfer);
            enqueue(&mut state.rings, id, transfer);
        }
        self.wake.notify_waiters();
    }

    fn piece(&self, id: TransferId, piece: &KvPiece) {
        let chunk = self.chunk as usize;
        self.with(id, |transfer| {
            if transfer.manifest.is_none() || transfer.ended {
                transfer.misuse = true;
                return;
            }
            let piece_len = piece.bytes.len() as u64;
            let mut offset = 0;
            loop {
                let end = (offset + chunk).min(piece.bytes.len());
                let no = transfer.totals.chunks;
                let head = ChunkHead {
                    transfer: id,
                    no,
                    piece: piece.id.clone(),
                    offset: offset as u64,
                    piece_len,
                };
                let body = Body::Chunk {
                    head,
                    payload: piece.bytes.slice(offset..end),
                    checksum: Arc::default(),
                };
                transfer.ready.push_back(Item {
                    part: Part::Chunk(no),
                    attempt: 0,
                    body,
                });
                transfer.totals.chunks += 1;
                offset = end;
                if offset == piece.bytes.len() {
                    break;
                }
            }
            transfer.totals.pieces += 1;
            transfer.totals.bytes += piece_len;
        });
    }

    /// Queues the last word on a transfer.
    pub(crate) fn end(&self, id: TransferId, result: Result<PrefillReport, String>) {
        self.with(id, |transfer| {
            let outcome = match result {
                Ok(_) if transfer.misuse || transfer.manifest.is_none() => {
                    Outcome::Failed("the holder's source sent no manifest before its pieces".into())
                }
                Ok(report) => Outcome::Whole(Totals {
                    report,
                    ..transfer.totals
                }),
                Err(text) => Outcome::Failed(cut_text(text)),
            };
            transfer.ended = true;
            if matches!(outcome, Outcome::Failed(_)) {
                // What was not sent yet is of no use to anyone.
                transfer.ready.clear();
            }
            transfer.ready.push_back(Item {
                part: Part::Final,
                attempt: 0,
                body: Body::Final(outcome),
            });
        });
    }

    /// What `lane` is to send next: the most urgent class first, its transfers in turn.
    pub(crate) fn take(&self, lane: u64) -> Option<Outgoing> {
        let mut state = self.state.lock();
        let state = &mut *state;
        loop {
            let mut ring = state.rings.first_entry()?;
            let Some(id) = ring.get_mut().pop_front() else {
                ring.remove();
                continue;
            };
            let Some(transfer) = state.transfers.get_mut(&id) else {
                continue;
            };
            transfer.queued = false;
            let Some(item) = transfer.ready.pop_front() else {
                continue;
            };
            transfer.unacked.insert(item.part, (lane, item.clone()));
            let manifest = match &transfer.manifest {
                Some(manifest) if transfer.announced.insert(lane) || item.part == Part::Manifest => {
                    Some(Frame::Manifest(id, Box::new(manifest.clone())))
                }
                _ => None,
            };
            enqueue(&mut state.rings, id, transfer);
            return Some(Outgoing {
                transfer: id,
                manifest,
                item,
            });
        }
    }

    /// The peer has it.
    pub(crate) fn ack(&self, id: TransferId, part: Part) {
        let mut state = self.state.lock();
        let Some(transfer) = state.transfers.get_mut(&id) else {
            return;
        };
        transfer.unacked.remove(&part);
        if transfer.ended && transfer.ready.is_empty() && transfer.unacked.is_empty() {
            state.transfers.remove(&id);
            state.remember_ended(id);
        }
    }

    /// The peer got it damaged.
    pub(crate) fn nack(&self, id: TransferId, part: Part) {
        self.with(id, |transfer| {
            if let Some((_, item)) = transfer.unacked.remove(&part) {
                transfer.ready.push_front(Item {
                    attempt: item.attempt + 1,
                    ..item
                });
            }
        });
    }
}

impl State {
    fn remember_ended(&mut self, id: TransferId) {
        if self.ended.len() == ENDED_KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back(id);
    }
}

fn order_of(part: Part) -> u64 {
    match part {
        Part::Manifest => 0,
        Part::Chunk(no) => 1 + u64::from(no),
        Part::Final => u64::MAX,
    }
}

fn enqueue(rings: &mut BTreeMap<u8, VecDeque<TransferId>>, id: TransferId, transfer: &mut Outbound) {
    if !transfer.queued && !transfer.ready.is_empty() {
        transfer.queued = true;
        rings.entry(transfer.priority).or_default().push_back(id);
    }
}

/// Hands a source's pieces to the lanes of a session.
pub(crate) struct SessionSink {
    pub(crate) session: Arc<Session>,
    pub(crate) transfer: TransferId,
    pub(crate) cancelled: Arc<AtomicBool>,
}

impl PieceSink for SessionSink {
    fn manifest(&mut self, manifest: KvManifest) {
        self.session.with(self.transfer, |transfer| {
            if transfer.manifest.is_none() {
                transfer.manifest = Some(manifest);
                transfer.ready.push_back(Item {
                    part: Part::Manifest,
                    attempt: 0,
                    body: Body::Manifest,
                });
            } else {
                transfer.misuse = true;
            }
        });
    }

    fn piece(&mut self, piece: KvPiece) {
        self.session.piece(self.transfer, &piece);
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests;
