//! How fast the prefix index is, and what it takes.
//!
//! The trace: prompts of 512 blocks (8k tokens) whose first half is indexed. Block hashes are made beforehand, and
//! hashing is measured apart. One thread, timed by the processor time it got: the figures are those of one core,
//! whatever else the machine does meanwhile.

use portolan_base::{BlockHash, Bytes, TenantKey};
use portolan_kv::index::event::{Batch, CacheEvent, EngineHash, Stored};
use portolan_kv::index::{EngineSource, Group, Holder, Lookup, Place, SharedIndex, Tier};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::hint::black_box;
use std::time::Duration;

/// Blocks of each prompt that are indexed.
pub(super) const HELD: usize = 256;
/// Blocks of each prompt.
const PROMPT: usize = 2 * HELD;
/// Blocks of one event: a prefill step of 1,024 tokens.
const EVENT: usize = 64;
/// Prompts asked for, over and over: 16 MiB of hashes, more than a core keeps near.
const ASKED: usize = 4096;
/// Holders of each prompt in the second round, out of so many instances.
const HOLDERS: usize = 16;
const INSTANCES: u64 = 256;
/// Time for each rate, in so many windows, of which the median counts.
const WINDOW: Duration = Duration::from_millis(400);
const WINDOWS: usize = 5;

/// What was measured. Rates are per core.
#[derive(Clone, Debug, Serialize)]
pub struct IndexFigures {
    /// Blocks indexed.
    pub blocks: u64,
    /// Lookups a second, one holder a prompt.
    pub lookups_per_s: f64,
    /// Blocks stored and removed a second at full size: prompts come whole and go block by block from their ends.
    pub events_per_s: f64,
    /// Resident memory for each block with one holder.
    pub bytes_per_block: f64,
    /// Blocks stored a second while filling.
    pub fill_blocks_per_s: f64,
    /// Lookups a second, 16 holders a prompt, each holding another part of it.
    pub lookups_16_holders_per_s: f64,
    /// Resident memory for each (block, holder) beyond the first holders.
    pub bytes_per_further_holder: f64,
    /// What the index itself counted at its fullest, for comparison with what was resident.
    pub counted_bytes: u64,
    /// Tokens hashed to block hashes a second.
    pub hashed_tokens_per_s: f64,
    /// Blocks of 16 tokens a second from an engine's events to the index, hashing and engine names included.
    pub engine_blocks_per_s: f64,
    /// What an engine's name of a block takes beside the index.
    pub bytes_per_engine_name: f64,
}

/// Measures an index of `blocks` blocks.
pub fn measure(blocks: u64) -> IndexFigures {
    let prompts = (blocks / HELD as u64).max(1);
    let index = SharedIndex::new(Bytes(u64::MAX));
    let asked = prompts_asked(prompts);
    let before = resident();
    let mut filling = Duration::ZERO;
    for prompt in 0..prompts {
        let blocks = held(prompt);
        let started = worked();
        store(&index, Holder::instance(0), &blocks);
        filling += worked() - started;
    }
    let filled = resident();
    let lookups_per_s = lookups(&index, &asked, 1);
    let events_per_s = churn(&index, &asked);
    let one_holder = resident();
    let further = add_holders(&index, prompts);
    let all_holders = resident();
    let (engine_blocks_per_s, bytes_per_engine_name) = engine_events();
    IndexFigures {
        blocks: index.blocks() as u64,
        lookups_per_s,
        events_per_s,
        bytes_per_block: (filled - before) / (prompts * HELD as u64) as f64,
        fill_blocks_per_s: (prompts * HELD as u64) as f64 / filling.as_secs_f64(),
        lookups_16_holders_per_s: lookups(&index, &asked, HOLDERS),
        bytes_per_further_holder: (all_holders - one_holder) / further as f64,
        counted_bytes: index.used().0,
        hashed_tokens_per_s: hashing(),
        engine_blocks_per_s,
        bytes_per_engine_name,
    }
}

/// The indexed blocks of a prompt.
pub(super) fn held(prompt: u64) -> Vec<BlockHash> {
    (0..HELD as u64)
        .map(|at| BlockHash(mix(prompt << 16 | at)))
        .collect()
}

/// Prompts to ask for, drawn from so many.
pub(super) fn prompts_asked(prompts: u64) -> Vec<Vec<BlockHash>> {
    (0..ASKED as u64).map(|n| asked(mix(n) % prompts)).collect()
}

/// A prompt's blocks: the indexed ones, then as many that nobody holds.
fn asked(prompt: u64) -> Vec<BlockHash> {
    let unknown = (0..(PROMPT - HELD) as u64).map(|at| BlockHash(mix(1 << 63 | prompt << 16 | at)));
    held(prompt).into_iter().chain(unknown).collect()
}

pub(super) fn store(index: &SharedIndex, holder: Holder, blocks: &[BlockHash]) {
    let mut parent = None;
    for event in blocks.chunks(EVENT) {
        index.stored(holder, parent, event);
        parent = event.last().copied();
    }
}

fn lookups(index: &SharedIndex, asked: &[Vec<BlockHash>], holders: usize) -> f64 {
    let mut lookup = Lookup::default();
    for chain in asked {
        index.look_up(chain, &mut lookup);
        let longest = lookup.matches().iter().map(|found| found.blocks).max();
        assert_eq!(
            (lookup.matches().len(), longest),
            (holders, Some(HELD as u32)),
            "the index answers as stored"
        );
    }
    lookup_rate(index, asked)
}

/// Lookups a second of this thread.
pub(super) fn lookup_rate(index: &SharedIndex, asked: &[Vec<BlockHash>]) -> f64 {
    let mut lookup = Lookup::default();
    rate(|| {
        for chain in asked {
            index.look_up(black_box(chain), &mut lookup);
            black_box(lookup.matches());
        }
        asked.len() as u64
    })
}

/// Prompts go, last block first and one block an event as engines evict, and others come; at the end all are back.
fn churn(index: &SharedIndex, asked: &[Vec<BlockHash>]) -> f64 {
    rate(|| asked.iter().map(|chain| churn_once(index, &chain[..HELD])).sum())
}

/// One prompt goes and comes again; returns the changes of blocks that makes.
pub(super) fn churn_once(index: &SharedIndex, blocks: &[BlockHash]) -> u64 {
    let holder = Holder::instance(0);
    for block in blocks.iter().rev() {
        index.removed(holder, std::slice::from_ref(block));
    }
    store(index, holder, blocks);
    2 * blocks.len() as u64
}

/// Gives each prompt 15 further holders, of differing lengths; returns how many (block, holder) pairs that made.
fn add_holders(index: &SharedIndex, prompts: u64) -> u64 {
    let mut pairs = 0;
    for prompt in 0..prompts {
        let blocks = held(prompt);
        for n in 1..HOLDERS as u64 {
            let draw = mix(prompt << 8 | n);
            // Every holder of a prompt in its own range of instances: they never meet.
            let range = (INSTANCES - 1) / (HOLDERS as u64 - 1);
            let instance = 1 + (n - 1) * range + draw % range;
            let length = 1 + (draw >> 32) as usize % HELD;
            store(index, Holder::instance(instance as u32), &blocks[..length]);
            pairs += length as u64;
        }
    }
    pairs
}

/// What engines' own events cost: their tokens hashed again, their names kept. Blocks a second, and bytes a name.
fn engine_events() -> (f64, f64) {
    let index = SharedIndex::new(Bytes(u64::MAX));
    let mut source = EngineSource::new(Place::of(0), Bytes(u64::MAX));
    let root = |_: Option<&str>| Some(BlockHash(1));
    let mut batches = (0u64..).map(|sequence| Batch {
        incarnation: 1,
        sequence,
        events: vec![CacheEvent::Stored(stored(sequence))],
    });
    let mut prompts = 0;
    let blocks_per_s = rate(|| {
        let told: Vec<Batch> = batches.by_ref().take(256).collect();
        for batch in &told {
            source.apply(batch, &root, &mut |change| index.apply(change));
        }
        prompts += 256;
        256 * EVENT as u64
    });
    (blocks_per_s, source.used().0 as f64 / (prompts * EVENT) as f64)
}

fn stored(prompt: u64) -> Stored {
    Stored {
        parent: None,
        hashes: (0..EVENT as u64)
            .map(|at| EngineHash(mix(prompt << 16 | at)))
            .collect(),
        tokens: (0..EVENT as u64 * 16)
            .map(|at| (prompt << 8 ^ at) as u32)
            .collect(),
        block_tokens: 16,
        extra: Vec::new(),
        lora: None,
        group: Group::ATTENTION,
        tier: Tier::Device,
    }
}

fn hashing() -> f64 {
    let key = TenantKey::derive(&[1; 32], "bench", "model", 1);
    let tokens: Vec<u32> = (0..PROMPT as u32 * 16)
        .map(|n| mix(u64::from(n)) as u32 % 150_000)
        .collect();
    rate(|| {
        for _ in 0..64 {
            black_box(BlockHash::chain(&key, black_box(&tokens)));
        }
        64 * tokens.len() as u64
    })
}

/// Things done a second, as each call of `work` says how many it did.
pub(super) fn rate(mut work: impl FnMut() -> u64) -> f64 {
    let mut rates = [0.0; WINDOWS];
    for rate in &mut rates {
        let (started, mut done) = (worked(), 0);
        while worked() - started < WINDOW {
            done += work();
        }
        *rate = done as f64 / (worked() - started).as_secs_f64();
    }
    rates.sort_by(f64::total_cmp);
    rates[WINDOWS / 2]
}

/// A fixed, well-spread number (splitmix64).
pub(super) fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

/// Processor time that this thread has had.
pub(super) fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Resident memory of this process in bytes; 0 where the system does not say.
fn resident() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').nth(1)?.parse::<f64>().ok());
    pages.unwrap_or(0.0) * 4096.0
}
