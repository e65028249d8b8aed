//! The prefix index beside those of `dynamo-kv-router`, on one trace in one run: `cargo run --release [BLOCKS]`.
//!
//! A workspace of its own, so that the peer's dependencies are not the host's. Prompts of 512 blocks whose first half
//! is held, by one worker and then by 16; events of 64 blocks; rates by processor time, so that a worker thread's time
//! counts too. Every index is asked for all match lengths, and its answers are compared before it is timed.

use dynamo_kv_router::indexer::concurrent_radix_tree_compressed::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::positional::PositionalIndexer;
use dynamo_kv_router::indexer::{SyncIndexer, ThreadPoolIndexer};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheStoreData, KvCacheStoredBlockData,
    LocalBlockHash, RouterEvent,
};
use portolan_base::{BlockHash, Bytes};
use portolan_kv::{Holder, Lookup, SharedIndex};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

const HELD: usize = 256;
const EVENT: usize = 64;
const ASKED: u64 = 4096;
const HOLDERS: u64 = 16;

/// Names of one block: ours and the engine's are one number here, the peer's hash of its tokens alone another.
fn name(prompt: u64, at: usize) -> u64 {
    mix(prompt << 16 | at as u64)
}

fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

/// How much of a prompt each worker holds: the first all of the half, the others less and less.
fn holdings(holders: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..holders).map(move |holder| (holder, HELD - holder as usize * HELD / HOLDERS as usize))
}

trait Index {
    fn store(&self, worker: u64, prompt: u64, from: usize, to: usize);
    fn settle(&self);
    fn ask(&mut self, prompt: &Prompt) -> BTreeMap<u64, usize>;
    fn ask_only(&mut self, prompt: &Prompt);
}

struct Prompt {
    ours: Vec<BlockHash>,
    theirs: Vec<LocalBlockHash>,
}

impl Prompt {
    fn new(prompt: u64) -> Self {
        let other = |at| mix(1 << 62 | prompt << 16 | at as u64);
        let names: Vec<u64> = (0..2 * HELD).map(|at| if at < HELD { name(prompt, at) } else { other(at) }).collect();
        Self {
            ours: names.iter().copied().map(BlockHash).collect(),
            theirs: names.iter().map(|name| LocalBlockHash(mix(*name))).collect(),
        }
    }
}

struct Ours(SharedIndex, Lookup);

impl Index for Ours {
    fn store(&self, worker: u64, prompt: u64, from: usize, to: usize) {
        let blocks: Vec<_> = (from..to).map(|at| BlockHash(name(prompt, at))).collect();
        let parent = from.checked_sub(1).map(|at| BlockHash(name(prompt, at)));
        self.0.stored(Holder::instance(worker as u32), parent, &blocks);
    }

    fn settle(&self) {}

    fn ask(&mut self, prompt: &Prompt) -> BTreeMap<u64, usize> {
        self.ask_only(prompt);
        let found = self.1.matches().iter();
        found.map(|found| (u64::from(found.place.instance), found.blocks as usize)).collect()
    }

    fn ask_only(&mut self, prompt: &Prompt) {
        self.0.look_up(&prompt.ours, &mut self.1);
        black_box(self.1.matches());
    }
}

struct Theirs<T: SyncIndexer>(ThreadPoolIndexer<T>, tokio::runtime::Runtime);

impl<T: SyncIndexer> Theirs<T> {
    fn new(index: T) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let _inside = runtime.enter();
        let pool = ThreadPoolIndexer::new(index, 1, 16);
        drop(_inside);
        Self(pool, runtime)
    }
}

impl<T: SyncIndexer> Index for Theirs<T> {
    fn store(&self, worker: u64, prompt: u64, from: usize, to: usize) {
        let block = |at| KvCacheStoredBlockData {
            block_hash: ExternalSequenceBlockHash(name(prompt, at)),
            tokens_hash: LocalBlockHash(mix(name(prompt, at))),
            mm_extra_info: None,
        };
        let data = KvCacheEventData::Stored(KvCacheStoreData {
            parent_hash: from.checked_sub(1).map(|at| ExternalSequenceBlockHash(name(prompt, at))),
            start_position: Some(from as u32),
            blocks: (from..to).map(block).collect(),
        });
        let event = KvCacheEvent { event_id: 0, data, dp_rank: 0 };
        self.0.enqueue_event(RouterEvent::new(worker, event)).expect("the worker runs");
    }

    fn settle(&self) {
        self.1.block_on(self.0.flush_and_wait()).expect("the worker runs");
    }

    fn ask(&mut self, prompt: &Prompt) -> BTreeMap<u64, usize> {
        let found = self.0.backend().find_matches(&prompt.theirs, false).scores;
        found.into_iter().map(|(worker, blocks)| (worker.worker_id, blocks as usize)).collect()
    }

    fn ask_only(&mut self, prompt: &Prompt) {
        black_box(self.0.backend().find_matches(black_box(&prompt.theirs), false));
    }
}

fn main() {
    let blocks: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(2_000_000);
    let prompts = blocks / HELD as u64;
    println!("{} blocks; rates a second of processor time", prompts * HELD as u64);
    println!("{:<28}{:>8}{:>14}{:>14}{:>12}", "index", "holders", "blocks in", "lookups", "B/block");
    measure("portolan", prompts, || Ours(SharedIndex::new(Bytes(u64::MAX)), Lookup::default()));
    measure("dynamo, concurrent radix", prompts, || Theirs::new(ConcurrentRadixTreeCompressed::new()));
    measure("dynamo, positional", prompts, || Theirs::new(PositionalIndexer::new(32)));
}

fn measure<I: Index>(label: &str, prompts: u64, new: impl Fn() -> I) {
    let asked: Vec<Prompt> = (0..ASKED).map(|n| Prompt::new(mix(n) % prompts)).collect();
    for holders in [1, HOLDERS] {
        let mut index = new();
        let (before, started) = (resident(), worked());
        for prompt in 0..prompts {
            for (worker, length) in holdings(holders) {
                for from in (0..length).step_by(EVENT) {
                    index.store(worker, prompt, from, length.min(from + EVENT));
                }
            }
            if prompt % 512 == 0 {
                index.settle();
            }
        }
        index.settle();
        let stored: usize = holdings(holders).map(|(_, length)| length).sum();
        let stored = stored as f64 * prompts as f64;
        let fill = stored / (worked() - started).as_secs_f64();
        let bytes = (resident() - before) / stored;
        let expected: BTreeMap<u64, usize> = holdings(holders).collect();
        for prompt in asked.iter().take(256) {
            assert_eq!(index.ask(prompt), expected, "{label} answers as stored");
        }
        let lookups = lookups(&mut index, &asked);
        println!("{label:<28}{holders:>8}{fill:>14.0}{lookups:>14.0}{bytes:>12.1}");
    }
}

/// The median of five windows.
fn lookups<I: Index>(index: &mut I, asked: &[Prompt]) -> f64 {
    let mut rates = [0.0; 5];
    for rate in &mut rates {
        let (started, mut done) = (worked(), 0);
        while worked() - started < Duration::from_millis(400) {
            for prompt in &asked[done % asked.len()..][..256] {
                index.ask_only(prompt);
            }
            done += 256;
        }
        *rate = done as f64 / (worked() - started).as_secs_f64();
    }
    rates.sort_by(f64::total_cmp);
    rates[2]
}

fn worked() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()).unwrap_or(0.0) * 4096.0
}
