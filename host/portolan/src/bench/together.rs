//! Whether lookups on several cores hold each other up, among themselves and beside a stream of events.
//!
//! Rates are by each thread's processor time, summed: what cores that nobody else uses would do. Time asleep before a
//! lock is not seen; spinning, falling asleep and waking up, and shared cache lines are, where threads really run at once.

use super::index::{self, HELD};
use portolan_base::{BlockHash, Bytes};
use portolan_kv::index::{Holder, SharedIndex};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Blocks at most: more than any cache holds, and filled in a second.
const MOST: u64 = 2_000_000;

/// Blocks a second in a site's stream of events: what a hundred instances tell that each compute 16,000 tokens a second.
pub const STREAM: u32 = 100_000;

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct TogetherFigures {
    /// Threads that looked up: one a core.
    pub threads: usize,
    /// Lookups a second of one of them alone.
    pub alone_per_s: f64,
    /// Lookups a second of all of them at once.
    pub all_per_s: f64,
    /// The same while one more thread stores and removes [`STREAM`] blocks a second.
    pub beside_stream_per_s: f64,
    /// The same while it does so without pause.
    pub beside_flood_per_s: f64,
    /// Blocks stored and removed a second in that flood.
    pub flood_per_s: f64,
}

/// Measures an index of up to `blocks` blocks.
pub fn measure(blocks: u64) -> TogetherFigures {
    let prompts = (blocks.min(MOST) / HELD as u64).max(1);
    let index = SharedIndex::new(Bytes(u64::MAX));
    for prompt in 0..prompts {
        index::store(&index, Holder::instance(0), &index::held(prompt));
    }
    let asked = index::prompts_asked(prompts);
    let threads = std::thread::available_parallelism().map_or(1, Into::into);
    let (alone_per_s, _) = look_up(&index, &asked, 1, Events::None);
    let (all_per_s, _) = look_up(&index, &asked, threads, Events::None);
    let (beside_stream_per_s, _) = look_up(&index, &asked, threads, Events::Stream);
    let (beside_flood_per_s, flood_per_s) = look_up(&index, &asked, threads, Events::Flood);
    TogetherFigures {
        threads,
        alone_per_s,
        all_per_s,
        beside_stream_per_s,
        beside_flood_per_s,
        flood_per_s,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Events {
    None,
    Stream,
    Flood,
}

/// Lookups a second of so many threads, and events a second beside them.
fn look_up(index: &SharedIndex, asked: &[Vec<BlockHash>], threads: usize, events: Events) -> (f64, f64) {
    let over = AtomicBool::new(events == Events::None);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (begun, started) = (Instant::now(), index::worked());
            let (mut done, mut prompts) = (0u64, 0);
            while !over.load(Ordering::Relaxed) {
                done += index::churn_once(index, &asked[prompts % asked.len()][..HELD]);
                prompts += 1;
                if events == Events::Stream {
                    let due = Duration::from_secs_f64(done as f64 / f64::from(STREAM));
                    std::thread::sleep(due.saturating_sub(begun.elapsed()));
                }
            }
            done as f64 / (index::worked() - started).as_secs_f64().max(1e-9)
        });
        let readers: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| index::lookup_rate(index, asked)))
            .collect();
        let lookups = readers.into_iter().filter_map(|reader| reader.join().ok()).sum();
        over.store(true, Ordering::Relaxed);
        (lookups, writer.join().unwrap_or(0.0))
    })
}
