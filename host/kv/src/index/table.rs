//! From a block's hash to its slot.
//!
//! 256 small tables instead of a large one, so that growing never needs more than a fraction of a per cent of the
//! whole at once, and takes microseconds.

use super::slab::{Slab, Slot};
use hashbrown::HashTable;
use portolan_base::BlockHash;

const TABLES: usize = 256;

/// What a bucket takes: a slot and a control byte.
const BUCKET: usize = size_of::<Slot>() + 1;

#[derive(Debug)]
pub(super) struct Table {
    tables: Box<[HashTable<Slot>]>,
    len: usize,
    bytes: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            tables: (0..TABLES).map(|_| HashTable::new()).collect(),
            len: 0,
            bytes: TABLES * size_of::<HashTable<Slot>>(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn find(&self, hash: BlockHash, slab: &Slab) -> Option<Slot> {
        let spread = spread(hash);
        let found = self.tables[table(spread)].find(spread, |slot| slab.hash(*slot) == Some(hash));
        found.copied()
    }

    /// Bytes that inserting this hash may take beyond what is taken, for the moment in which a table is rebuilt.
    pub(super) fn growth(&self, hash: BlockHash) -> usize {
        let table = &self.tables[table(spread(hash))];
        if table.len() < table.capacity() {
            return 0;
        }
        // Doubled, unless removals have left enough room; small tables begin at a few buckets.
        (table.num_buckets() * 2).max(16) * BUCKET + 16
    }

    /// Adds a hash that is not there.
    pub(super) fn insert(&mut self, hash: BlockHash, slot: Slot, slab: &Slab) {
        let spread_hash = spread(hash);
        let table = &mut self.tables[table(spread_hash)];
        let full = table.len() == table.capacity();
        let before = table.allocation_size();
        let rehash = |slot: &Slot| slab.hash(*slot).map_or(0, spread);
        if full && table.len() * 4 < table.num_buckets() * 3 {
            // Full of the marks that removals leave: the same size again, without them.
            let mut fresh = HashTable::with_capacity(table.num_buckets() * 7 / 8);
            for slot in table.drain() {
                fresh.insert_unique(rehash(&slot), slot, rehash);
            }
            *table = fresh;
        }
        table.insert_unique(spread_hash, slot, rehash);
        self.bytes = self.bytes + table.allocation_size() - before;
        self.len += 1;
    }

    pub(super) fn remove(&mut self, hash: BlockHash, slot: Slot) {
        let spread = spread(hash);
        let table = &mut self.tables[table(spread)];
        if let Ok(entry) = table.find_entry(spread, |other| *other == slot) {
            entry.remove();
            self.len -= 1;
        }
    }
}

/// Block hashes are uniform already, but nothing here should depend on a caller's keeping to that.
fn spread(hash: BlockHash) -> u64 {
    let product = hash.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ product >> 32
}

fn table(spread: u64) -> usize {
    // The low bits choose the bucket and the top seven bits its control byte.
    (spread >> 40) as usize % TABLES
}
