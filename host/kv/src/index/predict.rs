//! What caches will hold because requests were sent there: believed for a short time, until the cache says so itself.

use super::holder::{HolderId, Place, Predicted};
use super::{Lookup, PrefixIndex};
use portolan_base::{BlockHash, Moment};
use std::collections::VecDeque;

/// Blocks predicted at once. Each takes 8 bytes here; beyond this the oldest predictions end early.
const MOST_BLOCKS: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Predictions {
    waiting: VecDeque<Prediction>,
    blocks: usize,
}

#[derive(Debug)]
struct Prediction {
    ends: Moment,
    place: Place,
    blocks: Box<[BlockHash]>,
}

impl Predictions {
    pub(super) fn bytes(&self) -> usize {
        self.waiting.capacity() * size_of::<Prediction>() + self.blocks * size_of::<BlockHash>()
    }

    fn take_first(&mut self, ends: impl Fn(&Prediction) -> bool) -> Option<Prediction> {
        self.waiting.front().filter(|first| ends(first))?;
        let first = self.waiting.pop_front()?;
        self.blocks -= first.blocks.len();
        Some(first)
    }
}

impl PrefixIndex {
    /// `place` was sent a prompt with these blocks, and is taken to hold them until `ends`: the next request with the
    /// same prefix comes before the cache's own word. A later prediction must not end earlier.
    pub fn predict(&mut self, place: Place, chain: &[BlockHash], ends: Moment) {
        let mut lookup = Lookup::default();
        self.look_up(chain, &mut lookup);
        let held = lookup.matches().iter().find(|found| found.place == place);
        let held = held.map_or(0, |found| found.blocks as usize).min(chain.len());
        let (Some(number), Some((last, body))) = (self.places.enter(place), chain[held..].split_last())
        else {
            return;
        };
        let parent = held.checked_sub(1).map(|at| chain[at]);
        let whole = HolderId::predicted(number, Predicted::Whole);
        let stored = self.store(HolderId::predicted(number, Predicted::Attention), parent, body);
        if stored == body.len() {
            self.store(whole, body.last().copied().or(parent), &[*last]);
        }
        self.predictions.blocks += chain.len() - held;
        self.predictions.waiting.push_back(Prediction {
            ends,
            place,
            blocks: chain[held..].into(),
        });
        while self.predictions.blocks > MOST_BLOCKS && self.end_first(|_| true) {}
        self.keep_to_budget();
    }

    /// Ends the predictions whose time is over.
    pub fn expire(&mut self, now: Moment) {
        while self.end_first(|first| first.ends <= now) {}
        self.keep_to_budget();
    }

    /// Forgets what was predicted of a place.
    pub(super) fn drop_predictions(&mut self, place: Place) {
        let predictions = &mut self.predictions;
        predictions.waiting.retain(|prediction| prediction.place != place);
        predictions.blocks = predictions
            .waiting
            .iter()
            .map(|prediction| prediction.blocks.len())
            .sum();
    }

    fn end_first(&mut self, ends: impl Fn(&Prediction) -> bool) -> bool {
        let Some(first) = self.predictions.take_first(ends) else {
            return false;
        };
        if let (Some(number), Some((last, body))) =
            (self.places.number(first.place), first.blocks.split_last())
        {
            self.remove(HolderId::predicted(number, Predicted::Attention), body);
            self.remove(HolderId::predicted(number, Predicted::Whole), &[*last]);
        }
        true
    }
}
