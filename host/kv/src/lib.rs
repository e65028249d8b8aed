//! KV kept for reuse. [`PrefixPool`] is the cache of one instance: whole blocks, shared by prefix, under a hard
//! budget. No I/O, no clock, no async.
mod pool;

pub use pool::{BLOCK_OVERHEAD, Held, Inserted, PoolBlock, PrefixPool};
