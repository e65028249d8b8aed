//! One rank's messages, in whatever order and completeness they come, as changes of what it holds.
//!
//! The protocol has numbers and no incarnation: a restarted engine begins at 0 again. A live number that goes back is
//! therefore a restart, and so are a clock that goes back and a process whose start time changed, which the owner of the
//! socket sees ([`EventFeed::restarted`]).

use super::{DecodedBatch, EventError, Live, Skipped, decode};
use portolan_base::{Bytes, CachePart};
use portolan_kv::Place;
use portolan_kv::index::event::Batch;
use portolan_kv::index::{Change, EngineSource, Refused, Salts};
use portolan_ports::KvEvent;
use std::collections::VecDeque;
use thiserror::Error;

/// Messages that wait for a replay: at one a step and 50 steps a second, twenty seconds of it. Beyond, the replay is
/// given up.
const MOST_WAITING: usize = 1024;

/// Seconds that an engine's clock may be set back without being taken for another process.
const CLOCK_STEP: f64 = 1.0;

/// Why a message was not taken. Its number stays unused, so that the next one shows a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FeedError {
    /// Its payload cannot be read.
    #[error(transparent)]
    Event(#[from] EventError),
    /// Another rank sent it.
    #[error("cache events of rank {got} came on the port of rank {expected}; ports count up from rank 0's")]
    Rank {
        /// Whose port it is.
        expected: u16,
        /// Whose events they are.
        got: u16,
    },
}

/// What the socket's owner should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Go on.
    Nothing,
    /// Ask for a replay from this number on, hand its messages to [`EventFeed::replayed`], then call
    /// [`EventFeed::replay_ended`], also where there is no replay to be had.
    Replay {
        /// The first number missed.
        from: u64,
    },
}

/// Follows one engine's rank.
#[derive(Debug)]
pub struct EventFeed {
    source: EngineSource,
    rank: u16,
    /// Whether what the engine calls the rank matters.
    named: bool,
    incarnation: u64,
    next: u64,
    /// The last live message's time.
    timestamp: f64,
    waiting: VecDeque<(u64, DecodedBatch)>,
    replaying: bool,
    skipped: Skipped,
}

impl EventFeed {
    /// A feed that has heard nothing. The engine's names may take `names`.
    pub fn new(rank: u16, names: Bytes) -> Self {
        Self {
            source: EngineSource::new(Place { instance: 0, rank }, names),
            rank,
            named: true,
            incarnation: 0,
            next: 0,
            timestamp: f64::MIN,
            waiting: VecDeque::new(),
            replaying: false,
            skipped: Skipped::default(),
        }
    }

    /// The same, whatever number the engine gives the rank.
    #[must_use]
    pub fn by_any_name(mut self) -> Self {
        self.named = false;
        self
    }

    /// Takes a message of the running stream and tells what changes.
    ///
    /// # Errors
    /// When the message cannot be used.
    pub fn live(
        &mut self,
        live: Live<'_>,
        salts: &dyn Salts,
        tell: &mut dyn FnMut(KvEvent),
    ) -> Result<Wanted, FeedError> {
        let batch = self.decode(live.payload)?;
        let last = self
            .waiting
            .back()
            .map_or(self.next, |(number, _)| number.saturating_add(1));
        let again = live.sequence.saturating_add(1) == last && batch.timestamp == self.timestamp;
        if again {
            return Ok(Wanted::Nothing);
        }
        if live.sequence < last || batch.timestamp + CLOCK_STEP < self.timestamp {
            self.restarted();
        }
        self.timestamp = batch.timestamp;
        if self.replaying || live.sequence > self.next {
            let asked = std::mem::replace(&mut self.replaying, true);
            self.waiting.push_back((live.sequence, batch));
            if self.waiting.len() > MOST_WAITING {
                self.replay_ended(salts, tell);
                return Ok(Wanted::Nothing);
            }
            return Ok(match asked {
                false => Wanted::Replay { from: self.next },
                true => Wanted::Nothing,
            });
        }
        self.apply(live.sequence, batch, salts, tell);
        Ok(Wanted::Nothing)
    }

    /// Takes a message of a replay.
    ///
    /// # Errors
    /// When the message cannot be used.
    pub fn replayed(
        &mut self,
        past: Live<'_>,
        salts: &dyn Salts,
        tell: &mut dyn FnMut(KvEvent),
    ) -> Result<(), FeedError> {
        let batch = self.decode(past.payload)?;
        if past.sequence >= self.next {
            self.apply(past.sequence, batch, salts, tell);
        }
        Ok(())
    }

    /// No more of a replay will come: what waited for it is taken. What is missing still is noticed by its numbers, and
    /// makes the source forget.
    pub fn replay_ended(&mut self, salts: &dyn Salts, tell: &mut dyn FnMut(KvEvent)) {
        self.replaying = false;
        for (sequence, batch) in std::mem::take(&mut self.waiting) {
            if sequence >= self.next {
                self.apply(sequence, batch, salts, tell);
            }
        }
    }

    /// The engine's process is another one than before.
    pub fn restarted(&mut self) {
        self.incarnation += 1;
        self.next = 0;
        self.timestamp = f64::MIN;
        self.waiting.clear();
        self.replaying = false;
    }

    /// Whether everything the engine holds is known.
    pub fn is_complete(&self) -> bool {
        self.source.is_complete() && !self.replaying
    }

    /// Events that were not for the index.
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// Blocks that could not be used.
    pub fn refused(&self) -> Refused {
        self.source.refused()
    }

    fn decode(&mut self, payload: &[u8]) -> Result<DecodedBatch, FeedError> {
        let batch = decode(payload)?;
        if let Some(got) = batch.rank.filter(|rank| self.named && *rank != self.rank) {
            let expected = self.rank;
            return Err(FeedError::Rank { expected, got });
        }
        self.skipped.add(&batch.skipped);
        Ok(batch)
    }

    fn apply(
        &mut self,
        sequence: u64,
        batch: DecodedBatch,
        salts: &dyn Salts,
        tell: &mut dyn FnMut(KvEvent),
    ) {
        self.next = sequence.saturating_add(1);
        let batch = Batch {
            incarnation: self.incarnation,
            sequence,
            events: batch.events,
        };
        self.source
            .apply(&batch, salts, &mut |change| tell(event_of(change)));
    }
}

/// A change as an engine's events name it.
fn event_of(change: Change<'_>) -> KvEvent {
    let part = |holder: portolan_kv::Holder| CachePart {
        rank: holder.place.rank,
        group: holder.group,
        tier: holder.tier,
    };
    match change {
        Change::Stored {
            holder,
            parent,
            blocks,
        } => KvEvent::Stored {
            part: part(holder),
            parent,
            blocks: blocks.to_vec(),
            about: None,
        },
        Change::Removed { holder, blocks } => KvEvent::Removed {
            part: part(holder),
            blocks: blocks.to_vec(),
        },
        Change::Cleared(place) => KvEvent::Cleared { rank: place.rank },
    }
}
