//! What a disk tier knows: its catalogue, and what its writer has to do.

use crate::file::SumKey;
use crate::folder::{FileName, Folder};
use portolan_base::{BlockId, Bytes, Moment};
use portolan_kv::tier::{Left, Reading};
use portolan_kv::{Kept, Parents, PoolBlock, PoolConfig, PrefixPool};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// What reading is taken to cost until it was measured: a common SSD's 1 GiB/s and 0.1 ms.
const READING: Reading = Reading {
    a_block: Duration::from_micros(100),
    a_mib: Duration::from_millis(1),
};

/// Weight of the past in the mean of read times: an eighth of each new measurement counts.
const MEAN_WEIGHT: u32 = 8;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) pool: PrefixPool<Filed>,
    /// Blocks that are not written yet, by the number of their file.
    pub(crate) pending: HashMap<u64, (Arc<PoolBlock>, Moment)>,
    pub(crate) work: VecDeque<Work>,
    /// Bytes of what waits to be written.
    pub(crate) queued: Bytes,
    pub(crate) is_closed: bool,
    pub(crate) is_busy: bool,
    pub(crate) refused: u64,
    pub(crate) damaged: u64,
    pub(crate) reading: Reading,
    pub(crate) next: u64,
}

/// What the writer does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Writes a block that is pending, and so many bytes long.
    Write(FileName, Bytes),
    /// Makes a published file one that no scan takes, and erases it.
    Remove(FileName),
    /// Erases what is buried.
    Erase(FileName),
    /// Erases what is buried of what had landed.
    EraseLanded(FileName),
}

/// Where a block's KV lies.
#[derive(Clone, Debug)]
pub(crate) struct Filed {
    pub(crate) name: FileName,
    pub(crate) kv: Bytes,
    pub(crate) has_snapshot: bool,
}

impl Kept for Filed {
    fn size(&self) -> Bytes {
        self.kv
    }
    fn has_snapshot(&self) -> bool {
        self.has_snapshot
    }
    fn completed(&self, other: Self) -> Self {
        other
    }
}

impl State {
    /// Nothing, of a tier of this budget.
    pub(crate) fn new(pool: PoolConfig) -> Self {
        Self {
            pool: PrefixPool::new(PoolConfig {
                parents: Parents::Elsewhere,
                ..pool
            }),
            pending: HashMap::new(),
            work: VecDeque::new(),
            queued: Bytes(0),
            is_closed: false,
            is_busy: false,
            refused: 0,
            damaged: 0,
            reading: READING,
            next: 0,
        }
    }

    /// Takes over what is there: the newest file of each block, the longest unused first, as far as the budget goes.
    pub(crate) fn take_over(&mut self, folder: &Folder, key: SumKey) -> std::io::Result<()> {
        let mut found = Vec::new();
        self.damaged = folder.scan(key, |name, head| found.push((name, head)))?;
        found.sort_by_key(|(name, _)| std::cmp::Reverse(name.number));
        self.next = found.first().map_or(0, |(name, _)| name.number + 1);
        let mut seen = HashSet::new();
        let (mut kept, old): (Vec<_>, Vec<_>) = found.into_iter().partition(|(name, _)| seen.insert(name.id));
        self.work.extend(old.iter().map(|(name, _)| Work::Remove(*name)));
        kept.sort_by_key(|(_, head)| head.used_at);
        for (name, head) in kept {
            let block = PoolBlock {
                id: head.id,
                parent: head.parent,
                kv: Filed {
                    name,
                    kv: head.body(),
                    has_snapshot: head.has_snapshot(),
                },
                hashes: head.hashes,
                about: head.about,
                rebuild: head.rebuild,
            };
            let inserted = self.pool.insert(block, head.used_at);
            if !inserted.added {
                self.work.push_back(Work::Remove(name));
            }
            self.remove_later(&inserted.evicted);
            self.remove_later(&inserted.replaced);
        }
        Ok(())
    }

    /// Lets go of blocks that left the catalogue, and names them.
    pub(crate) fn remove_later(&mut self, gone: &[Arc<PoolBlock<Filed>>]) -> Vec<Left> {
        for block in gone {
            let name = block.kv.name;
            if self.pending.remove(&name.number).is_none() {
                self.work.push_back(Work::Remove(name));
            }
        }
        gone.iter().map(|block| block.as_ref().into()).collect()
    }

    /// The file of a block.
    pub(crate) fn name_of(&self, id: &BlockId) -> Option<FileName> {
        self.pool.see(id).map(|seen| seen.block.kv.name)
    }

    /// Whether the block as it lies here lacks something that `block` has.
    pub(crate) fn lacks(&self, block: &PoolBlock) -> bool {
        self.pool.see(&block.id).is_none_or(|seen| {
            let mut on = block.about.dependencies.iter();
            let more = on.any(|dependency| !seen.dependencies.contains(dependency));
            more || block.kv.snapshot.is_some() && !seen.block.kv.has_snapshot
        })
    }

    pub(crate) fn measured(&mut self, bytes: Bytes, took: Duration) {
        let a_block = self.reading.a_block.min(took);
        let mib = (bytes.0 >> 20).max(1);
        let a_mib = (took - a_block) / u32::try_from(mib).unwrap_or(u32::MAX);
        self.reading.a_mib = (self.reading.a_mib * (MEAN_WEIGHT - 1) + a_mib) / MEAN_WEIGHT;
    }
}
