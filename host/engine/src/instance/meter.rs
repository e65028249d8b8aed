//! How loaded an instance is, and how fast.

use parking_lot::Mutex;
use portolan_base::{CurveMeter, Permille};
use portolan_ports::EngineLoad;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Over how long the busy shares are taken: two of the 500 ms samples that the routing loop reads.
const BUSY_INTERVAL: Duration = Duration::from_secs(1);

/// Weight of the past in the moving means of speed: an eighth of each new measurement counts, so that a change of
/// load shows within some ten pieces and a single slow one does not.
const MEAN_WEIGHT: u64 = 8;

/// Counts and measures what an instance does. "Queued" means accepted and not yet computed.
#[derive(Debug)]
pub(crate) struct Meter {
    prefill_requests: AtomicU32,
    prefill_tokens: AtomicU32,
    decodes: AtomicU32,
    set_aside: AtomicU64,
    times: Mutex<Times>,
}

#[derive(Debug)]
struct Times {
    interval_began: Instant,
    prefill: Duration,
    decode: Duration,
    prefill_busy: Permille,
    decode_busy: Permille,
    prefill_ns_per_token: u64,
    prompts: CurveMeter,
    decode_step_us: u64,
}

impl Meter {
    pub(crate) fn new() -> Self {
        let times = Times {
            interval_began: Instant::now(),
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
            prefill_busy: Permille(0),
            decode_busy: Permille(0),
            prefill_ns_per_token: 0,
            prompts: CurveMeter::default(),
            decode_step_us: 0,
        };
        Self {
            prefill_requests: AtomicU32::new(0),
            prefill_tokens: AtomicU32::new(0),
            decodes: AtomicU32::new(0),
            set_aside: AtomicU64::new(0),
            times: Mutex::new(times),
        }
    }

    /// A sequence gave its KV up for others.
    pub(crate) fn set_aside(&self) {
        self.set_aside.fetch_add(1, Ordering::Relaxed);
    }

    /// How often one did.
    pub(crate) fn times_set_aside(&self) -> u64 {
        self.set_aside.load(Ordering::Relaxed)
    }

    /// A piece of `tokens` took `time`.
    pub(crate) fn prefilled(&self, tokens: usize, time: Duration) {
        let mut times = self.times.lock();
        times.prefill += time;
        let each = time.as_nanos() as u64 / tokens.max(1) as u64;
        times.prefill_ns_per_token = mean(times.prefill_ns_per_token, each);
        times.roll();
    }

    /// A prompt of which `tokens` had to be computed took `time` of computing, all its pieces together.
    pub(crate) fn computed(&self, tokens: usize, time: Duration) {
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        self.times.lock().prompts.note(tokens, time);
    }

    /// What prefilling so many tokens takes here.
    pub(crate) fn prefill_time(&self, tokens: usize) -> Duration {
        Duration::from_nanos(
            self.times
                .lock()
                .prefill_ns_per_token
                .saturating_mul(tokens as u64),
        )
    }

    /// A decode step took `time`.
    pub(crate) fn decoded(&self, time: Duration) {
        let mut times = self.times.lock();
        times.decode += time;
        times.decode_step_us = mean(times.decode_step_us, time.as_micros() as u64);
        times.roll();
    }

    /// Everything but the use of KV memory.
    pub(crate) fn load(&self) -> EngineLoad {
        let mut times = self.times.lock();
        times.roll();
        EngineLoad {
            prefill_queued_requests: self.prefill_requests.load(Ordering::Relaxed),
            prefill_queued_tokens: self.prefill_tokens.load(Ordering::Relaxed),
            decode_running: self.decodes.load(Ordering::Relaxed),
            kv_used: Permille(0),
            prefill_busy: times.prefill_busy,
            decode_busy: times.decode_busy,
            prefill_ns_per_token: times.prefill_ns_per_token,
            prefill_curve: times.prompts.curve(),
            decode_step_us: u32::try_from(times.decode_step_us).unwrap_or(u32::MAX),
        }
    }
}

impl Times {
    /// Closes the interval when it is over.
    fn roll(&mut self) {
        let length = self.interval_began.elapsed();
        if length < BUSY_INTERVAL {
            return;
        }
        let share =
            |busy: Duration| Permille((busy.as_micros() * 1000 / length.as_micros()).min(1000) as u32);
        self.prefill_busy = share(self.prefill);
        self.decode_busy = share(self.decode);
        (self.prefill, self.decode) = (Duration::ZERO, Duration::ZERO);
        self.interval_began = Instant::now();
    }
}

/// Moves a mean towards a new value; the first value is the mean. Never zero after that.
fn mean(before: u64, value: u64) -> u64 {
    let value = value.max(1);
    if before == 0 {
        value
    } else {
        ((before * (MEAN_WEIGHT - 1) + value) / MEAN_WEIGHT).max(1)
    }
}

/// A prefill in the count, for as long as this lives.
#[derive(Debug)]
pub(crate) struct QueuedPrefill {
    meter: Arc<Meter>,
    tokens: u32,
}

impl QueuedPrefill {
    pub(crate) fn new(meter: &Arc<Meter>, tokens: u32) -> Self {
        meter.prefill_requests.fetch_add(1, Ordering::Relaxed);
        meter.prefill_tokens.fetch_add(tokens, Ordering::Relaxed);
        Self {
            meter: Arc::clone(meter),
            tokens,
        }
    }

    /// `tokens` of it need not be computed any more.
    pub(crate) fn done(&mut self, tokens: usize) {
        let tokens = self.tokens.min(u32::try_from(tokens).unwrap_or(u32::MAX));
        self.tokens -= tokens;
        self.meter.prefill_tokens.fetch_sub(tokens, Ordering::Relaxed);
    }
}

impl Drop for QueuedPrefill {
    fn drop(&mut self) {
        self.meter.prefill_requests.fetch_sub(1, Ordering::Relaxed);
        self.meter
            .prefill_tokens
            .fetch_sub(self.tokens, Ordering::Relaxed);
    }
}

/// A decode in the count, waiting or running, for as long as this lives.
#[derive(Debug)]
pub(crate) struct CountedDecode(Arc<Meter>);

impl CountedDecode {
    pub(crate) fn new(meter: &Arc<Meter>) -> Self {
        meter.decodes.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(meter))
    }
}

impl Drop for CountedDecode {
    fn drop(&mut self) {
        self.0.decodes.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_return_to_zero_whatever_was_done() {
        let meter = Arc::new(Meter::new());
        let mut queued = QueuedPrefill::new(&meter, 100);
        let decode = CountedDecode::new(&meter);
        queued.done(64);
        let load = meter.load();
        assert_eq!(
            (
                load.prefill_queued_requests,
                load.prefill_queued_tokens,
                load.decode_running
            ),
            (1, 36, 1)
        );
        drop((queued, decode));
        let load = meter.load();
        assert_eq!(
            (
                load.prefill_queued_requests,
                load.prefill_queued_tokens,
                load.decode_running
            ),
            (0, 0, 0)
        );
    }

    #[test]
    fn means_follow_and_are_never_zero() {
        assert_eq!(mean(0, 0), 1);
        assert_eq!(mean(0, 80), 80);
        assert_eq!(mean(80, 160), 90);
        assert_eq!(mean(1, 0), 1);
    }
}
