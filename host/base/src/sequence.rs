//! Positions in the one order that all sites agree on.

use core::fmt;
use serde::{Deserialize, Serialize};

/// The position of an entry in the control stream. The first entry has 1; zero is before every entry. Rises from entry
/// to entry and is never given twice, not even after a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sequence(pub u64);

impl Sequence {
    /// Before every entry.
    pub const NONE: Self = Self(0);

    /// The position after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
