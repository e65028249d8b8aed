//! The state as calls see it, and what of it the disk does not have yet.

use super::record;
use parking_lot::{Mutex, RwLock};
use portolan_base::Moment;
use portolan_ports::{QuotaBook, Scope, StateQuota, StateSpace, StateUsage, StateValue, StateValues};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Everything that is kept.
pub(super) struct Memory {
    quotas: QuotaBook,
    scopes: Mutex<HashMap<Scope, Arc<StateUsage>>>,
    spaces: RwLock<HashMap<StateSpace, Arc<Space>>>,
}

/// What one policy keeps.
pub(super) struct Space {
    quota: StateQuota,
    usage: Arc<StateUsage>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    values: StateValues,
    /// Pages that are otherwise on disk.
    changed: BTreeSet<usize>,
    /// How often the pages were doubled that are on disk; `None`: what is there is to be replaced altogether.
    written: Option<u8>,
}

/// Pages to be written.
pub(super) struct Changes {
    pub(super) doublings: u8,
    /// These are all pages there are: whatever else the disk has of this policy goes.
    pub(super) are_all: bool,
    /// Each page's record; `None` where nothing is left in it.
    pub(super) pages: Vec<(usize, Option<Vec<u8>>)>,
}

/// Which pages are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    /// Those that changed.
    Changed,
    /// All of them.
    All,
}

impl Memory {
    pub(super) fn new(quotas: QuotaBook) -> Self {
        Self {
            quotas,
            scopes: Mutex::default(),
            spaces: RwLock::default(),
        }
    }

    /// How many policies keep something.
    pub(super) fn len(&self) -> usize {
        self.spaces.read().len()
    }

    /// What the policies of a scope keep altogether.
    pub(super) fn usage(&self, scope: &Scope) -> Arc<StateUsage> {
        Arc::clone(self.scopes.lock().entry(scope.clone()).or_default())
    }

    /// Bytes of all keys and values.
    pub(super) fn bytes(&self) -> u64 {
        self.scopes.lock().values().map(|usage| usage.used().bytes).sum()
    }

    pub(super) fn known(&self, space: &StateSpace) -> Option<Arc<Space>> {
        self.spaces.read().get(space).cloned()
    }

    pub(super) fn space(&self, space: &StateSpace) -> Arc<Space> {
        if let Some(known) = self.known(space) {
            return known;
        }
        let new = || {
            Arc::new(Space {
                quota: self.quotas.of(&space.scope).into(),
                usage: self.usage(&space.scope),
                held: Mutex::default(),
            })
        };
        Arc::clone(self.spaces.write().entry(space.clone()).or_insert_with(new))
    }

    pub(super) fn all(&self) -> Vec<(StateSpace, Arc<Space>)> {
        let spaces = self.spaces.read();
        spaces
            .iter()
            .map(|(name, space)| (name.clone(), Arc::clone(space)))
            .collect()
    }

    /// Removes ended keys of the scopes that have none left, so that one policy's make room for another's.
    pub(super) fn relieve(&self, now: Moment) {
        let short: BTreeSet<Scope> = {
            let scopes = self.scopes.lock();
            let short = scopes.iter().filter(|(_, usage)| usage.take_shortage());
            short.map(|(scope, _)| scope.clone()).collect()
        };
        if short.is_empty() {
            return;
        }
        for (name, space) in self.all() {
            if short.contains(&name.scope) {
                space.held.lock().expire(&space.usage, now);
            }
        }
    }
}

impl Space {
    pub(super) fn get(&self, key: &str, now: Moment) -> Option<u64> {
        let value = self.held.lock().values.get(key, now);
        value.map(|value| value.number)
    }

    pub(super) fn set(&self, key: &str, value: StateValue, now: Moment) -> bool {
        self.held.lock().put(self, (key, value), now)
    }

    pub(super) fn add(&self, key: &str, delta: i64, now: Moment) -> u64 {
        let mut held = self.held.lock();
        let sum = held.values.sum(key, delta, now);
        held.put(self, (key, sum), now);
        sum.number
    }

    /// Takes back what the disk has: the pages of as many doublings, with those of their values that live.
    pub(super) fn restore(&self, doublings: u8, values: Vec<(String, StateValue)>, now: Moment) {
        let mut held = self.held.lock();
        if held.written.is_none() {
            held.values = StateValues::with_doublings(doublings);
            held.written = Some(doublings);
        }
        for (key, value) in values {
            if value.is_alive(now) {
                held.values.restore(&self.usage, key, value);
            } else {
                let page = held.values.page_of(&key);
                held.changed.insert(page);
            }
        }
    }

    /// What has to be written, taken as written from now on. Each page is locked for itself, so that no call waits for
    /// more than a page.
    pub(super) fn take(&self, wanted: Pages, now: Moment) -> Option<Changes> {
        let mut wanted = wanted;
        loop {
            let (doublings, are_all, pages) = self.held.lock().take(&self.usage, wanted, now);
            if pages.is_empty() {
                return None;
            }
            let mut records = Vec::with_capacity(pages.len());
            let steady = pages.into_iter().all(|page| {
                let held = self.held.lock();
                let steady = held.values.doublings() == doublings;
                if steady {
                    records.push((page, record::encode(held.values.page(page))));
                }
                steady
            });
            if steady {
                return Some(Changes {
                    doublings,
                    are_all,
                    pages: records,
                });
            }
            // The pages were doubled meanwhile.
            wanted = Pages::All;
        }
    }

    /// What was taken was not written.
    pub(super) fn was_not_written(&self) {
        self.held.lock().written = None;
    }
}

impl Held {
    fn put(&mut self, space: &Space, (key, value): (&str, StateValue), now: Moment) -> bool {
        let mut gone = Vec::new();
        let shared = (&space.quota, &*space.usage);
        let kept = self.values.put(shared, (key, value), now, |key| gone.push(key));
        let changed = gone.iter().map(String::as_str).chain(kept.then_some(key));
        let pages = changed.map(|key| self.values.page_of(key));
        self.changed.extend(pages);
        kept
    }

    fn expire(&mut self, usage: &StateUsage, now: Moment) {
        let gone = self.values.expire(usage, now);
        let pages = gone.iter().map(|key| self.values.page_of(key));
        self.changed.extend(pages);
    }

    fn take(&mut self, usage: &StateUsage, wanted: Pages, now: Moment) -> (u8, bool, Vec<usize>) {
        let doublings = self.values.doublings();
        let are_all = wanted == Pages::All || self.written != Some(doublings);
        if are_all || !self.changed.is_empty() {
            self.expire(usage, now);
        }
        let changed = std::mem::take(&mut self.changed);
        if !are_all {
            return (doublings, are_all, changed.into_iter().collect());
        }
        self.written = Some(doublings);
        (doublings, are_all, (0..1 << doublings).collect())
    }
}
