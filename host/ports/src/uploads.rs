//! A tenant's uploads of the last hour.

use portolan_base::Moment;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

const MINUTE_US: u64 = 60_000_000;

/// Minutes that count: the one that runs and the sixty before it.
const MINUTES: u64 = 61;

/// Uploads by the minute: a hundred thousand take no more room than a hundred.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadWindow {
    minutes: BTreeMap<u64, u32>,
}

/// What became of an upload that was to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadTurn {
    /// It counts.
    Counted,
    /// There were as many as there may be; the first is free again after this time.
    Full(Duration),
}

impl UploadWindow {
    /// Counts one more upload, unless `most` of the last hour were counted.
    pub fn count(&mut self, most: u32, at: Moment) -> UploadTurn {
        let minute = at.0 / MINUTE_US;
        self.minutes.retain(|counted, _| minute < counted + MINUTES);
        if self.used(at) >= most {
            let first = self.minutes.keys().next().copied().unwrap_or(minute);
            let free = (first + MINUTES) * MINUTE_US;
            return UploadTurn::Full(Duration::from_micros(free.saturating_sub(at.0)));
        }
        *self.minutes.entry(minute).or_default() += 1;
        UploadTurn::Counted
    }

    /// Takes back one that was counted at this moment. Where none was, nothing changes.
    pub fn take_back(&mut self, counted_at: Moment) {
        let minute = counted_at.0 / MINUTE_US;
        if let Some(counted) = self.minutes.get_mut(&minute) {
            *counted -= 1;
            if *counted == 0 {
                self.minutes.remove(&minute);
            }
        }
    }

    /// Uploads of the last hour.
    pub fn used(&self, at: Moment) -> u32 {
        let minute = at.0 / MINUTE_US;
        let counted = self
            .minutes
            .iter()
            .filter(|(counted, _)| minute < *counted + MINUTES);
        counted.fold(0, |sum, (_, uploads)| sum.saturating_add(*uploads))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_is_taken_the_next_is_not_and_the_first_is_free_within_a_minute_after_an_hour() {
        let at = |seconds: u64| Moment(seconds * 1_000_000);
        let mut window = UploadWindow::default();
        assert_eq!(window.count(2, at(30)), UploadTurn::Counted);
        assert_eq!(window.count(2, at(90)), UploadTurn::Counted);
        let full = UploadTurn::Full(Duration::from_secs(61 * 60 - 91));
        assert_eq!(window.count(2, at(91)), full);
        assert_eq!(window.used(at(91)), 2, "one that was not let in does not count");
        assert!(matches!(window.count(2, at(3659)), UploadTurn::Full(_)));
        assert_eq!(window.count(2, at(3660)), UploadTurn::Counted);
        assert_eq!((window.used(at(3660)), window.minutes.len()), (2, 2));
        assert_eq!(
            window.count(0, at(99_999)),
            UploadTurn::Full(Duration::from_secs(61 * 60 - 39))
        );
    }

    #[test]
    fn one_that_was_taken_back_is_free_at_once_and_no_other_is() {
        let at = |seconds: u64| Moment(seconds * 1_000_000);
        let mut window = UploadWindow::default();
        for seconds in [1, 2, 90] {
            assert_eq!(window.count(3, at(seconds)), UploadTurn::Counted);
        }
        window.take_back(at(2));
        assert_eq!(window.used(at(91)), 2);
        window.take_back(at(2));
        window.take_back(at(2));
        assert_eq!(
            (window.used(at(91)), window.minutes.len()),
            (1, 1),
            "none of its minute is left"
        );
        assert_eq!(window.count(2, at(91)), UploadTurn::Counted);
    }
}
