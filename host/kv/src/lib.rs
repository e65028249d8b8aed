//! KV kept for reuse. [`PrefixPool`] is the cache of one instance: whole blocks, shared by prefix, under a hard
//! budget. [`PrefixIndex`] is what this host was told about everyone's caches. [`quant`] makes KV smaller. No I/O,
//! no clock, no async.
pub mod index;
pub mod pool;
pub mod quant;
pub mod summary;

pub use index::{Arrival, Holder, Lookup, Match, Place, PrefixIndex, SharedIndex, SourceState};
pub use pool::{BLOCK_OVERHEAD, BlockWindow, Held, HeldBlocks, Inserted, PoolBlock, PrefixPool};
