//! What is wrong at the moment, and how wrong it is at most.

use crate::chaos::dice::Dice;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::time::Duration;

/// Between whom something is cut, one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cut {
    /// What one site says does not reach the other.
    Bus(usize, usize),
    /// What a site appends does not reach the stream.
    ToStream(usize),
    /// What the stream holds does not reach a site.
    FromStream(usize),
    /// Orders of one site do not reach the other.
    Order(usize, usize),
    /// KV of one site does not reach the other.
    Kv(usize, usize),
    /// A site takes what the stream holds more slowly than it comes.
    Slow(usize),
}

/// Shared by everything that carries something.
pub(crate) struct Weather {
    pub(crate) dice: Dice,
    cuts: Mutex<BTreeSet<Cut>>,
    /// In a hundred messages, how many are lost and how many come twice.
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    /// A message takes at most so many milliseconds.
    pub(crate) delay_ms: u64,
    /// In a hundred transfers, how many break off.
    pub(crate) broken: u64,
}

impl Weather {
    /// From calm to foul.
    pub(crate) fn draw(seed: u64) -> Self {
        let dice = Dice::new(seed);
        let foul = dice.roll(4);
        Self {
            lost: foul * dice.roll(15),
            doubled: foul * dice.roll(10),
            delay_ms: 1 + foul * dice.roll(40),
            broken: foul * dice.roll(12),
            cuts: Mutex::default(),
            dice,
        }
    }

    pub(crate) fn is(&self, cut: Cut) -> bool {
        self.cuts.lock().contains(&cut)
    }

    pub(crate) fn set(&self, cut: Cut) {
        self.cuts.lock().insert(cut);
    }

    pub(crate) fn mend(&self, cut: Cut) {
        self.cuts.lock().remove(&cut);
    }

    pub(crate) fn mend_all(&self) {
        self.cuts.lock().clear();
    }

    /// How long something takes on its way.
    pub(crate) fn delay(&self) -> Duration {
        match self.dice.chance(50) {
            true => Duration::ZERO,
            false => self.dice.millis(0, self.delay_ms),
        }
    }
}
