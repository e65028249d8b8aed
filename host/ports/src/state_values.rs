//! What one policy keeps, in memory, within the quota of its scope: the piece that every
//! [`PolicyState`](crate::PolicyState) is made of.

use crate::state::{StateQuota, StateUsage};
use portolan_base::Moment;
use std::collections::HashMap;

/// Bytes of a value beside its key: the number and when it ends.
const VALUE_BYTES: u64 = 16;

/// Keys a page holds on average when the pages are doubled. With keys of the longest kind a page then has some 9 kB: small
/// enough to write for the sake of one key, and large enough that a page's own cost on disk does not count.
const PAGE_KEYS: usize = 64;

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

/// The keys of one policy, in pages: a key's page follows from the key alone, and the number of pages, a power of two,
/// grows with the keys. Whoever writes values down writes whole pages.
#[derive(Debug)]
pub struct StateValues {
    pages: Vec<HashMap<String, StateValue>>,
    keys: usize,
}

impl Default for StateValues {
    fn default() -> Self {
        Self::with_doublings(0)
    }
}

impl StateValues {
    /// No values, in as many pages as `doublings` of one page give.
    pub fn with_doublings(doublings: u8) -> Self {
        let pages = 1 << u32::from(doublings).min(usize::BITS - 2);
        Self {
            pages: std::iter::repeat_with(HashMap::new).take(pages).collect(),
            keys: 0,
        }
    }

    /// How often one page was doubled to these.
    pub fn doublings(&self) -> u8 {
        u8::try_from(self.pages.len().trailing_zeros()).unwrap_or(u8::MAX)
    }

    /// The page of a key.
    pub fn page_of(&self, key: &str) -> usize {
        // FNV-1a: the same in every process, as the pages on disk must be.
        let hash = key.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        });
        // Its low bits alone mix badly.
        (hash ^ (hash >> 32)) as usize & (self.pages.len() - 1)
    }

    /// One page as it is, ended values too.
    pub fn page(&self, page: usize) -> impl Iterator<Item = (&str, StateValue)> {
        let values = self.pages.get(page).into_iter().flatten();
        values.map(|(key, value)| (key.as_str(), *value))
    }

    /// The value of a key at `now`.
    pub fn get(&self, key: &str, now: Moment) -> Option<StateValue> {
        self.stored(key).filter(|value| value.is_alive(now))
    }

    /// A key as it is stored, ended or not.
    pub fn stored(&self, key: &str) -> Option<StateValue> {
        self.pages[self.page_of(key)].get(key).copied()
    }

    /// Stores a value if the quota of its scope allows it; ended keys of this policy make room first, and are given to
    /// `gone`. Says whether it was stored.
    pub fn put(
        &mut self,
        (quota, usage): (&StateQuota, &StateUsage),
        (key, value): (&str, StateValue),
        now: Moment,
        gone: impl FnMut(String),
    ) -> bool {
        let page = self.page_of(key);
        if let Some(known) = self.pages[page].get_mut(key) {
            *known = value;
            return true;
        }
        if key.len() > quota.key_bytes {
            return false;
        }
        if !usage.take(quota, cost(key)) {
            self.expire(usage, now).into_iter().for_each(gone);
            if !usage.take(quota, cost(key)) {
                usage.ran_out();
                return false;
            }
        }
        self.insert(key.to_owned(), value);
        true
    }

    /// The sum of a key's value and `delta`, with the key's time to live; not stored.
    pub fn sum(&self, key: &str, delta: i64, now: Moment) -> StateValue {
        let before = self.get(key, now);
        StateValue {
            number: before.map_or(0, |v| v.number).saturating_add_signed(delta),
            expires: before.and_then(|v| v.expires),
        }
    }

    /// Takes a value back as it was stored, whatever the quota says by now.
    pub fn restore(&mut self, usage: &StateUsage, key: String, value: StateValue) {
        usage.add(cost(&key));
        self.insert(key, value);
    }

    /// Removes what ended and gives the keys.
    pub fn expire(&mut self, usage: &StateUsage, now: Moment) -> Vec<String> {
        let ended = |page: &mut HashMap<String, StateValue>| {
            let ended = page.extract_if(|_, value| !value.is_alive(now));
            ended.map(|(key, _)| key).collect::<Vec<_>>()
        };
        let keys: Vec<String> = self.pages.iter_mut().flat_map(ended).collect();
        self.keys -= keys.len();
        for key in &keys {
            usage.give_back(cost(key));
        }
        keys
    }

    /// A key that is not there yet.
    fn insert(&mut self, key: String, value: StateValue) {
        if self.keys >= PAGE_KEYS * self.pages.len() {
            self.double();
        }
        let page = self.page_of(&key);
        self.pages[page].insert(key, value);
        self.keys += 1;
    }

    fn double(&mut self) {
        let mut doubled = Self::with_doublings(self.doublings() + 1);
        for (key, value) in self.pages.drain(..).flatten() {
            let page = doubled.page_of(&key);
            doubled.pages[page].insert(key, value);
        }
        self.pages = doubled.pages;
    }
}

fn cost(key: &str) -> u64 {
    key.len() as u64 + VALUE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_in_its_page_however_often_the_pages_were_doubled() {
        let (mut values, usage) = (StateValues::default(), StateUsage::default());
        let quota = StateQuota {
            keys: 5000,
            bytes: u64::MAX,
            key_bytes: 128,
        };
        for i in 0..5000_u64 {
            let value = StateValue {
                number: i,
                expires: (i % 2 == 1).then_some(Moment(9)),
            };
            assert!(values.put((&quota, &usage), (&format!("key-{i}"), value), Moment(0), drop));
        }
        assert_eq!(values.doublings(), 7, "5,000 keys, at most 64 a page");
        let mut seen = 0;
        for page in 0..1 << values.doublings() {
            let in_page: Vec<_> = values.page(page).collect();
            assert!(in_page.len() < 2 * PAGE_KEYS, "page {page} has {}", in_page.len());
            seen += in_page.len();
            assert!(in_page.iter().all(|(key, _)| values.page_of(key) == page));
        }
        assert_eq!((seen, usage.used().keys), (5000, 5000));
        assert_eq!(values.expire(&usage, Moment(9)).len(), 2500);
        assert_eq!(usage.used().keys, 2500);
        assert_eq!(values.get("key-4998", Moment(9)).map(|v| v.number), Some(4998));
    }
}
