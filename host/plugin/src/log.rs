//! The log lines of policies: bounded in length and rate, and harmless to a terminal.

mod book;

pub(crate) use book::LogBook;

use parking_lot::Mutex;
use portolan_base::Moment;

/// Longest line, in bytes.
pub(crate) const LINE_MAX_BYTES: usize = 256;

/// Lines one call may write.
pub(crate) const LINES_PER_CALL: u32 = 16;

/// A bucket of lines that fills with time.
#[derive(Debug)]
pub(crate) struct LogQuota {
    per_second: u64,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    millilines: u64,
    filled_at: Moment,
    /// Since the last line that was written.
    dropped: u64,
    written: u64,
    dropped_in_all: u64,
}

impl LogQuota {
    /// So many lines each second, and at once after a silence.
    pub(crate) fn new(per_second: u32, now: Moment) -> Self {
        let per_second = u64::from(per_second);
        let bucket = Mutex::new(Bucket {
            millilines: per_second * 1000,
            filled_at: now,
            dropped: 0,
            written: 0,
            dropped_in_all: 0,
        });
        Self { per_second, bucket }
    }

    /// Takes a line: gives how many were dropped since the last one, or `None` when this one is dropped too.
    pub(crate) fn take(&self, now: Moment) -> Option<u64> {
        let mut bucket = self.bucket.lock();
        let earned = now.since(bucket.filled_at).as_micros().min(1_000_000) as u64 * self.per_second / 1000;
        if earned > 0 {
            bucket.millilines = (bucket.millilines + earned).min(self.per_second * 1000);
            bucket.filled_at = now;
        }
        if bucket.millilines < 1000 {
            bucket.drop_line();
            return None;
        }
        bucket.millilines -= 1000;
        bucket.written += 1;
        Some(std::mem::take(&mut bucket.dropped))
    }

    /// Counts a line that its call was not allowed to write.
    pub(crate) fn drop_line(&self) {
        self.bucket.lock().drop_line();
    }

    /// Lines written and dropped so far.
    pub(crate) fn lines(&self) -> (u64, u64) {
        let bucket = self.bucket.lock();
        (bucket.written, bucket.dropped_in_all)
    }
}

impl Bucket {
    fn drop_line(&mut self) {
        self.dropped += 1;
        self.dropped_in_all += 1;
    }
}

/// At most `max_bytes` of `text`, cut between characters, with control characters replaced: a policy's words end in
/// terminals, JSON and HTTP headers.
pub(crate) fn tame(text: &str, max_bytes: usize) -> String {
    let end = (0..=max_bytes.min(text.len()))
        .rev()
        .find(|i| text.is_char_boundary(*i))
        .unwrap_or(0);
    text[..end]
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_flood_is_cut_and_counted() {
        let quota = LogQuota::new(100, Moment(0));
        let passed = (0..1000).filter(|_| quota.take(Moment(0)).is_some()).count();
        assert_eq!(passed, 100);
        let later = Moment(0) + Duration::from_millis(10);
        assert_eq!(
            quota.take(later),
            Some(900),
            "the first line after a flood tells how many were dropped"
        );
        assert_eq!(quota.take(later), None, "ten milliseconds earn one line");
        assert_eq!(quota.lines(), (101, 901));
    }

    #[test]
    fn slow_earning_is_not_lost_to_rounding() {
        let quota = LogQuota::new(100, Moment(0));
        while quota.take(Moment(0)).is_some() {}
        let passed = (1..=100_000)
            .filter(|i| quota.take(Moment(i * 10)).is_some())
            .count();
        assert!((99..=101).contains(&passed), "{passed} lines in a second");
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(tame("aé", 2), "a");
        assert_eq!(tame("a\n\u{1b}[31mb", 64), "a  [31mb");
        assert_eq!(tame(&"x".repeat(1000), LINE_MAX_BYTES).len(), LINE_MAX_BYTES);
    }
}
