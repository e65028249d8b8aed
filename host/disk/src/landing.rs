//! What broken transfers brought, until another one brings the rest: a file for each set.
//!
//! A part of the disk tier, with a budget and a time to live of its own, in a folder beside the blocks. Orders to forget
//! reach it as they reach blocks. What it holds is advice: whoever sends KV says, chunk by chunk, whether it is still
//! what it would send.

mod file;
mod port;
mod set;
mod store;
#[cfg(test)]
mod tests;

pub use port::DiskLanding;
pub use set::OpenSet;
pub(crate) use store::Landing;

use portolan_base::Bytes;
use std::time::Duration;

/// What may land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LandingConfig {
    /// Most bytes, of all sets together; none land at 0.
    pub budget: Bytes,
    /// How long a set stays after it was last used.
    pub time_to_live: Duration,
}

impl LandingConfig {
    /// Nothing lands.
    pub const NONE: Self = Self {
        budget: Bytes(0),
        time_to_live: Duration::ZERO,
    };
}
