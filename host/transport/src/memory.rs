//! Backpressure: how much a holder may send before the receiver has found room for it.
//!
//! A receiver grants each transfer a number of bytes. The holder begins a piece only while it has begun fewer bytes
//! than were granted, so a transfer overruns its grant by less than one piece. Grants come out of one budget a site,
//! and grow when the consumer takes pieces: a consumer that stops reading stops its holder and nobody else.

use crate::spares::{Spares, capacity_for, opened};
use bytes::BytesMut;
use parking_lot::Mutex;
use portolan_base::Bytes;
use std::sync::Arc;
use tokio::time::Instant;

/// Granted before anything is known of a transfer's size; most prompts fit into it.
const FIRST_GRANT: u64 = 64 << 20;

/// What a site may hold of KV that its consumers have not taken.
#[derive(Debug)]
pub(crate) struct Memory {
    limit: u64,
    used: Mutex<u64>,
    /// Buffers for what comes next, within what is not in use.
    spares: Mutex<Spares>,
}

impl Memory {
    pub(crate) fn new(limit: Bytes) -> Arc<Self> {
        Arc::new(Self {
            limit: limit.0,
            used: Mutex::new(0),
            spares: Mutex::default(),
        })
    }

    /// Reserves up to `wanted` bytes; says how many.
    fn take(&self, wanted: u64) -> u64 {
        let mut used = self.used.lock();
        let granted = wanted.min(self.limit.saturating_sub(*used));
        *used += granted;
        granted
    }

    fn give_back(&self, bytes: u64) {
        let mut used = self.used.lock();
        *used = used.saturating_sub(bytes);
    }

    /// Bytes reserved.
    pub(crate) fn used(&self) -> u64 {
        *self.used.lock()
    }

    fn room(&self) -> u64 {
        self.limit.saturating_sub(self.used())
    }

    /// An empty buffer with room for so many bytes; one that was used before, if there is one.
    pub(crate) fn buffer(&self, len: usize) -> BytesMut {
        let room = self.room();
        let mut spares = self.spares.lock();
        if let Some(buffer) = spares.take(len) {
            return opened(buffer);
        }
        // Those that are there do not fit: they make way for one that does.
        spares.trim(room, Instant::now());
        drop(spares);
        BytesMut::with_capacity(capacity_for(len))
    }

    /// Keeps a buffer for another use.
    pub(crate) fn keep(&self, buffer: Vec<u8>) {
        let room = self.room();
        self.spares.lock().put(buffer, room);
    }

    /// Lets go of buffers that nobody asked for lately.
    pub(crate) fn trim(&self, now: Instant) {
        let room = self.room();
        self.spares.lock().trim(room, now);
    }

    /// Bytes of buffers without a use.
    #[cfg(test)]
    pub(crate) fn spare(&self) -> u64 {
        self.spares.lock().bytes()
    }
}

/// One transfer's grants. Dropping it gives back what it reserved.
#[derive(Debug)]
pub(crate) struct Ledger {
    memory: Arc<Memory>,
    window: u64,
    /// Bytes of the whole transfer, once the manifest has told them.
    total: Option<u64>,
    /// Bytes the holder may begin, counted from the start.
    granted: u64,
    /// Bytes the consumer took. The last piece may have overrun the grant.
    consumed: u64,
    /// What is held of the site's memory: what was granted and not taken.
    reserved: u64,
}

impl Ledger {
    /// Opens with a first grant: nothing when the site's budget is used up.
    pub(crate) fn open(memory: &Arc<Memory>, window: Bytes) -> Self {
        let mut ledger = Self {
            memory: Arc::clone(memory),
            window: window.0.max(1),
            total: None,
            granted: 0,
            consumed: 0,
            reserved: 0,
        };
        ledger.top_up();
        ledger
    }

    /// The memory that the grants come out of.
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Bytes the holder may begin, counted from the start.
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    /// The manifest says how much will come; a new total of grants, if there is more to grant.
    pub(crate) fn total(&mut self, total: u64) -> Option<u64> {
        self.total = Some(total);
        self.settle();
        self.top_up()
    }

    /// The consumer took so many bytes; a new total of grants, if it is time to tell the holder.
    pub(crate) fn consumed(&mut self, bytes: u64) -> Option<u64> {
        self.consumed += bytes;
        self.settle();
        self.top_up()
    }

    /// Gives back what is reserved beyond what can still come.
    fn settle(&mut self) {
        let end = self.granted.min(self.total.unwrap_or(u64::MAX));
        let needed = end.saturating_sub(self.consumed);
        self.memory.give_back(self.reserved.saturating_sub(needed));
        self.reserved = self.reserved.min(needed);
    }

    /// Grants more where there is room; a new total of grants, if it is worth telling.
    pub(crate) fn top_up(&mut self) -> Option<u64> {
        let window = match self.total {
            Some(_) => self.window,
            None => self.window.min(FIRST_GRANT),
        };
        let end = self.total.unwrap_or(u64::MAX);
        let target = self.consumed.saturating_add(window).min(end);
        let begin = self.granted.max(self.consumed);
        let wanted = target.saturating_sub(begin);
        // A message for every piece would be waste: a quarter of a window at a time, or the rest.
        if wanted == 0 || (wanted < window / 4 && target < end && self.reserved > 0) {
            return None;
        }
        let got = self.memory.take(wanted);
        if got == 0 {
            return None;
        }
        self.granted = begin + got;
        self.reserved += got;
        Some(self.granted)
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.memory.give_back(self.reserved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_follow_the_consumer_and_never_exceed_the_total() {
        let memory = Memory::new(Bytes(1000));
        let mut ledger = Ledger::open(&memory, Bytes(100));
        assert_eq!((ledger.granted(), memory.used()), (100, 100));
        assert_eq!(ledger.total(250), None);
        assert_eq!(ledger.consumed(10), None, "too little to tell");
        assert_eq!(ledger.consumed(90), Some(200));
        assert_eq!(ledger.consumed(100), Some(250));
        assert_eq!(memory.used(), 50);
        assert_eq!(ledger.consumed(50), None);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn a_piece_that_overran_its_grant_reserves_nothing_twice() {
        let memory = Memory::new(Bytes(1000));
        let mut ledger = Ledger::open(&memory, Bytes(100));
        ledger.total(900);
        assert_eq!(
            ledger.consumed(300),
            Some(400),
            "a piece of 300 came on a grant of 100"
        );
        assert_eq!(memory.used(), 100);
        assert_eq!(ledger.consumed(550), Some(900));
        assert_eq!(memory.used(), 50);
    }

    #[test]
    fn a_small_transfer_gives_back_what_it_does_not_need() {
        let memory = Memory::new(Bytes(1000));
        let mut ledger = Ledger::open(&memory, Bytes(400));
        ledger.total(30);
        assert_eq!(memory.used(), 30);
        drop(ledger);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn one_budget_bounds_all_and_a_waiting_transfer_is_served_later() {
        let memory = Memory::new(Bytes(150));
        let first = Ledger::open(&memory, Bytes(100));
        let mut second = Ledger::open(&memory, Bytes(100));
        let mut third = Ledger::open(&memory, Bytes(100));
        assert_eq!([&first, &second, &third].map(Ledger::granted), [100, 50, 0]);
        assert_eq!(third.top_up(), None);
        drop(first);
        assert_eq!(third.top_up(), Some(100));
        assert_eq!(second.consumed(50), Some(100));
        assert_eq!(memory.used(), 150);
    }
}
