//! What the embedded control stream keeps in memory: everything that somebody may still have to be told.

use super::file::RECORD_HEAD_BYTES;
use portolan_base::{ModelName, Sequence};
use portolan_ports::{ControlEntry, ControlError, ControlEvent, Invalidated};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Orders kept: a minute at a thousand a second, weeks of an ordinary day. A site that was away for longer forgets what it
/// cached and begins anew.
pub(super) const ORDERS_MAX: usize = 1 << 16;

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Bytes of orders, as they are written.
    pub(super) orders: u64,
    /// A file that is this many bytes more than twice as long as what it has to keep is written anew: what is left out is
    /// more than what is written, so that writing anew costs less than the writing that made it due.
    pub(super) slack: u64,
}

/// 32 MiB of orders are [`ORDERS_MAX`] of 512 bytes, more than an ordinary one has. Whatever they hold, the file is written
/// anew well within a lease; every site's beats wait for that.
impl Default for Bounds {
    fn default() -> Self {
        Self {
            orders: 32 << 20,
            slack: 32 << 20,
        }
    }
}

/// Beats kept. One that nobody has met yet is never among the dropped: sites beat a few times a second and read at once.
const BEATS_MAX: usize = 1 << 12;

/// Bytes, as they are written.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    orders: u64,
    models: u64,
}

/// Entries in order.
#[derive(Debug, Default)]
pub(super) struct Held {
    orders: VecDeque<ControlEntry>,
    most: Bounds,
    /// Of the orders, and of what is kept of models beside them.
    bytes: Kept,
    beats: VecDeque<ControlEntry>,
    /// Of each model the latest order, when newer orders pushed it out.
    models: BTreeMap<Sequence, ControlEntry>,
    model_at: HashMap<ModelName, Sequence>,
    /// Orders up to here may be missing.
    dropped: Sequence,
}

impl Held {
    pub(super) fn new(most: Bounds, entries: Vec<ControlEntry>, dropped: Sequence) -> Self {
        let mut held = Self {
            most,
            dropped,
            ..Self::default()
        };
        entries.into_iter().for_each(|entry| held.push(entry));
        held.dropped = held.dropped.max(dropped);
        held
    }

    pub(super) fn push(&mut self, entry: ControlEntry) {
        if matches!(entry.event, ControlEvent::Beat(_)) {
            self.beats.push_back(entry);
            if self.beats.len() > BEATS_MAX {
                self.beats.pop_front();
            }
            return;
        }
        self.bytes.orders += written_bytes(&entry);
        self.orders.push_back(entry);
        while self.orders.len() > ORDERS_MAX || self.bytes.orders > self.most.orders {
            let Some(oldest) = self.orders.pop_front() else {
                return;
            };
            self.bytes.orders -= written_bytes(&oldest);
            self.push_out(oldest);
        }
    }

    /// How long a file with all orders may be before it is written anew.
    pub(super) fn file_bytes_max(&self) -> u64 {
        2 * (self.bytes.orders + self.bytes.models) + self.most.slack
    }

    fn push_out(&mut self, entry: ControlEntry) {
        let model = match &entry.event {
            ControlEvent::Invalidation(order) => match &order.what {
                Invalidated::Model { model } => Some(model.clone()),
                _ => None,
            },
            _ => None,
        };
        self.dropped = self.dropped.max(entry.sequence);
        if let Some(model) = model {
            let sequence = entry.sequence;
            self.bytes.models += written_bytes(&entry);
            if let Some(former) = self.model_at.insert(model, sequence)
                && let Some(former) = self.models.remove(&former)
            {
                self.bytes.models -= written_bytes(&former);
            }
            self.models.insert(sequence, entry);
        }
    }

    /// Orders up to here may be missing.
    pub(super) fn dropped(&self) -> Sequence {
        self.dropped
    }

    /// Whether whoever has taken in everything up to `after` can be told all the rest.
    pub(super) fn check(&self, after: Sequence, last: Sequence) -> Result<(), ControlError> {
        let why = if after < self.dropped {
            "orders after it are not kept"
        } else if after > last {
            "the stream has not come so far; it lost what it held"
        } else {
            return Ok(());
        };
        Err(ControlError::Lost {
            from: after,
            why: why.to_owned(),
        })
    }

    /// The first entry after a position.
    pub(super) fn after(&self, sequence: Sequence) -> Option<&ControlEntry> {
        let first =
            |entries: &VecDeque<ControlEntry>| entries.partition_point(|entry| entry.sequence <= sequence);
        let candidates = [
            self.orders.get(first(&self.orders)),
            self.beats.get(first(&self.beats)),
            self.models
                .range(sequence.next()..)
                .next()
                .map(|(_, entry)| entry),
        ];
        candidates
            .into_iter()
            .flatten()
            .min_by_key(|entry| entry.sequence)
    }

    /// All orders, in order.
    pub(super) fn orders(&self) -> impl Iterator<Item = &ControlEntry> {
        self.models.values().chain(&self.orders)
    }
}

/// Bytes of an order in a file.
fn written_bytes(entry: &ControlEntry) -> u64 {
    // What cannot be written is not in a file either.
    let event = entry.event.to_bytes().map_or(0, |event| event.len());
    (RECORD_HEAD_BYTES + event) as u64
}
