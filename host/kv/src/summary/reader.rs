//! Believes what another site tells, while it may.

use super::message::{Body, SummaryMessage};
use super::{Fingerprints, KeyedChain, KeyedHash, LONGEST_LEASE, SummaryKey};
use crate::index::{Arrival, SourceState};
use portolan_base::{BlockHash, Moment};
use std::collections::HashMap;

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It is part of the summary.
    Applied,
    /// Something before it was missed: nothing is believed until a snapshot comes. Ask for one.
    WantsSnapshot,
    /// It came late or twice.
    Ignored,
    /// Its writer has another key: the sites do not share a secret.
    OtherKey,
}

/// Changes since a snapshot, at most: a writer tells a snapshot long before.
const MOST_CHANGES: usize = 1 << 20;

/// One source's summary, as heard.
#[derive(Clone, Debug)]
pub struct SummaryReader {
    key: SummaryKey,
    mark: u64,
    source: SourceState,
    has_snapshot: bool,
    snapshot: Fingerprints,
    changes: HashMap<KeyedHash, bool>,
    good_until: Moment,
}

impl SummaryReader {
    /// Nothing heard yet.
    pub fn new(key: SummaryKey) -> Self {
        Self {
            key,
            mark: key.mark(),
            source: SourceState::new(),
            has_snapshot: false,
            snapshot: Fingerprints::default(),
            changes: HashMap::new(),
            good_until: Moment(0),
        }
    }

    /// Takes a message.
    pub fn hear(&mut self, message: SummaryMessage, now: Moment) -> Heard {
        if message.mark != self.mark {
            return Heard::OtherKey;
        }
        match self.source.observe(message.incarnation, message.sequence) {
            Arrival::Stale => return Heard::Ignored,
            Arrival::ClearFirst => self.has_snapshot = false,
            Arrival::Next => {}
        }
        match message.body {
            Body::Snapshot(snapshot) => {
                self.snapshot = snapshot;
                self.changes.clear();
                self.has_snapshot = true;
            }
            Body::Changes { added, removed } if self.has_snapshot => {
                self.changes.extend(added.into_iter().map(|hash| (hash, true)));
                self.changes.extend(removed.into_iter().map(|hash| (hash, false)));
            }
            Body::Changes { .. } => {}
        }
        self.has_snapshot &= self.changes.len() <= MOST_CHANGES;
        if !self.has_snapshot {
            self.forget();
            return Heard::WantsSnapshot;
        }
        let lease = u64::try_from(message.lease.as_micros()).unwrap_or(u64::MAX);
        self.good_until = Moment(now.0.saturating_add(lease));
        Heard::Applied
    }

    /// How many blocks of `chain` the source holds from its beginning, as far as is known and while the lease lasts.
    ///
    /// Probes blocks twice as far on each time, then halves the gap: some 17 probes for 512 blocks, which makes a length
    /// that is too long once in 4,000 lookups. Prompts lose their ends first, so a block found says that those before it are there.
    pub fn prefix(&self, chain: &[BlockHash], now: Moment) -> usize {
        self.prefix_of(&mut KeyedChain::new(self.key, chain), now)
    }

    /// See [`SummaryReader::prefix`]; for one prompt and many readers. A chain under another key is held by nobody.
    pub fn prefix_of(&self, chain: &mut KeyedChain<'_>, now: Moment) -> usize {
        if now >= self.good_until || !self.has_snapshot || chain.key() != self.key {
            return 0;
        }
        let (mut held, mut not, mut step) = (0, chain.len() + 1, 1);
        while held + step < not {
            if !self.holds(chain.name(held + step - 1)) {
                not = held + step;
                break;
            }
            held += step;
            step *= 2;
        }
        while held + 1 < not {
            let middle = usize::midpoint(held, not);
            if self.holds(chain.name(middle - 1)) {
                held = middle;
            } else {
                not = middle;
            }
        }
        held
    }

    /// Gives the memory of a summary back whose lease ended long ago. Until then what renews it costs no snapshot.
    pub fn expire(&mut self, now: Moment) {
        if self.has_snapshot && now.since(self.good_until) >= LONGEST_LEASE {
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.has_snapshot = false;
        self.snapshot = Fingerprints::default();
        self.changes = HashMap::new();
    }

    /// Memory it takes, by its parts' sizes.
    pub fn bytes(&self) -> usize {
        let (unary, low) = self.snapshot.parts();
        size_of_val(unary)
            + size_of_val(low)
            + low.len() / 8
            + self.changes.capacity() * (size_of::<(KeyedHash, bool)>() + 1)
    }

    fn holds(&self, hash: KeyedHash) -> bool {
        let changed = self.changes.get(&hash).copied();
        changed.unwrap_or_else(|| self.snapshot.contains(hash))
    }
}
