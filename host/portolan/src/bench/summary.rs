//! What telling other sites costs.

use super::index::{mix, rate};
use portolan_base::{BlockHash, Moment};
use portolan_kv::summary::{SummaryKey, SummaryMessage, SummaryReader, SummaryWriter};
use serde::Serialize;
use std::hint::black_box;

/// Blocks an instance tells of at most here: the figures do not depend on it.
const MOST: u64 = 1_000_000;
/// Changes in one message.
const CHANGES: u64 = 128;
/// Blocks of a prompt.
const PROMPT: u64 = 512;

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct SummaryFigures {
    /// Blocks in the snapshot.
    pub blocks: u64,
    /// Bytes of a snapshot for each block.
    pub snapshot_bytes_per_block: f64,
    /// Lookups of one block that is not held which say that it is.
    pub false_hit_rate: f64,
    /// Lookups of a prompt of 512 blocks, of which half are held, that say more is held.
    pub false_prefix_rate: f64,
    /// Bytes for each change, in messages of 128.
    pub bytes_per_change: f64,
    /// Prompts of 512 blocks, half of them held, looked up a second and core.
    pub lookups_per_s: f64,
}

/// Measures a summary of up to `blocks` blocks.
pub fn measure(blocks: u64) -> SummaryFigures {
    let blocks = blocks.clamp(PROMPT, MOST);
    let key = SummaryKey::derive(&[1; 32], "bench");
    let (mut writer, mut reader) = (SummaryWriter::new(key, 1), SummaryReader::new(key));
    let snapshot = writer.snapshot((0..blocks).map(block)).encode();
    writer.note((blocks..blocks + CHANGES).map(block), true);
    let changes = writer.changes().encode();
    if let Ok(message) = SummaryMessage::decode(&snapshot) {
        reader.hear(message, Moment(0));
    }
    let absent = |n: u64| [block(1 << 40 | n)];
    let tried = 1_000_000;
    let false_hits = (0..tried)
        .filter(|n| reader.prefix(&absent(*n), Moment(0)) > 0)
        .count();
    let prompts: Vec<Vec<BlockHash>> = (0..20_000u64).map(|n| prompt(n, blocks)).collect();
    let longer = |chain: &&Vec<BlockHash>| reader.prefix(chain, Moment(0)) as u64 > PROMPT / 2;
    SummaryFigures {
        blocks,
        snapshot_bytes_per_block: snapshot.len() as f64 / blocks as f64,
        false_hit_rate: false_hits as f64 / tried as f64,
        false_prefix_rate: prompts.iter().filter(longer).count() as f64 / prompts.len() as f64,
        bytes_per_change: changes.len() as f64 / CHANGES as f64,
        lookups_per_s: rate(|| {
            for chain in &prompts[..256] {
                black_box(reader.prefix(black_box(chain), Moment(0)));
            }
            256
        }),
    }
}

fn block(n: u64) -> BlockHash {
    BlockHash(mix(n))
}

/// A prompt whose first half is held.
fn prompt(n: u64, blocks: u64) -> Vec<BlockHash> {
    let first = mix(n) % (blocks - PROMPT / 2);
    let held = (first..first + PROMPT / 2).map(block);
    held.chain((0..PROMPT / 2).map(|at| block(1 << 41 | n << 16 | at)))
        .collect()
}
