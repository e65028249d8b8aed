//! Tells other sites what an instance holds.

use super::message::{Body, SummaryMessage};
use super::{Fingerprints, KeyedHash, LEASE, SummaryKey};
use portolan_base::BlockHash;
use std::collections::HashMap;

/// Changes before a new snapshot, at least: below this a snapshot saves nothing worth its work.
const FEW_CHANGES: usize = 4096;

/// One source's messages. Note every change, then ask for a message now and then: [`SummaryWriter::changes`] at least
/// four times a lease, [`SummaryWriter::snapshot`] when [`SummaryWriter::wants_snapshot`] or a reader asks.
#[derive(Debug)]
pub struct SummaryWriter {
    key: SummaryKey,
    incarnation: u64,
    sequence: u64,
    noted: HashMap<KeyedHash, bool>,
    /// Changes told since the last snapshot, and the blocks in that.
    told: usize,
    snapshot: Option<Told>,
}

/// The last snapshot.
#[derive(Clone, Copy, Debug)]
struct Told {
    sequence: u64,
    blocks: usize,
}

impl SummaryWriter {
    /// A writer that has told nothing. `incarnation` is drawn at random when the source starts.
    pub fn new(key: SummaryKey, incarnation: u64) -> Self {
        Self {
            key,
            incarnation,
            sequence: 0,
            noted: HashMap::new(),
            told: 0,
            snapshot: None,
        }
    }

    /// Whether these blocks are held, after a change of theirs.
    pub fn note(&mut self, blocks: impl IntoIterator<Item = BlockHash>, held: bool) {
        self.noted
            .extend(blocks.into_iter().map(|block| (self.key.hash(block), held)));
    }

    /// Everything noted is void: a snapshot has to follow.
    pub fn restart(&mut self) {
        self.noted.clear();
        self.snapshot = None;
    }

    /// Whether a snapshot is due: none was told, or the changes since take a reader more memory than it.
    pub fn wants_snapshot(&self) -> bool {
        let changes = self.told + self.noted.len();
        self.snapshot
            .is_none_or(|told| changes > FEW_CHANGES.max(told.blocks / 8))
    }

    /// A reader missed something before message `sequence`. A snapshot has to follow, unless one was told since: it is
    /// on its way, and what asks for it again need not be answered.
    pub fn asked(&mut self, incarnation: u64, sequence: u64) {
        let answered = self.snapshot.is_some_and(|told| told.sequence > sequence);
        if incarnation == self.incarnation && !answered {
            self.snapshot = None;
        }
    }

    /// Changes noted and not told.
    pub fn pending(&self) -> usize {
        self.noted.len()
    }

    /// A message of what changed since the last one; it renews the lease even if nothing did.
    pub fn changes(&mut self) -> SummaryMessage {
        self.told += self.noted.len();
        let (added, removed): (Vec<_>, Vec<_>) = self.noted.drain().partition(|(_, held)| *held);
        let hashes = |changes: Vec<(KeyedHash, bool)>| changes.into_iter().map(|(hash, _)| hash).collect();
        self.message(Body::Changes {
            added: hashes(added),
            removed: hashes(removed),
        })
    }

    /// A message of all that is held.
    pub fn snapshot(&mut self, held: impl IntoIterator<Item = BlockHash>) -> SummaryMessage {
        let held = Fingerprints::new(held.into_iter().map(|block| self.key.hash(block)));
        self.noted.clear();
        self.told = 0;
        self.snapshot = Some(Told {
            sequence: self.sequence,
            blocks: held.len(),
        });
        self.message(Body::Snapshot(held))
    }

    fn message(&mut self, body: Body) -> SummaryMessage {
        let message = SummaryMessage {
            mark: self.key.mark(),
            incarnation: self.incarnation,
            sequence: self.sequence,
            lease: LEASE,
            body,
        };
        self.sequence += 1;
        message
    }
}
