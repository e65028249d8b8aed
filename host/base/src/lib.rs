//! The words every crate shares: ids, units, block hashes, KV manifests, and the two traits (clock, randomness) by
//! which the outside world reaches code that must be replayable. No I/O, no system clock, no OS randomness.
#![cfg_attr(not(test), no_std)]
extern crate alloc;

pub mod block;
pub mod cache;
pub mod curve;
pub mod id;
pub mod kv;
pub mod pattern;
pub mod provenance;
pub mod role;
pub mod sequence;
pub mod time;
pub mod unit;

pub use block::{BlockHash, BlockId, INDEX_BLOCK_TOKENS, TenantKey};
pub use cache::{CachePart, Group, GroupKind, Tier};
pub use curve::{CurveMeter, PrefillCurve};
pub use id::{InstanceName, ModelName, OperatorName, RequestId, SiteName, TenantName, TransferId};
pub use pattern::{PatternId, PatternKey, PatternKind};
pub use provenance::{Dependency, Provenance, Scope};
pub use role::{Duty, Role};
pub use sequence::Sequence;
pub use time::{Clock, Moment, Random};
pub use unit::{BitsPerSecond, Bytes, Permille, Tokens};
