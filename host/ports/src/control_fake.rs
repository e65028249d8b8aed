//! The fake beside [`ControlStream`]: a stream in memory that outlives those who follow it, and what can be wrong with one.

use crate::control::{
    ControlEntries, ControlEntry, ControlError, ControlEvent, ControlStream, Cursor, StreamId,
};
use async_trait::async_trait;
use parking_lot::Mutex;
use portolan_base::Sequence;
use std::sync::Arc;
use tokio::sync::watch;

/// What is wrong with a [`MemoryControl`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlFault {
    /// Nothing is kept or acknowledged.
    NoQuorum,
    /// Events are kept, but nobody is told.
    LostAcknowledgements,
    /// Nothing reaches whoever follows; it waits.
    Silent,
    /// Whoever follows is told that the stream is out of reach.
    Cut,
    /// Every entry comes twice.
    Doubles,
}

/// A [`ControlStream`] in memory. Clones share it.
#[derive(Clone, Debug)]
pub struct MemoryControl {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    held: Mutex<Held>,
    /// Counts changes.
    changed: watch::Sender<u64>,
}

#[derive(Debug)]
struct Held {
    stream: StreamId,
    entries: Vec<ControlEntry>,
    last: Sequence,
    /// Entries up to here are not kept.
    dropped: Sequence,
    fault: Option<ControlFault>,
}

impl Default for MemoryControl {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryControl {
    /// An empty stream.
    pub fn new() -> Self {
        let held = Held {
            stream: StreamId("memory-1".to_owned()),
            entries: Vec::new(),
            last: Sequence::NONE,
            dropped: Sequence::NONE,
            fault: None,
        };
        Self {
            shared: Arc::new(Shared {
                held: Mutex::new(held),
                changed: watch::Sender::new(0),
            }),
        }
    }

    /// Breaks it, or mends it.
    pub fn set_fault(&self, fault: Option<ControlFault>) {
        self.change(|held| held.fault = fault);
    }

    /// Drops the oldest entries up to a position.
    pub fn drop_up_to(&self, sequence: Sequence) {
        self.change(|held| {
            held.entries.retain(|entry| entry.sequence > sequence);
            held.dropped = held.dropped.max(sequence);
        });
    }

    /// Becomes another stream, which holds nothing.
    pub fn found_anew(&self) {
        self.change(|held| {
            held.stream.0.push('+');
            held.entries.clear();
            (held.last, held.dropped) = (Sequence::NONE, Sequence::NONE);
        });
    }

    /// What it holds.
    pub fn entries(&self) -> Vec<ControlEntry> {
        self.shared.held.lock().entries.clone()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Held) -> T) -> T {
        let changed = change(&mut self.shared.held.lock());
        self.shared.changed.send_modify(|count| *count += 1);
        changed
    }
}

impl Held {
    /// Whether following from here meets everything.
    fn check(&self, cursor: &Cursor) -> Result<(), ControlError> {
        let lost = |why: &str| {
            Err(ControlError::Lost {
                from: cursor.sequence,
                why: why.to_owned(),
            })
        };
        if cursor.stream != self.stream {
            return lost("it is another stream");
        }
        if cursor.sequence < self.dropped {
            return lost("entries after it are not kept");
        }
        if cursor.sequence > self.last {
            return lost("the stream has not come so far");
        }
        Ok(())
    }
}

#[async_trait]
impl ControlStream for MemoryControl {
    async fn append(&self, event: ControlEvent) -> Result<Sequence, ControlError> {
        self.change(|held| {
            if held.fault == Some(ControlFault::NoQuorum) {
                return Err(ControlError::NotAcknowledged("there is no quorum".to_owned()));
            }
            held.last = held.last.next();
            let sequence = held.last;
            held.entries.push(ControlEntry { sequence, event });
            if held.fault == Some(ControlFault::LostAcknowledgements) {
                return Err(ControlError::NotAcknowledged(
                    "the acknowledgement was lost".to_owned(),
                ));
            }
            Ok(sequence)
        })
    }

    async fn follow(&self, after: Option<&Cursor>) -> Result<Box<dyn ControlEntries>, ControlError> {
        let held = self.shared.held.lock();
        if held.fault == Some(ControlFault::Cut) {
            return Err(ControlError::Cut("it was cut".to_owned()));
        }
        if let Some(cursor) = after {
            held.check(cursor)?;
        }
        let sequence = after.map_or(held.dropped, |cursor| cursor.sequence);
        Ok(Box::new(MemoryEntries {
            of: self.clone(),
            changed: self.shared.changed.subscribe(),
            at: Cursor {
                stream: held.stream.clone(),
                sequence,
            },
            again: None,
        }))
    }
}

struct MemoryEntries {
    of: MemoryControl,
    changed: watch::Receiver<u64>,
    at: Cursor,
    /// An entry that comes a second time.
    again: Option<ControlEntry>,
}

impl MemoryEntries {
    fn take(&mut self) -> Result<Option<ControlEntry>, ControlError> {
        if let Some(again) = self.again.take() {
            return Ok(Some(again));
        }
        let held = self.of.shared.held.lock();
        match held.fault {
            Some(ControlFault::Cut) => return Err(ControlError::Cut("it was cut".to_owned())),
            Some(ControlFault::Silent) => return Ok(None),
            _ => held.check(&self.at)?,
        }
        let next = held
            .entries
            .iter()
            .find(|entry| entry.sequence > self.at.sequence);
        let Some(next) = next.cloned() else {
            return Ok(None);
        };
        self.at.sequence = next.sequence;
        self.again = (held.fault == Some(ControlFault::Doubles)).then(|| next.clone());
        Ok(Some(next))
    }
}

#[async_trait]
impl ControlEntries for MemoryEntries {
    fn stream(&self) -> &StreamId {
        &self.at.stream
    }

    async fn next(&mut self) -> Result<ControlEntry, ControlError> {
        loop {
            self.changed.borrow_and_update();
            if let Some(entry) = self.take()? {
                return Ok(entry);
            }
            if self.changed.changed().await.is_err() {
                return Err(ControlError::Cut("the stream is gone".to_owned()));
            }
        }
    }

    fn next_ready(&mut self) -> Option<ControlEntry> {
        self.take().ok().flatten()
    }
}
