//! What one policy keeps, in memory, within its quota: the piece that every [`PolicyState`](crate::PolicyState) is made
//! of.

use crate::state::StateQuota;
use portolan_base::Moment;
use std::collections::HashMap;

/// A value and when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateValue {
    /// The value.
    pub number: u64,
    /// From when on it is gone; `None`: never.
    pub expires: Option<Moment>,
}

impl StateValue {
    /// Whether it is still there at `now`.
    pub fn is_alive(&self, now: Moment) -> bool {
        self.expires.is_none_or(|at| now < at)
    }
}

/// The keys of one policy.
#[derive(Debug, Default)]
pub struct StateValues {
    values: HashMap<String, StateValue>,
    bytes: usize,
}

impl StateValues {
    /// The value of a key at `now`.
    pub fn get(&self, key: &str, now: Moment) -> Option<StateValue> {
        self.values.get(key).copied().filter(|value| value.is_alive(now))
    }

    /// Stores a value if the quota allows it; expired keys make room first, and are given to `gone`. Says whether it was
    /// stored.
    pub fn put(
        &mut self,
        quota: &StateQuota,
        (key, value): (&str, StateValue),
        now: Moment,
        gone: impl FnMut(String),
    ) -> bool {
        if let Some(known) = self.values.get_mut(key) {
            *known = value;
            return true;
        }
        if key.len() > quota.key_bytes {
            return false;
        }
        if !self.fits(quota, key) {
            self.expire(now).into_iter().for_each(gone);
        }
        let fits = self.fits(quota, key);
        if fits {
            self.bytes += key.len();
            self.values.insert(key.to_owned(), value);
        }
        fits
    }

    /// The sum of a key's value and `delta`, with the key's time to live; not stored.
    pub fn sum(&self, key: &str, delta: i64, now: Moment) -> StateValue {
        let before = self.get(key, now);
        StateValue {
            number: before.map_or(0, |v| v.number).saturating_add_signed(delta),
            expires: before.and_then(|v| v.expires),
        }
    }

    /// Removes what ended and gives the keys.
    pub fn expire(&mut self, now: Moment) -> Vec<String> {
        let ended = self.values.extract_if(|_, value| !value.is_alive(now));
        let keys: Vec<String> = ended.map(|(key, _)| key).collect();
        self.bytes -= keys.iter().map(String::len).sum::<usize>();
        keys
    }

    /// A key as it is stored, ended or not.
    pub fn stored(&self, key: &str) -> Option<StateValue> {
        self.values.get(key).copied()
    }

    fn fits(&self, quota: &StateQuota, key: &str) -> bool {
        self.values.len() < quota.keys && self.bytes + key.len() <= quota.bytes
    }
}
