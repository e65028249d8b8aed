//! The [`PolicyState`] that lives as long as the process: for tests and tools.

use crate::state::{Entry, PolicyState, StateQuota, StateSpace};
use crate::state_values::{StateValue, StateValues};
use portolan_base::Moment;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A [`PolicyState`] in memory.
#[derive(Debug, Default)]
pub struct MemoryState {
    quota: StateQuota,
    spaces: Mutex<HashMap<StateSpace, Arc<Mutex<StateValues>>>>,
}

impl MemoryState {
    /// An empty store.
    pub fn new(quota: StateQuota) -> Self {
        Self {
            quota,
            spaces: Mutex::default(),
        }
    }

    fn space(&self, space: &StateSpace) -> Arc<Mutex<StateValues>> {
        let mut spaces = lock(&self.spaces);
        match spaces.get(space) {
            Some(known) => known.clone(),
            None => spaces.entry(space.clone()).or_default().clone(),
        }
    }
}

/// Values are whole at every moment, so a panic elsewhere does not spoil them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PolicyState for MemoryState {
    fn get(&self, space: &StateSpace, key: &str, now: Moment) -> Option<u64> {
        lock(&self.space(space)).get(key, now).map(|value| value.number)
    }

    fn set(&self, space: &StateSpace, entry: Entry<'_>, now: Moment) -> bool {
        let value = StateValue {
            number: entry.value,
            expires: entry.ttl.map(|ttl| now + ttl),
        };
        lock(&self.space(space)).put(&self.quota, (entry.key, value), now, drop)
    }

    fn add(&self, space: &StateSpace, key: &str, delta: i64, now: Moment) -> u64 {
        let space = self.space(space);
        let mut values = lock(&space);
        let sum = values.sum(key, delta, now);
        values.put(&self.quota, (key, sum), now, drop);
        sum.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_policy::Scope;
    use std::time::Duration;

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
