//! The small store a policy may keep between calls.

use portolan_base::Moment;
use portolan_policy::Scope;
use std::time::Duration;

/// Whose store: one for each scope and policy name, so that it outlives a version and is never shared by tenants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StateSpace {
    /// Whose policy.
    pub scope: Scope,
    /// The policy's name.
    pub policy: String,
}

/// Keeps numbers for policies. Called from inside a policy call: implementations answer from memory and never block.
pub trait PolicyState: Send + Sync {
    /// The value of `key`, unless it expired.
    fn get(&self, space: &StateSpace, key: &str, now: Moment) -> Option<u64>;
    /// Sets `key`, for `ttl` where there is one. False when the quota is used up or the key is too long.
    fn set(&self, space: &StateSpace, entry: Entry<'_>, now: Moment) -> bool;
    /// Adds to `key` and gives the sum, which stops at 0 and at 2^64-1; a missing key counts as 0. An existing key
    /// keeps its time to live. With the quota used up, the sum is given but not kept.
    fn add(&self, space: &StateSpace, key: &str, delta: i64, now: Moment) -> u64;
}

/// What `set` stores.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Under which key.
    pub key: &'a str,
    /// Which value.
    pub value: u64,
    /// For how long; `None`: without end.
    pub ttl: Option<Duration>,
}

/// How much one policy may store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateQuota {
    /// Keys.
    pub keys: usize,
    /// Bytes of all keys together, values not counted.
    pub bytes: usize,
    /// Bytes of one key.
    pub key_bytes: usize,
}

impl Default for StateQuota {
    /// 4,096 keys of 128 bytes at most, 256 KiB altogether: counters for a few thousand sessions or routes.
    fn default() -> Self {
        Self {
            keys: 4096,
            bytes: 256 << 10,
            key_bytes: 128,
        }
    }
}
