//! A small store of the policy's own: one per tenant and policy, kept across reloads, with a quota.
//!
//! A policy that uses it is replayed only with the recorded answers, so prefer to do without.

use crate::bindings::invalidation::portolan::policy::state as imported;
use std::time::Duration;

/// The number under `key`, if it is there and has not expired.
pub fn get(key: &str) -> Option<u64> {
    imported::get(key)
}

/// Puts a number under `key` for `ttl`, to the millisecond, at most 49 days. `false` when the quota is used up.
pub fn set(key: &str, value: u64, ttl: Duration) -> bool {
    imported::set(key, value, u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX))
}

/// Adds to the number under `key`, which counts as 0 when it is not there, and returns the sum.
pub fn add(key: &str, delta: i64) -> u64 {
    imported::add(key, delta)
}
