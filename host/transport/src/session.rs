//! One peer as the holding site sees it: the transfers it ordered, and which chunk goes out next.

mod opening;
mod outbound;

pub(crate) use outbound::{Body, Carried, Outgoing, Terms};

use crate::codec::{Coding, Compression, Judge};
use crate::config::Timing;
use crate::counters::Counters;
use crate::delivery::Delivery;
use crate::frame::{ChunkHead, HolderReport, Outcome, Part, cut_text};
use crate::pacer::Pacer;
use crate::probe::Segments;
use opening::Opening;
use outbound::{Item, Outbound, Unacked, Urgency};
use parking_lot::Mutex;
use portolan_base::kv::{KvLayout, KvManifest, KvQuant};
use portolan_base::{SiteName, TransferId};
use portolan_kv::quant::PieceShape;
use portolan_ports::{KvPiece, PieceSink, PrefillReport};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Transfers one peer may have under way; more are refused, not queued, so that the caller takes another route.
const TRANSFERS_MAX: usize = 4096;

/// Ended transfers remembered, so that an order that was overtaken by its own cancellation is not begun.
const ENDED_KEPT: usize = 1024;

#[derive(Debug, Default)]
struct State {
    transfers: HashMap<TransferId, Outbound>,
    /// Transfers with something to send: a ring for what is urgent in a class, and one for the rest of it.
    rings: BTreeMap<(u8, Urgency), VecDeque<TransferId>>,
    /// Bytes of all transfers that are not acknowledged yet.
    held: u64,
    lanes: HashSet<u64>,
    next_lane: u64,
    ended: VecDeque<TransferId>,
    closed: bool,
}

/// What a session is made of.
pub(crate) struct SessionSpec {
    pub(crate) peer: SiteName,
    /// Drawn when the session began.
    pub(crate) number: u128,
    pub(crate) chunk: u32,
    pub(crate) timing: Timing,
    /// Most bytes that may wait for this peer.
    pub(crate) memory: u64,
    pub(crate) counters: Arc<Counters>,
    pub(crate) pacer: Arc<Pacer>,
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
    pub(crate) pacer: Arc<Pacer>,
    pub(crate) wake: Notify,
    memory: u64,
    start: Instant,
    /// Microseconds from `start` to the last byte on any lane.
    heard: AtomicU64,
    /// Microseconds of the quickest acknowledgement of a chunk.
    quickest: AtomicU64,
    segments: AtomicU64,
    retransmitted: AtomicU64,
    delivery: Mutex<Delivery>,
    /// One for each coding in use: an order that has to be exact crosses otherwise than its neighbour.
    judges: Mutex<BTreeMap<Coding, Arc<Judge>>>,
    state: Mutex<State>,
}

impl Session {
    pub(crate) fn new(spec: SessionSpec) -> Self {
        Self {
            peer: spec.peer,
            number: spec.number,
            chunk: spec.chunk,
            timing: spec.timing,
            counters: spec.counters,
            pacer: spec.pacer,
            wake: Notify::new(),
            memory: spec.memory,
            start: Instant::now(),
            heard: AtomicU64::new(0),
            quickest: AtomicU64::new(u64::MAX),
            segments: AtomicU64::new(0),
            retransmitted: AtomicU64::new(0),
            delivery: Mutex::new(Delivery::new()),
            judges: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// Microseconds since the session began.
    pub(crate) fn now_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// A lane was heard.
    pub(crate) fn heard_now(&self) -> u64 {
        let now = self.now_us();
        self.heard.store(now, Ordering::Relaxed);
        now
    }

    /// When any lane was last heard.
    pub(crate) fn last_heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Notes what the kernel counted on a lane.
    pub(crate) fn add_segments(&self, segments: Segments) {
        self.segments.fetch_add(segments.sent, Ordering::Relaxed);
        self.retransmitted
            .fetch_add(segments.retransmitted, Ordering::Relaxed);
    }

    /// Bytes a second that the link is known to carry: what was measured, within the budget.
    pub(crate) fn rate(&self) -> Option<u64> {
        let measured = self.delivery.lock().rate();
        [measured, self.pacer.rate()].into_iter().flatten().min()
    }

    /// Who says how an order of this peer is made smaller.
    pub(crate) fn judge(&self, setting: Compression, accepts: &[Coding]) -> Arc<Judge> {
        let judge = Judge::new(setting, accepts);
        let mut judges = self.judges.lock();
        Arc::clone(judges.entry(judge.coding()).or_insert_with(|| Arc::new(judge)))
    }

    /// What goes back with a pong.
    pub(crate) fn report(&self) -> HolderReport {
        HolderReport {
            delivery: self.delivery.lock().rate().unwrap_or(0),
            segments: self.segments.load(Ordering::Relaxed),
            retransmitted: self.retransmitted.load(Ordering::Relaxed),
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
                .extract_if(|_, unacked| unacked.lane == lane)
                .map(|(_, unacked)| unacked.item)
                .collect();
            lost.sort_by_key(|item| std::cmp::Reverse(order_of(item.part)));
            for item in lost {
                transfer.put_back(item);
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
        state.held = 0;
        state.rings.clear();
        for (_, transfer) in state.transfers.drain() {
            transfer.cancelled.store(true, Ordering::Release);
        }
    }

    /// Begins a transfer; `None` when it was begun before or ended.
    pub(crate) fn begin(&self, id: TransferId, terms: Terms) -> Option<Arc<AtomicBool>> {
        let mut state = self.state.lock();
        if state.closed || state.transfers.contains_key(&id) || state.ended.contains(&id) {
            return None;
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        terms.judge.begin();
        let mut transfer = Outbound::new(terms, Arc::clone(&cancelled));
        let quickest = self.quickest.load(Ordering::Relaxed);
        let quickest = (quickest < u64::MAX).then(|| Duration::from_micros(quickest));
        transfer.opening = Opening::on(quickest, self.chunk);
        state.transfers.insert(id, transfer);
        Some(cancelled)
    }

    /// Whether this peer has more under way than it may: transfers, or KV that waits to be sent. The order is refused,
    /// so that its site takes another route.
    pub(crate) fn is_full(&self) -> bool {
        let state = self.state.lock();
        state.transfers.len() > TRANSFERS_MAX || state.held > self.memory
    }

    /// The receiver has room for so many bytes, counted from the start.
    pub(crate) fn credit(&self, id: TransferId, bytes: u64) {
        self.with(id, |transfer| transfer.credit = transfer.credit.max(bytes));
    }

    /// A chunk's checksum was computed, for the first time.
    pub(crate) fn hashed(&self, id: TransferId, checksum: u64) {
        self.with(id, |transfer| {
            transfer.hashed += 1;
            transfer.totals.digest = transfer.totals.digest.wrapping_add(checksum);
        });
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
            state.held = state.held.saturating_sub(transfer.held);
        }
        state.remember_ended(id);
    }

    fn with(&self, id: TransferId, step: impl FnOnce(&mut Outbound)) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(transfer) = state.transfers.get_mut(&id) {
            let before = transfer.held;
            step(transfer);
            state.held = (state.held + transfer.held).saturating_sub(before);
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
            let urgent = transfer.is_recurrent(piece.id.layer);
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
                    carried: Arc::default(),
                };
                transfer.ready[usize::from(!urgent)].push_back(Item {
                    part: Part::Chunk(no),
                    attempt: 0,
                    urgent,
                    body,
                });
                transfer.totals.chunks += 1;
                offset = end;
                if offset == piece.bytes.len() {
                    break;
                }
            }
            if let Some(opening) = &mut transfer.opening {
                opening.piece(piece_len);
            }
            transfer.totals.pieces += 1;
            transfer.totals.bytes += piece_len;
            transfer.held += piece_len;
        });
    }

    /// Queues the last word on a transfer.
    pub(crate) fn end(&self, id: TransferId, result: Result<PrefillReport, String>) {
        self.with(id, |transfer| {
            let outcome = match result {
                Ok(_) if transfer.misuse || transfer.manifest.is_none() => {
                    Outcome::Failed("the holder's source sent no manifest before its pieces".into())
                }
                Ok(report) => {
                    transfer.totals.report = report;
                    Outcome::Whole(transfer.totals.clone())
                }
                Err(text) => Outcome::Failed(cut_text(text)),
            };
            transfer.ended = true;
            if matches!(outcome, Outcome::Failed(_)) {
                // What was not sent yet is of no use to anyone.
                transfer.ready.iter_mut().for_each(VecDeque::clear);
            }
            transfer.ready[1].push_back(Item {
                part: Part::Final,
                attempt: 0,
                urgent: false,
                body: Body::Final(outcome),
            });
        });
    }

    /// What `lane` is to send next: the most urgent class first, its transfers in turn.
    pub(crate) fn take(&self, lane: u64) -> Option<Outgoing> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let state = &mut *state;
        loop {
            let mut ring = state.rings.first_entry()?;
            let queue = ring.key().1 as usize;
            let Some(id) = ring.get_mut().pop_front() else {
                ring.remove();
                continue;
            };
            let Some(transfer) = state.transfers.get_mut(&id) else {
                continue;
            };
            transfer.queued[queue] = false;
            if !transfer.may_send(queue) {
                continue;
            }
            let Some(mut item) = transfer.ready[queue].pop_front() else {
                continue;
            };
            transfer.begun += item.begins();
            if let Body::Final(Outcome::Whole(totals)) = &mut item.body {
                totals.digest = transfer.totals.digest;
            }
            if let Some(opening) = &mut transfer.opening {
                opening.sent(item.len());
            }
            let unacked = Unacked {
                lane,
                item: item.clone(),
                sent: now,
            };
            transfer.unacked.insert(item.part, unacked);
            let manifest = transfer.manifest_for(lane, id, item.part);
            let (judge, claims) = (Arc::clone(&transfer.judge), Arc::clone(&transfer.claims));
            let slots = transfer.slots.clone();
            enqueue(&mut state.rings, id, transfer);
            return Some(Outgoing {
                transfer: id,
                manifest,
                item,
                judge,
                claims,
                slots,
            });
        }
    }

    /// The peer has it.
    pub(crate) fn ack(&self, id: TransferId, part: Part) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some(transfer) = state.transfers.get_mut(&id) else {
            return;
        };
        if let Some(unacked) = transfer.unacked.remove(&part) {
            transfer.let_go(&unacked.item);
            let len = unacked.item.len();
            transfer.held = transfer.held.saturating_sub(len);
            state.held = state.held.saturating_sub(len);
            let wire = unacked.item.wire_len();
            if transfer.opening.is_some() {
                transfer.arrived(len);
                enqueue(&mut state.rings, id, transfer);
                self.wake.notify_waiters();
            }
            if wire > 0 {
                let took = now.saturating_duration_since(unacked.sent).as_micros();
                let took = u64::try_from(took).unwrap_or(u64::MAX);
                self.quickest.fetch_min(took, Ordering::Relaxed);
                self.delivery.lock().acked(unacked.sent, wire, now);
            }
        }
        let nothing_waits = transfer.ready.iter().all(VecDeque::is_empty);
        if transfer.ended && nothing_waits && transfer.unacked.is_empty() {
            state.held = state.held.saturating_sub(transfer.held);
            state.transfers.remove(&id);
            state.remember_ended(id);
        }
    }

    /// The peer got it damaged, or has lost what it said it had.
    pub(crate) fn nack(&self, id: TransferId, part: Part) {
        self.with(id, |transfer| {
            if let Some(unacked) = transfer.unacked.remove(&part) {
                if let Body::Chunk { carried, .. } = &unacked.item.body {
                    carried.asked_for.store(true, Ordering::Relaxed);
                }
                transfer.put_back(unacked.item);
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

fn enqueue(
    rings: &mut BTreeMap<(u8, Urgency), VecDeque<TransferId>>,
    id: TransferId,
    transfer: &mut Outbound,
) {
    for urgency in Urgency::BOTH {
        let queue = urgency as usize;
        if !transfer.queued[queue] && transfer.may_send(queue) {
            transfer.queued[queue] = true;
            rings
                .entry((transfer.priority, urgency))
                .or_default()
                .push_back(id);
        }
    }
}

/// Hands a source's pieces to the lanes of a session.
pub(crate) struct SessionSink {
    pub(crate) session: Arc<Session>,
    pub(crate) transfer: TransferId,
    pub(crate) cancelled: Arc<AtomicBool>,
    pub(crate) packer: Packer,
}

/// Quantises pieces where the transfer says so: in the source's own task, so that neither lanes nor other transfers
/// wait for it.
pub(crate) struct Packer {
    quant: Option<KvQuant>,
    layout: Option<KvLayout>,
}

impl Packer {
    pub(crate) fn new(coding: Coding) -> Self {
        Self {
            quant: coding.quant(),
            layout: None,
        }
    }

    fn pack(&self, piece: KvPiece) -> KvPiece {
        let shape = self
            .layout
            .as_ref()
            .and_then(|layout| PieceShape::of(layout, &piece.id));
        let packed = self
            .quant
            .zip(shape)
            .and_then(|(quant, shape)| shape.encode(quant, &piece.bytes));
        match packed {
            Some(bytes) => KvPiece {
                bytes: bytes.into(),
                ..piece
            },
            None => piece,
        }
    }
}

impl PieceSink for SessionSink {
    fn manifest(&mut self, manifest: KvManifest) {
        self.packer.layout = self.packer.quant.map(|_| manifest.layout.clone());
        self.session.with(self.transfer, |transfer| {
            if transfer.manifest.is_none() {
                transfer.manifest = Some(manifest);
                transfer.ready[1].push_back(Item {
                    part: Part::Manifest,
                    attempt: 0,
                    urgent: false,
                    body: Body::Manifest,
                });
            } else {
                transfer.misuse = true;
            }
        });
    }

    fn piece(&mut self, piece: KvPiece) {
        self.session.piece(self.transfer, &self.packer.pack(piece));
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests;
