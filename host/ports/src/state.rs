//! The small store a policy may keep between calls.

use crate::quota::Quotas;
use portolan_base::Moment;
use portolan_policy::Scope;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    /// What the policies of a scope keep altogether, keys that ended and were not removed yet included.
    fn used(&self, scope: &Scope) -> StateUsed;
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

/// How much the policies of one scope may store altogether.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateQuota {
    /// Keys.
    pub keys: u64,
    /// Bytes of all keys and their values.
    pub bytes: u64,
    /// Bytes of one key.
    pub key_bytes: usize,
}

/// Longest key in bytes: a hash and a word before it.
const KEY_BYTES: usize = 128;

impl Default for StateQuota {
    fn default() -> Self {
        Self::from(Quotas::default())
    }
}

impl From<Quotas> for StateQuota {
    fn from(quotas: Quotas) -> Self {
        Self {
            keys: quotas.state_keys,
            bytes: quotas.state_bytes,
            key_bytes: KEY_BYTES,
        }
    }
}

/// How much is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StateUsed {
    /// Keys.
    pub keys: u64,
    /// Bytes of all keys and their values.
    pub bytes: u64,
}

/// What the policies of one scope store at present. They share it, so that more policies do not mean more state.
#[derive(Debug, Default)]
pub struct StateUsage {
    keys: AtomicU64,
    bytes: AtomicU64,
    short: AtomicBool,
}

impl StateUsage {
    /// Takes a key and so many bytes, unless the quota is used up.
    pub(crate) fn take(&self, quota: &StateQuota, bytes: u64) -> bool {
        let within =
            |most: u64, more: u64| move |used: u64| used.checked_add(more).filter(|sum| *sum <= most);
        let took = |counter: &AtomicU64, most, more| {
            counter
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within(most, more))
                .is_ok()
        };
        if !took(&self.keys, quota.keys, 1) {
            return false;
        }
        let fits = took(&self.bytes, quota.bytes, bytes);
        if !fits {
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
        fits
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.keys.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn give_back(&self, bytes: u64) {
        self.keys.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn ran_out(&self) {
        self.short.store(true, Ordering::Relaxed);
    }

    /// Whether a key was refused since this was last asked: ended keys of the scope's other policies should make room.
    pub fn take_shortage(&self) -> bool {
        self.short.swap(false, Ordering::Relaxed)
    }

    /// How much it is.
    pub fn used(&self) -> StateUsed {
        StateUsed {
            keys: self.keys.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}
