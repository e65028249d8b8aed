//! The instances of one version that are ready for a call, and the bound on all versions' together.

use crate::guest::Guest;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Room for ready instances, shared by all versions.
pub(crate) struct Shelf {
    most: usize,
    taken: AtomicUsize,
    /// Counts what was put on the shelf: tells which version was used longest ago.
    era: AtomicU64,
    stocks: Mutex<Vec<Weak<Stock>>>,
}

/// A place on the shelf.
struct Place(Arc<Shelf>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Ready {
    guest: Guest,
    _place: Place,
}

/// The ready instances of one version.
pub(crate) struct Stock {
    shelf: Arc<Shelf>,
    /// As many as are kept once it was asked.
    most: usize,
    used_in_era: AtomicU64,
    kept: Mutex<Kept>,
}

struct Kept {
    ready: VecDeque<Ready>,
    /// A version that nobody asked yet keeps one: many are loaded, and few of them are busy.
    wanted: usize,
}

impl Shelf {
    /// At most half of the pool is kept ready, so that calls always find room for one more instance.
    pub(crate) fn new(pool_instances: u32) -> Arc<Self> {
        Arc::new(Self {
            most: pool_instances as usize / 2,
            taken: AtomicUsize::new(0),
            era: AtomicU64::new(0),
            stocks: Mutex::default(),
        })
    }

    fn place(self: &Arc<Self>) -> Option<Place> {
        let before = self.taken.fetch_add(1, Ordering::Relaxed);
        let place = Place(self.clone());
        (before < self.most).then_some(place)
    }

    /// Empties the stock that was used longest ago, if that was before `era`.
    fn clear_stalest(&self, era: u64) -> Option<Vec<Ready>> {
        let mut stocks = self.stocks.lock();
        stocks.retain(|stock| stock.strong_count() > 0);
        let stalest = stocks
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|stock| stock.len() > 0)
            .map(|stock| (stock.used_in_era.load(Ordering::Relaxed), stock))
            .min_by_key(|(used, _)| *used)?;
        drop(stocks);
        let (used, stock) = stalest;
        (used < era).then(|| stock.clear())
    }
}

impl Stock {
    /// Room for `most` instances.
    pub(crate) fn new(shelf: &Arc<Shelf>, most: usize) -> Arc<Self> {
        let stock = Arc::new(Self {
            shelf: shelf.clone(),
            most,
            used_in_era: AtomicU64::new(shelf.era.load(Ordering::Relaxed)),
            kept: Mutex::new(Kept {
                ready: VecDeque::new(),
                wanted: most.min(1),
            }),
        });
        let mut stocks = shelf.stocks.lock();
        // Versions come and go: their places are not kept for them.
        stocks.retain(|known| known.strong_count() > 0);
        stocks.push(Arc::downgrade(&stock));
        drop(stocks);
        stock
    }

    pub(crate) fn len(&self) -> usize {
        self.kept.lock().ready.len()
    }

    /// The next instance, if one is ready.
    pub(crate) fn take(&self) -> Option<Guest> {
        let era = self.shelf.era.load(Ordering::Relaxed);
        self.used_in_era.store(era, Ordering::Relaxed);
        let mut kept = self.kept.lock();
        kept.wanted = self.most;
        kept.ready.pop_front().map(|ready| ready.guest)
    }

    /// Whether it is at most half full: early enough to refill, and refilling wakes a thread, so not for every call.
    pub(crate) fn is_low(&self) -> bool {
        let kept = self.kept.lock();
        kept.wanted > 0 && kept.ready.len() <= kept.wanted / 2
    }

    pub(crate) fn is_full(&self) -> bool {
        let kept = self.kept.lock();
        kept.ready.len() >= kept.wanted
    }

    /// Keeps a fresh instance for a later call, or gives it back when there is no room. A shelf that is full makes room
    /// at the cost of the version that was used longest ago.
    pub(crate) fn keep(&self, guest: Guest) -> Result<(), Guest> {
        let era = self.used_in_era.load(Ordering::Relaxed);
        self.shelf.era.fetch_add(1, Ordering::Relaxed);
        let place = self.shelf.place().or_else(|| {
            drop(self.shelf.clear_stalest(era)?);
            self.shelf.place()
        });
        let Some(place) = place else { return Err(guest) };
        let mut kept = self.kept.lock();
        if kept.ready.len() >= kept.wanted {
            return Err(guest);
        }
        kept.ready.push_back(Ready { guest, _place: place });
        Ok(())
    }

    /// Puts an instance that answered in front, so that the same few answer and the others stay fresh. Gives back the
    /// one that is too many: others may have been made while this one was out.
    pub(crate) fn keep_warm(&self, guest: Guest) -> Option<Guest> {
        let Some(place) = self.shelf.place() else {
            return Some(guest);
        };
        let mut kept = self.kept.lock();
        kept.ready.push_front(Ready { guest, _place: place });
        if kept.ready.len() > self.most.max(1) {
            return kept.ready.pop_back().map(|ready| ready.guest);
        }
        None
    }

    fn clear(&self) -> Vec<Ready> {
        let mut kept = self.kept.lock();
        kept.wanted = self.most.min(1);
        kept.ready.drain(..).collect()
    }

    /// All of them.
    pub(crate) fn empty(&self) -> impl Iterator<Item = Guest> {
        self.clear().into_iter().map(|ready| ready.guest)
    }
}
