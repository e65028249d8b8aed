//! The peer's indexes, behind the pool of worker threads that its own router puts them behind: one worker.

use crate::Index;
use crate::trace::{HELD, Prompt, local};
use dynamo_kv_router::indexer::{SyncIndexer, ThreadPoolIndexer};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, RouterEvent, compute_seq_hash_for_block,
};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::ops::Range;
use tokio::runtime::Runtime;

pub struct Theirs<T: SyncIndexer> {
    pool: ThreadPoolIndexer<T>,
    runtime: Runtime,
    /// The sequence hashes of the prompt that events are about. One of the indexes makes them itself for lookups, so that
    /// events must carry just these. Made once a prompt: some ten nanoseconds a block.
    names: (u64, Vec<u64>),
}

impl<T: SyncIndexer> Theirs<T> {
    pub fn new(index: T) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let inside = runtime.enter();
        let pool = ThreadPoolIndexer::new(index, 1, 16);
        drop(inside);
        Self {
            pool,
            runtime,
            names: (u64::MAX, Vec::new()),
        }
    }

    fn learn(&mut self, prompt: u64) {
        if self.names.0 != prompt {
            let blocks: Vec<LocalBlockHash> = (0..HELD).map(|at| local(prompt, at)).collect();
            self.names = (prompt, compute_seq_hash_for_block(&blocks));
        }
    }

    fn name(&self, at: usize) -> ExternalSequenceBlockHash {
        ExternalSequenceBlockHash(self.names.1[at])
    }

    fn tell(&self, worker: u64, data: KvCacheEventData) {
        let event = KvCacheEvent {
            event_id: 0,
            data,
            dp_rank: 0,
        };
        self.pool
            .enqueue_event(RouterEvent::new(worker, event))
            .expect("the worker runs");
    }
}

impl<T: SyncIndexer> Index for Theirs<T> {
    fn store(&mut self, worker: u64, prompt: u64, at: Range<usize>) {
        self.learn(prompt);
        let block = |at| KvCacheStoredBlockData {
            block_hash: self.name(at),
            tokens_hash: local(prompt, at),
            mm_extra_info: None,
        };
        let parent = at.start.checked_sub(1);
        let data = KvCacheStoreData {
            parent_hash: parent.map(|before| self.name(before)),
            start_position: Some(at.start as u32),
            blocks: at.map(block).collect(),
        };
        self.tell(worker, KvCacheEventData::Stored(data));
    }

    fn remove(&mut self, worker: u64, prompt: u64, at: usize) {
        self.learn(prompt);
        let data = KvCacheRemoveData {
            block_hashes: vec![self.name(at)],
        };
        self.tell(worker, KvCacheEventData::Removed(data));
    }

    fn settle(&self) {
        self.runtime
            .block_on(self.pool.flush_and_wait())
            .expect("the worker runs");
    }

    fn ask(&mut self, prompt: &Prompt) -> BTreeMap<u64, usize> {
        let found = self.pool.backend().find_matches(&prompt.theirs, false).scores;
        found
            .into_iter()
            .map(|(worker, blocks)| (worker.worker_id, blocks as usize))
            .collect()
    }

    fn ask_only(&mut self, prompt: &Prompt) {
        black_box(self.pool.backend().find_matches(black_box(&prompt.theirs), false));
    }
}
