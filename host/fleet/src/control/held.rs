//! What the embedded control stream keeps in memory: everything that somebody may still have to be told.

use portolan_base::{ModelName, Sequence};
use portolan_ports::{ControlEntry, ControlError, ControlEvent, Invalidated};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Orders kept: a minute at a thousand a second, weeks of an ordinary day. A site that was away for longer forgets what it
/// cached and begins anew.
pub(super) const ORDERS_MAX: usize = 1 << 16;

/// Beats kept. One that nobody has met yet is never among the dropped: sites beat a few times a second and read at once.
const BEATS_MAX: usize = 1 << 12;

/// Entries in order.
#[derive(Debug, Default)]
pub(super) struct Held {
    orders: VecDeque<ControlEntry>,
    beats: VecDeque<ControlEntry>,
    /// Of each model the latest order, when newer orders pushed it out.
    models: BTreeMap<Sequence, ControlEntry>,
    model_at: HashMap<ModelName, Sequence>,
    /// Orders up to here may be missing.
    dropped: Sequence,
}

impl Held {
    pub(super) fn new(entries: Vec<ControlEntry>, dropped: Sequence) -> Self {
        let mut held = Self {
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
        self.orders.push_back(entry);
        if self.orders.len() > ORDERS_MAX {
            let oldest = self.orders.pop_front();
            oldest.into_iter().for_each(|entry| self.push_out(entry));
        }
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
            if let Some(former) = self.model_at.insert(model, sequence) {
                self.models.remove(&former);
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
