//! A million events of sources that restart, lose, repeat and reorder, under a tight budget.

use crate::index::event::{Batch, CacheEvent, EngineHash, Removed, Stored};
use crate::index::{Change, EngineSource, Group, Place, PrefixIndex, Tier};
use portolan_base::{BlockHash, Bytes};
use std::collections::BTreeMap;

const EVENTS: u64 = 1_000_000;
const SOURCES: usize = 8;
const BLOCK: u32 = 32;
/// A quarter of what the sources hold at once.
const BUDGET: Bytes = Bytes(160 << 10);
const NAMES_BUDGET: Bytes = Bytes(1 << 20);

/// A fixed sequence (xorshift).
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// One engine, as it truly is.
struct Engine {
    incarnation: u64,
    sequence: u64,
    /// Blocks held, by name: prompt and position.
    held: BTreeMap<u64, (u32, u32)>,
    /// What it said since its last reset, and since the listener last missed something.
    heard_all: bool,
}

fn tokens(prompt: u32, block: u32) -> Vec<u32> {
    (0..BLOCK)
        .map(|at| prompt * 10_000 + block * BLOCK + at)
        .collect()
}

fn name(prompt: u32, block: u32) -> u64 {
    u64::from(prompt) << 20 | u64::from(block)
}

impl Engine {
    fn next_event(&mut self, draws: &mut Draws) -> CacheEvent {
        let (prompt, block) = (draws.below(2_000) as u32, draws.below(12) as u32);
        match draws.below(100) {
            0 if draws.below(50) == 0 => {
                self.held.clear();
                CacheEvent::Cleared
            }
            0..40 if self.held.len() > 2_000 => {
                let gone = self.held.keys().nth(draws.below(200) as usize).copied().unwrap();
                self.held.remove(&gone);
                self.removal(gone)
            }
            40..43 => self.removal(draws.0),
            _ => self.storing(prompt, block),
        }
    }

    fn removal(&self, name: u64) -> CacheEvent {
        CacheEvent::Removed(Removed {
            hashes: vec![EngineHash(name)],
            group: Some(0),
            tier: Tier::Device,
        })
    }

    /// The first block of the prompt from `block` down that has its parent.
    fn storing(&mut self, prompt: u32, block: u32) -> CacheEvent {
        let has = |at: u32| self.held.contains_key(&name(prompt, at));
        let block = (0..=block).find(|at| !has(*at)).unwrap_or(0);
        let orphan = block > 0 && !has(block - 1);
        let block = if orphan { 0 } else { block };
        let again = has(block);
        let stored = Stored {
            parent: block
                .checked_sub(1)
                .map(|before| EngineHash(name(prompt, before))),
            hashes: vec![EngineHash(name(prompt, block))],
            tokens: tokens(prompt, block),
            block_tokens: BLOCK,
            extra: Vec::new(),
            lora: None,
            group: Group::ATTENTION,
            tier: Tier::Device,
        };
        if again {
            // It holds it already: says so of a block in another prompt's place instead.
            return self.removal(u64::MAX);
        }
        self.held.insert(name(prompt, block), (prompt, block));
        CacheEvent::Stored(stored)
    }
}

fn apply(index: &mut PrefixIndex, change: Change<'_>) {
    match change {
        Change::Stored {
            holder,
            parent,
            blocks,
        } => {
            index.stored(holder, parent, blocks);
        }
        Change::Removed { holder, blocks } => index.removed(holder, blocks),
        Change::Cleared(place) => index.clear(place),
    }
}

#[test]
fn a_million_events_of_unreliable_sources_leave_nothing_wrong_behind() {
    let mut draws = Draws(0x1234_5678_9abc_def1);
    let salts = |_: Option<&str>| Some(BlockHash(1));
    let mut index = PrefixIndex::new(BUDGET);
    let mut engines: Vec<Engine> = (0..SOURCES as u64)
        .map(|n| Engine {
            incarnation: n,
            sequence: 0,
            held: BTreeMap::new(),
            heard_all: true,
        })
        .collect();
    let mut sources: Vec<EngineSource> = (0..SOURCES as u32)
        .map(|n| EngineSource::new(Place::of(n), NAMES_BUDGET))
        .collect();
    for event in 0..EVENTS {
        let at = draws.below(SOURCES as u64) as usize;
        let (engine, source) = (&mut engines[at], &mut sources[at]);
        if draws.below(20_000) == 0 {
            *engine = Engine {
                incarnation: 1_000 + event,
                sequence: 0,
                held: BTreeMap::new(),
                heard_all: true,
            };
        }
        let happened = engine.next_event(&mut draws);
        engine.heard_all |= happened == CacheEvent::Cleared;
        let batch = Batch {
            incarnation: engine.incarnation,
            sequence: engine.sequence,
            events: vec![happened],
        };
        engine.sequence += 1;
        if draws.below(5_000) == 0 {
            engine.heard_all = false;
            continue;
        }
        let repeats = if draws.below(50) == 0 { 2 } else { 1 };
        for _ in 0..repeats {
            source.apply(&batch, &salts, &mut |change| apply(&mut index, change));
        }
        assert!(index.used() <= BUDGET, "after event {event}");
        assert!(source.used() <= NAMES_BUDGET);
        if event % 50_000 == 0 {
            super::check(&index);
        }
        if event % 100 == 0 {
            told_is_true(&index, &engines, draws.below(2_000) as u32);
        }
    }
    super::check(&index);
    let held: usize = engines.iter().map(|engine| engine.held.len()).sum();
    assert!(
        (1_000..held).contains(&index.blocks()),
        "{} of twice {held}",
        index.blocks()
    );
    let refused: Vec<_> = sources.iter().map(EngineSource::refused).collect();
    assert!(
        refused
            .iter()
            .all(|refused| refused.resets > 0 && refused.stale > 0 && refused.unknown_removals > 0)
    );
    assert!(
        refused
            .iter()
            .all(|refused| refused.malformed + refused.conflicting + refused.overflows == 0)
    );
}

/// Whatever the index says is held is held, unless its removal was lost on the way.
fn told_is_true(index: &PrefixIndex, engines: &[Engine], prompt: u32) {
    let all: Vec<u32> = (0..12).flat_map(|block| tokens(prompt, block)).collect();
    let chain: Vec<BlockHash> = BlockHash(1).extend(&all).collect();
    for found in index.matches(&chain) {
        let engine = &engines[found.place.instance as usize];
        let truly = (0..12)
            .take_while(|block| engine.held.contains_key(&name(prompt, *block)))
            .count() as u32;
        let most = truly * BLOCK / 16;
        assert!(
            found.blocks <= most || !engine.heard_all,
            "{found:?}, truly {most}"
        );
    }
}
