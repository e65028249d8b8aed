//! How an instance keeps KV, and what its cache shares with others.

use portolan_base::{Clock, Moment};
use portolan_kv::Shares;
use portolan_kv::tier::Tiers;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How an instance keeps KV for reuse.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// What each tenant is promised of the pool; none: the whole, and the first that is due goes, whosever it is.
    pub shares: Option<Shares>,
    /// A hybrid model's state is kept after every so many blocks, and after the last whole block of each prompt.
    pub snapshot_blocks: NonZeroU32,
    /// How long a block stays when nobody uses it; none: until its room is needed.
    pub time_to_live: Option<Duration>,
}

/// Every 512 tokens: a state is as large as the KV of some 800 tokens, so that more states crowd out the KV they serve,
/// and fewer find less (`docs/kv-pool.md`).
const SNAPSHOT_BLOCKS: NonZeroU32 = NonZeroU32::new(8).unwrap();

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            shares: None,
            snapshot_blocks: SNAPSHOT_BLOCKS,
            time_to_live: None,
        }
    }
}

/// What an instance's cache shares with others of its site.
#[derive(Clone)]
pub struct Surroundings {
    /// Where blocks go that the instance has no room for.
    pub tiers: Arc<Tiers>,
    /// By which their uses are counted: the same for all who share the tiers.
    pub clock: Arc<dyn Clock>,
}

impl Default for Surroundings {
    /// No tiers, and time counted from now.
    fn default() -> Self {
        Self {
            tiers: Arc::default(),
            clock: Arc::new(SinceStart(Instant::now())),
        }
    }
}

/// Time since an instance began.
struct SinceStart(Instant);

impl Clock for SinceStart {
    fn now(&self) -> Moment {
        Moment::default() + self.0.elapsed()
    }
}
