//! The ways from one site to another: which of them a lane takes, and which are left alone for a while.

use crate::config::LinkPath;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// How long a path that failed is left alone at first; doubled with each further failure.
const COOL_DOWN: Duration = Duration::from_secs(2);
/// Longest time a path is left alone: a repaired path is used again within a minute.
const COOL_DOWN_MAX: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, Default)]
struct Health {
    failures: u32,
    until: Option<Instant>,
}

/// The paths of one link.
#[derive(Debug)]
pub(crate) struct Paths {
    paths: Vec<LinkPath>,
    health: Mutex<Vec<Health>>,
}

impl Paths {
    pub(crate) fn new(paths: Vec<LinkPath>) -> Self {
        let health = Mutex::new(vec![Health::default(); paths.len()]);
        Self { paths, health }
    }

    /// Whether there is another path to go to.
    pub(crate) fn have_choice(&self) -> bool {
        self.paths.len() > 1
    }

    /// The path for `lane`: its own in turn, or the next one that has not failed lately; when all have, the one that
    /// is due first.
    pub(crate) fn pick(&self, lane: usize, now: Instant) -> Option<(usize, LinkPath)> {
        let health = self.health.lock();
        let turns = (0..self.paths.len()).map(|i| (lane + i) % self.paths.len());
        let well = turns
            .clone()
            .find(|&i| health[i].until.is_none_or(|until| until <= now));
        let index = well.or_else(|| turns.min_by_key(|&i| health[i].until))?;
        Some((index, self.paths[index]))
    }

    /// The path that is `lane`'s own, if the lane is on another one and its own may be tried again.
    pub(crate) fn way_home(&self, lane: usize, on: Option<usize>, now: Instant) -> Option<(usize, LinkPath)> {
        let home = lane.checked_rem(self.paths.len())?;
        let health = self.health.lock();
        let due = health[home].until.is_none_or(|until| until <= now);
        (on != Some(home) && due).then(|| (home, self.paths[home]))
    }

    /// A lane could not be made over this path, or broke on it.
    pub(crate) fn failed(&self, index: usize, now: Instant) {
        if let Some(health) = self.health.lock().get_mut(index) {
            let wait = COOL_DOWN
                .saturating_mul(1 << health.failures.min(5))
                .min(COOL_DOWN_MAX);
            health.failures = health.failures.saturating_add(1);
            health.until = Some(now + wait);
        }
    }

    /// Verified bytes came over this path.
    pub(crate) fn worked(&self, index: usize) {
        if let Some(health) = self.health.lock().get_mut(index) {
            *health = Health::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr};

    fn path(port: u16) -> LinkPath {
        SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into()
    }

    #[test]
    fn lanes_spread_over_paths_and_avoid_those_that_failed() {
        let paths = Paths::new(vec![path(1), path(2)]);
        let now = Instant::now();
        let picked = |lane, now| paths.pick(lane, now).unwrap().0;
        assert_eq!([0, 1, 2, 3].map(|lane| picked(lane, now)), [0, 1, 0, 1]);
        paths.failed(0, now);
        assert_eq!([0, 1].map(|lane| picked(lane, now)), [1, 1]);
        paths.failed(0, now);
        assert_eq!(picked(0, now + COOL_DOWN), 1, "the second failure counts double");
        assert_eq!(picked(0, now + COOL_DOWN * 2), 0);
        paths.failed(1, now + Duration::from_millis(1));
        paths.failed(0, now);
        assert_eq!(picked(0, now), 1, "all failed: the one that is due first");
        paths.worked(0);
        assert_eq!(picked(0, now), 0);
        assert!(Paths::new(Vec::new()).pick(0, now).is_none());
    }

    #[test]
    fn a_lane_goes_home_when_its_own_path_is_due() {
        let paths = Paths::new(vec![path(1), path(2)]);
        let now = Instant::now();
        let home = |lane, on, now| paths.way_home(lane, on, now).map(|(index, _)| index);
        assert_eq!((home(1, Some(1), now), home(1, Some(0), now)), (None, Some(1)));
        paths.failed(1, now);
        assert_eq!(home(1, Some(0), now + COOL_DOWN / 2), None);
        assert_eq!(home(1, Some(0), now + COOL_DOWN), Some(1));
        assert_eq!(Paths::new(Vec::new()).way_home(3, None, now), None);
    }
}
