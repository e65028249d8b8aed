//! The trace that every index gets, and how its cost is read.

use dynamo_kv_router::protocols::LocalBlockHash;
use portolan_base::BlockHash;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Blocks of a prompt that are held; as many more are asked for.
pub const HELD: usize = 256;
/// Blocks of one event: a prefill step of 1,024 tokens.
pub const EVENT: usize = 64;
/// Workers in the second round.
pub const HOLDERS: u64 = 16;
/// Tokens of a block.
const TOKENS: usize = 16;

/// A prompt to ask for, in each index' names. Numbers below 2³².
pub struct Prompt {
    pub number: u64,
    /// By names that are given.
    pub given: Vec<BlockHash>,
    /// By names hashed from the tokens.
    pub hashed: Vec<BlockHash>,
    pub theirs: Vec<LocalBlockHash>,
}

impl Prompt {
    pub fn new(number: u64) -> Self {
        let other = number | 1 << 40;
        let blocks = || (0..2 * HELD).map(|at| (if at < HELD { number } else { other }, at));
        let tokens: Vec<u32> = blocks().flat_map(|(prompt, at)| tokens(prompt, at)).collect();
        Self {
            number,
            given: blocks().map(|(prompt, at)| BlockHash(name(prompt, at))).collect(),
            hashed: root().extend(&tokens).collect(),
            theirs: blocks().map(|(prompt, at)| local(prompt, at)).collect(),
        }
    }
}

/// Where chains begin.
pub fn root() -> BlockHash {
    BlockHash(1)
}

/// The tokens of a block.
pub fn tokens(prompt: u64, at: usize) -> impl Iterator<Item = u32> {
    let seed = name(prompt, at);
    (0..TOKENS as u64).map(move |n| mix(seed ^ n) as u32)
}

/// The engine's name of a block.
pub fn name(prompt: u64, at: usize) -> u64 {
    mix(prompt << 16 | at as u64)
}

/// The peer's hash of a block's tokens alone, which it makes before the index sees the event.
pub fn local(prompt: u64, at: usize) -> LocalBlockHash {
    LocalBlockHash(mix(name(prompt, at)))
}

/// How much of a prompt each worker holds: the first all of the half, the others less and less.
pub fn holdings(holders: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..holders).map(|holder| (holder, HELD - holder as usize * HELD / HOLDERS as usize))
}

/// A fixed, well-spread number (splitmix64).
pub fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

/// Processor time that this process has had.
pub fn worked() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Resident memory in bytes.
pub fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok());
    pages.unwrap_or(0.0) * 4096.0
}
