//! KV kept for reuse. [`PrefixPool`] is a cache of whole blocks, shared by prefix, under a hard budget; [`PrefixIndex`]
//! is what this host was told about everyone's caches; [`quant`] makes KV smaller. No I/O, no clock, no async.
mod block;
pub mod index;
pub mod pool;
pub mod quant;
pub mod summary;
pub mod tier;
mod wipe;

pub use block::{BLOCK_OVERHEAD, BlockKv, Kept, PoolBlock};
pub use index::{Arrival, Holder, Lookup, Match, Place, PrefixIndex, SharedIndex, SourceState};
pub use pool::{
    BlockWindow, Counts, Held, HeldBlocks, Inserted, Parents, PoolConfig, PrefixPool, Reuse, Seen, Selector,
    Shares, TenantUse,
};
pub use wipe::wiped;
