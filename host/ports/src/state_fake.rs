//! The [`PolicyState`] that lives as long as the process: for tests and tools.

use crate::state::{Entry, PolicyState, StateQuota, StateSpace, StateUsage, StateUsed};
use crate::state_values::{StateValue, StateValues};
use portolan_base::Moment;
use portolan_policy::Scope;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A [`PolicyState`] in memory.
#[derive(Debug, Default)]
pub struct MemoryState {
    quota: StateQuota,
    scopes: Mutex<HashMap<Scope, Arc<StateUsage>>>,
    spaces: Mutex<HashMap<StateSpace, Arc<Space>>>,
}

#[derive(Debug)]
struct Space {
    usage: Arc<StateUsage>,
    values: Mutex<StateValues>,
}

impl MemoryState {
    /// An empty store, with the same quota for every scope.
    pub fn new(quota: StateQuota) -> Self {
        Self {
            quota,
            ..Self::default()
        }
    }

    fn usage(&self, scope: &Scope) -> Arc<StateUsage> {
        Arc::clone(lock(&self.scopes).entry(scope.clone()).or_default())
    }

    fn space(&self, space: &StateSpace) -> Arc<Space> {
        let mut spaces = lock(&self.spaces);
        if let Some(known) = spaces.get(space) {
            return Arc::clone(known);
        }
        let new = Arc::new(Space {
            usage: self.usage(&space.scope),
            values: Mutex::default(),
        });
        spaces.insert(space.clone(), Arc::clone(&new));
        new
    }
}

/// Values are whole at every moment, so a panic elsewhere does not spoil them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PolicyState for MemoryState {
    fn get(&self, space: &StateSpace, key: &str, now: Moment) -> Option<u64> {
        let space = self.space(space);
        let value = lock(&space.values).get(key, now);
        value.map(|value| value.number)
    }

    fn set(&self, space: &StateSpace, entry: Entry<'_>, now: Moment) -> bool {
        let value = StateValue {
            number: entry.value,
            expires: entry.ttl.map(|ttl| now + ttl),
        };
        let space = self.space(space);
        lock(&space.values).put((&self.quota, &space.usage), (entry.key, value), now, drop)
    }

    fn add(&self, space: &StateSpace, key: &str, delta: i64, now: Moment) -> u64 {
        let space = self.space(space);
        let mut values = lock(&space.values);
        let sum = values.sum(key, delta, now);
        values.put((&self.quota, &space.usage), (key, sum), now, drop);
        sum.number
    }

    fn used(&self, scope: &Scope) -> StateUsed {
        self.usage(scope).used()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
            bytes: 2 * 16 + 4,
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
            bytes: 26,
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

    #[test]
    fn the_policies_of_a_scope_share_its_quota_and_no_other_scope_does() {
        let state = MemoryState::new(StateQuota {
            keys: 2,
            bytes: 100,
            key_bytes: 10,
        });
        let (a, b) = (space("a"), space("b"));
        let other = StateSpace {
            policy: "q".into(),
            ..a.clone()
        };
        assert!(state.set(&a, entry("k", 1), Moment(0)));
        assert!(state.set(&other, entry("k", 1), Moment(0)));
        assert!(!state.set(&other, entry("l", 1), Moment(0)));
        assert!(state.set(&b, entry("l", 1), Moment(0)));
        assert_eq!(state.used(&a.scope), StateUsed { keys: 2, bytes: 34 });
    }
}
