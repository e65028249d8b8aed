//! The prefix index beside those of `dynamo-kv-router`, on one trace in one run: `make bench-index-peers BLOCKS=N`.
//!
//! Prompts of 512 blocks whose first half is held, by one worker and then by 16, each less of it. Events store 64
//! blocks or remove one. Rates are by processor time of the whole process, so that a worker thread's time counts too;
//! lookups are asked for every worker's match length, and each index' answers are compared with what was stored before
//! it is timed. Hashes of lookups are made beforehand for all.

mod ours;
mod theirs;
mod trace;

use dynamo_kv_router::indexer::concurrent_radix_tree_compressed::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::positional::PositionalIndexer;
use ours::{Named, Ours};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;
use theirs::Theirs;
use trace::{EVENT, HELD, HOLDERS, Prompt, holdings, mix, resident, worked};

/// Prompts asked for, over and over: more hashes than a core keeps near.
const ASKED: u64 = 4096;
/// Time for each rate, in so many windows, of which the median counts.
const WINDOW: Duration = Duration::from_millis(400);
const WINDOWS: usize = 5;

/// One index of the comparison. `at` counts blocks within a prompt.
trait Index {
    /// A worker stores these blocks of a prompt, in one event.
    fn store(&mut self, worker: u64, prompt: u64, at: std::ops::Range<usize>);
    /// A worker drops one block.
    fn remove(&mut self, worker: u64, prompt: u64, at: usize);
    /// Everything said is done.
    fn settle(&self);
    /// How many blocks each worker holds from the prompt's beginning.
    fn ask(&mut self, prompt: &Prompt) -> BTreeMap<u64, usize>;
    /// The same, for its time alone.
    fn ask_only(&mut self, prompt: &Prompt);
}

fn main() {
    let blocks: u64 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(2_000_000);
    let prompts = (blocks / HELD as u64).max(1);
    println!(
        "{} blocks, one worker and 16; rates a second of processor time",
        prompts * HELD as u64
    );
    println!(
        "{:<28}{:>8}{:>14}{:>14}{:>14}{:>10}",
        "index", "holders", "lookups", "stored", "changed", "B/block"
    );
    measure("portolan", prompts, Ours::new);
    measure("portolan, engine names", prompts, Named::new);
    measure("dynamo, concurrent radix", prompts, || {
        Theirs::new(ConcurrentRadixTreeCompressed::new())
    });
    measure("dynamo, positional", prompts, || {
        Theirs::new(PositionalIndexer::new(32))
    });
}

fn measure<I: Index>(label: &str, prompts: u64, new: impl Fn() -> I) {
    let asked: Vec<Prompt> = (0..ASKED).map(|n| Prompt::new(mix(n) % prompts)).collect();
    for holders in [1, HOLDERS] {
        let mut index = new();
        let before = resident();
        let stored_per_s = fill(&mut index, prompts, holders);
        let pairs = prompts as f64 * holdings(holders).map(|(_, length)| length).sum::<usize>() as f64;
        let bytes = (resident() - before) / pairs;
        let expected: BTreeMap<u64, usize> = holdings(holders).collect();
        for prompt in asked.iter().take(256) {
            assert_eq!(index.ask(prompt), expected, "{label} answers as stored");
        }
        let lookups_per_s = rate(|| {
            asked.iter().for_each(|prompt| index.ask_only(prompt));
            ASKED
        });
        let changed_per_s = churn(&mut index, &asked);
        println!(
            "{label:<28}{holders:>8}{lookups_per_s:>14.0}{stored_per_s:>14.0}{changed_per_s:>14.0}{bytes:>10.1}"
        );
        let report = json!({
            "index": label, "holders": holders, "lookups_per_s": lookups_per_s, "stored_per_s": stored_per_s,
            "events_per_s": changed_per_s, "bytes_per_block": bytes,
        });
        eprintln!("{report}");
    }
}

/// Blocks stored a second, from none to all.
fn fill(index: &mut impl Index, prompts: u64, holders: u64) -> f64 {
    let (started, mut stored) = (worked(), 0);
    for prompt in 0..prompts {
        for (worker, length) in holdings(holders) {
            for from in (0..length).step_by(EVENT) {
                index.store(worker, prompt, from..length.min(from + EVENT));
            }
            stored += length;
        }
        if prompt % 512 == 0 {
            index.settle();
        }
    }
    index.settle();
    stored as f64 / (worked() - started).as_secs_f64()
}

/// Blocks removed and stored a second at full size: one worker's prompts go, last block first and one block an event as
/// engines evict, and come again.
fn churn(index: &mut impl Index, asked: &[Prompt]) -> f64 {
    let mut prompts = asked.iter().cycle();
    rate(|| {
        for prompt in prompts.by_ref().take(16) {
            for at in (0..HELD).rev() {
                index.remove(0, prompt.number, at);
            }
            for from in (0..HELD).step_by(EVENT) {
                index.store(0, prompt.number, from..from + EVENT);
            }
        }
        index.settle();
        16 * 2 * HELD as u64
    })
}

/// The median of several windows.
fn rate(mut work: impl FnMut() -> u64) -> f64 {
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
