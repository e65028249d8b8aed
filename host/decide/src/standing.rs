//! Whether an instance may be given work, and the way back of one that was out.

use portolan_base::{Moment, Permille};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// How long an instance that comes back takes less than its share. Ten seconds: twenty load reports, and time enough for
/// its cache to be worth something again.
const COMEBACK: Duration = Duration::from_secs(10);

/// The share it begins with. A tenth shows whether it works and loses little when it does not.
const FIRST_SHARE: u32 = 100;

/// Whether an instance may be given work, and if not, why not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is", content = "share_permille")]
pub enum Standing {
    /// It may be given work.
    #[default]
    Ready,
    /// It was out and came back a short while ago: this share of the requests may use it.
    Returning(Permille),
    /// It is being warmed up and has not served yet.
    WarmingUp,
    /// It finishes what it has and is given nothing more.
    Draining,
    /// It failed too often in a row and is left alone for a while.
    Broken,
    /// Nothing was heard of it for too long.
    Silent,
}

impl Standing {
    /// Whether it may be given any work.
    pub fn is_ready(self) -> bool {
        matches!(self, Self::Ready | Self::Returning(_))
    }

    /// Whether it may be given the request with this seed. Which requests those are differs from instance to instance
    /// (`number`), so that two that come back together are not both passed over.
    pub fn takes(self, seed: u64, number: u32) -> bool {
        match self {
            Self::Ready => true,
            Self::Returning(share) => scattered(seed, number) % 1000 < u64::from(share.0),
            _ => false,
        }
    }

    /// The word that people and dashboards see.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Returning(_) => "returning",
            Self::WarmingUp => "warming_up",
            Self::Draining => "draining",
            Self::Broken => "broken",
            Self::Silent => "silent",
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::Returning(share) => write!(f, "came back and takes {} ‰ of the requests", share.0),
            Self::WarmingUp => f.write_str("warming up"),
            Self::Draining => f.write_str("draining"),
            Self::Broken => f.write_str("failed too often in a row"),
            Self::Silent => f.write_str("not heard of"),
        }
    }
}

/// A number that has nothing to do with those of neighbouring seeds and instances (the finaliser of SplitMix64).
fn scattered(seed: u64, number: u32) -> u64 {
    let mut x = seed ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Remembers when an instance came back, and lets it begin slowly. A fleet's first start is no comeback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Comeback {
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// It was not seen at work yet.
    #[default]
    New,
    In,
    Out,
    Back {
        since: Moment,
    },
}

impl Comeback {
    /// What an instance's standing is at `now`, when by everything else it is `standing`. Call it at every look.
    pub fn observe(&mut self, standing: Standing, now: Moment) -> Standing {
        self.state = match (self.state, standing.is_ready()) {
            // Before its first work it is no less trusted than its neighbours, which have as little to show.
            (State::New, false) => State::New,
            (State::New, true) => State::In,
            (_, false) => State::Out,
            (State::Out, true) => State::Back { since: now },
            (state, true) => state,
        };
        let State::Back { since } = self.state else {
            return standing;
        };
        let (gone, whole) = (now.since(since).as_millis() as u64, COMEBACK.as_millis() as u64);
        if gone >= whole {
            self.state = State::In;
            return standing;
        }
        let more = u64::from(1000 - FIRST_SHARE) * gone / whole;
        Standing::Returning(Permille(FIRST_SHARE + more as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(seconds * 1_000_000)
    }

    #[test]
    fn one_that_comes_back_takes_a_growing_share_and_one_that_starts_takes_all() {
        let mut way = Comeback::default();
        assert_eq!(way.observe(Standing::Silent, at(0)), Standing::Silent);
        assert_eq!(way.observe(Standing::Ready, at(1)), Standing::Ready);
        assert_eq!(way.observe(Standing::Broken, at(2)), Standing::Broken);
        assert_eq!(
            way.observe(Standing::Ready, at(10)),
            Standing::Returning(Permille(100))
        );
        assert_eq!(
            way.observe(Standing::Ready, at(15)),
            Standing::Returning(Permille(550))
        );
        assert_eq!(way.observe(Standing::Ready, at(20)), Standing::Ready);
        assert_eq!(way.observe(Standing::Ready, at(21)), Standing::Ready);
    }

    #[test]
    fn the_share_is_that_of_the_requests_and_another_one_for_each_instance() {
        let quarter = Standing::Returning(Permille(250));
        let takes = |number| (0..10_000).filter(|seed| quarter.takes(*seed, number)).count();
        for number in 0..4 {
            assert!((2_350..2_650).contains(&takes(number)), "{}", takes(number));
        }
        let both = (0..10_000).filter(|seed| quarter.takes(*seed, 0) && quarter.takes(*seed, 1));
        assert!((500..750).contains(&both.count()));
        assert!(Standing::Ready.takes(1, 1));
        assert!(!Standing::Draining.takes(1, 1));
    }
}
