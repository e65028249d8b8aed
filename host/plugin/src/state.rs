//! The small store a policy may keep between calls.

use parking_lot::Mutex;
use portolan_base::Moment;
use portolan_policy::Scope;
use std::collections::HashMap;
use std::sync::Arc;
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
    /// For how long; `None`: until the process ends.
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

/// A [`PolicyState`] that lives as long as the process.
#[derive(Default)]
pub struct MemoryState {
    quota: StateQuota,
    spaces: Mutex<HashMap<StateSpace, Arc<Mutex<Space>>>>,
}

#[derive(Default)]
struct Space {
    values: HashMap<String, Value>,
    bytes: usize,
}

#[derive(Clone, Copy)]
struct Value {
    number: u64,
    expires: Option<Moment>,
}

impl Value {
    fn alive(&self, now: Moment) -> bool {
        self.expires.is_none_or(|at| now < at)
    }
}

impl MemoryState {
    /// An empty store.
    pub fn new(quota: StateQuota) -> Self {
        Self {
            quota,
            spaces: Mutex::default(),
        }
    }

    fn space(&self, space: &StateSpace) -> Arc<Mutex<Space>> {
        let mut spaces = self.spaces.lock();
        match spaces.get(space) {
            Some(known) => known.clone(),
            None => spaces.entry(space.clone()).or_default().clone(),
        }
    }
}

impl Space {
    /// Stores a value if the quota allows it; expired keys make room first.
    fn put(&mut self, quota: &StateQuota, key: &str, value: Value, now: Moment) -> bool {
        if let Some(known) = self.values.get_mut(key) {
            *known = value;
            return true;
        }
        if key.len() > quota.key_bytes {
            return false;
        }
        if !self.fits(quota, key) {
            self.values.retain(|_, v| v.alive(now));
            self.bytes = self.values.keys().map(String::len).sum();
        }
        let fits = self.fits(quota, key);
        if fits {
            self.bytes += key.len();
            self.values.insert(key.to_owned(), value);
        }
        fits
    }

    fn fits(&self, quota: &StateQuota, key: &str) -> bool {
        self.values.len() < quota.keys && self.bytes + key.len() <= quota.bytes
    }

    fn live(&self, key: &str, now: Moment) -> Option<Value> {
        self.values.get(key).copied().filter(|v| v.alive(now))
    }
}

impl PolicyState for MemoryState {
    fn get(&self, space: &StateSpace, key: &str, now: Moment) -> Option<u64> {
        self.space(space).lock().live(key, now).map(|v| v.number)
    }

    fn set(&self, space: &StateSpace, entry: Entry<'_>, now: Moment) -> bool {
        let value = Value {
            number: entry.value,
            expires: entry.ttl.map(|ttl| now + ttl),
        };
        self.space(space).lock().put(&self.quota, entry.key, value, now)
    }

    fn add(&self, space: &StateSpace, key: &str, delta: i64, now: Moment) -> u64 {
        let space = self.space(space);
        let mut space = space.lock();
        let before = space.live(key, now).unwrap_or(Value {
            number: 0,
            expires: None,
        });
        let number = before.number.saturating_add_signed(delta);
        space.put(&self.quota, key, Value { number, ..before }, now);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(tenant: &str) -> StateSpace {
        let scope = Scope::Tenant(portolan_base::TenantName::new(tenant).unwrap());
        StateSpace {
            scope,
            policy: "p".into(),
        }
    }

    fn entry(key: &str, value: u64) -> Entry<'_> {
        Entry {
            key,
            value,
            ttl: None,
        }
    }

    #[test]
    fn values_expire_and_stay_with_their_owner() {
        let state = MemoryState::default();
        let (a, b) = (space("a"), space("b"));
        let brief = Entry {
            ttl: Some(Duration::from_millis(5)),
            ..entry("k", 7)
        };
        assert!(state.set(&a, brief, Moment(0)));
        assert_eq!(state.get(&a, "k", Moment(4_999)), Some(7));
        assert_eq!(state.get(&a, "k", Moment(5_000)), None);
        assert_eq!(
            state.get(&b, "k", Moment(0)),
            None,
            "another tenant saw the value"
        );
    }

    #[test]
    fn sums_stop_at_both_ends() {
        let state = MemoryState::default();
        let a = space("a");
        assert_eq!(state.add(&a, "k", 3, Moment(0)), 3);
        assert_eq!(state.add(&a, "k", -5, Moment(0)), 0);
        assert!(state.set(&a, entry("k", u64::MAX), Moment(0)));
        assert_eq!(state.add(&a, "k", 1, Moment(0)), u64::MAX);
    }

    #[test]
    fn quotas_hold_just_inside_and_refuse_just_outside() {
        let state = MemoryState::new(StateQuota {
            keys: 2,
            bytes: 4,
            key_bytes: 3,
        });
        let a = space("a");
        assert!(state.set(&a, entry("abc", 1), Moment(0)));
        assert!(
            !state.set(&a, entry("abcd", 1), Moment(0)),
            "a key longer than allowed"
        );
        assert!(
            !state.set(&a, entry("de", 1), Moment(0)),
            "more bytes than allowed"
        );
        assert!(state.set(&a, entry("d", 1), Moment(0)));
        assert!(!state.set(&a, entry("", 1), Moment(0)), "more keys than allowed");
        assert!(
            state.set(&a, entry("d", 2), Moment(0)),
            "a known key may always change"
        );
        assert_eq!(state.add(&a, "new", 4, Moment(0)), 4);
        assert_eq!(
            state.get(&a, "new", Moment(0)),
            None,
            "kept although the quota is used up"
        );
    }

    #[test]
    fn expired_keys_make_room() {
        let state = MemoryState::new(StateQuota {
            keys: 1,
            bytes: 10,
            key_bytes: 10,
        });
        let a = space("a");
        assert!(state.set(
            &a,
            Entry {
                ttl: Some(Duration::from_millis(1)),
                ..entry("old", 1)
            },
            Moment(0)
        ));
        assert!(!state.set(&a, entry("new", 1), Moment(999)));
        assert!(state.set(&a, entry("new", 1), Moment(1_000)));
    }
}
