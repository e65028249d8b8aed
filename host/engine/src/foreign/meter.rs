//! Requests in flight from this host, and how fast they are: the metrics page is half a second old and counts everyone's.

use super::scrape::Scraped;
use parking_lot::Mutex;
use portolan_base::{CurveMeter, Permille};
use portolan_ports::EngineLoad;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Weight of the past in the moving means of speed, as for the native engine: an eighth of each new value counts.
const MEAN_WEIGHT: u64 = 8;

/// Fewest tokens that tell a speed: below, a step's fixed cost is most of the time.
const TELLING_TOKENS: u32 = 32;

#[derive(Debug, Default)]
pub(crate) struct Meter(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    in_flight: HashMap<u64, Request>,
    prefill_ns_per_token: u64,
    prompts: CurveMeter,
    decode_step_us: u64,
}

#[derive(Debug)]
struct Request {
    uncached: u32,
    sent: Instant,
    /// Whether its first byte says when its prompt was computed.
    delivery: Delivery,
    begun: bool,
    /// Whether others waited when it was sent: its time is not its own then.
    alone: bool,
}

/// What the first byte of an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// The prompt is computed.
    Streamed,
    /// All of the answer is there.
    Whole,
}

/// A request in flight, until it is dropped.
#[derive(Debug)]
pub(super) struct InFlight {
    number: u64,
    of: Arc<Mutex<State>>,
    first: Option<Instant>,
    last: Option<Instant>,
    pieces: u32,
}

impl Meter {
    /// A request is sent that has so many tokens to compute.
    pub(super) fn sent(&self, uncached: u32, delivery: Delivery) -> InFlight {
        let mut state = self.0.lock();
        let number = state.next;
        state.next += 1;
        let alone = state.in_flight.values().all(|request| request.begun);
        state.in_flight.insert(
            number,
            Request {
                uncached,
                sent: Instant::now(),
                delivery,
                begun: false,
                alone,
            },
        );
        InFlight {
            number,
            of: Arc::clone(&self.0),
            first: None,
            last: None,
            pieces: 0,
        }
    }

    /// Notes a speed that was measured on purpose.
    pub(super) fn measured(&self, tokens: u32, prefill: Duration, step: Option<Duration>) {
        let mut state = self.0.lock();
        state.prompt_took(tokens, prefill);
        if let Some(step) = step {
            state.decode_step_us = mean(state.decode_step_us, step.as_micros() as u64);
        }
    }

    /// The load as it is at the moment: what the page said, and what was sent since.
    pub(super) fn load(&self, scraped: &Scraped) -> EngineLoad {
        let state = self.0.lock();
        let speed = state.prefill_ns_per_token;
        let (mut waiting, mut tokens, mut running) = (0u32, 0u32, 0u32);
        for request in state.in_flight.values() {
            let thought = Duration::from_nanos(speed.saturating_mul(u64::from(request.uncached)));
            let computed = request.delivery == Delivery::Whole && request.sent.elapsed() > thought;
            match request.begun || computed {
                true => running += 1,
                false => {
                    waiting += 1;
                    tokens = tokens.saturating_add(request.uncached);
                }
            }
        }
        let page = |value: f64| value.max(0.0).min(f64::from(u32::MAX)) as u32;
        let busy = |share: bool| Permille(if share { 1000 } else { 0 });
        EngineLoad {
            prefill_queued_requests: waiting.max(page(scraped.waiting)),
            prefill_queued_tokens: tokens,
            decode_running: running.max(page(scraped.running).saturating_sub(waiting)),
            kv_used: Permille((scraped.kv_used * 1000.0) as u32),
            prefill_busy: busy(waiting > 0),
            decode_busy: busy(running > 0 || scraped.running > 0.0),
            prefill_ns_per_token: speed,
            prefill_curve: state.prompts.curve(),
            decode_step_us: u32::try_from(state.decode_step_us).unwrap_or(u32::MAX),
        }
    }
}

impl State {
    fn prompt_took(&mut self, tokens: u32, time: Duration) {
        if tokens < TELLING_TOKENS {
            return;
        }
        let each = time.as_nanos() as u64 / u64::from(tokens);
        self.prefill_ns_per_token = mean(self.prefill_ns_per_token, each);
        self.prompts.note(tokens, time);
    }
}

impl InFlight {
    /// A piece of the answer came.
    pub(super) fn piece(&mut self) {
        let now = Instant::now();
        if self.first.is_none() {
            self.first = Some(now);
            let mut state = self.of.lock();
            let mut told = None;
            if let Some(request) = state.in_flight.get_mut(&self.number) {
                request.begun = true;
                if request.delivery == Delivery::Streamed && request.alone {
                    told = Some((request.uncached, now - request.sent));
                }
            }
            if let Some((tokens, time)) = told {
                state.prompt_took(tokens, time);
            }
        }
        self.last = Some(now);
        self.pieces += 1;
    }

    /// The answer ended as it should.
    pub(super) fn ended(&mut self) {
        if let (Some(first), Some(last), steps @ 8..) = (self.first, self.last, self.pieces) {
            let mut state = self.of.lock();
            let each = (last - first).as_micros() as u64 / u64::from(steps - 1);
            state.decode_step_us = mean(state.decode_step_us, each);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.of.lock().in_flight.remove(&self.number);
    }
}

/// Moves a mean towards a new value; the first value is the mean. Never zero after that.
fn mean(before: u64, value: u64) -> u64 {
    let value = value.max(1);
    match before {
        0 => value,
        _ => (before * (MEAN_WEIGHT - 1) + value) / MEAN_WEIGHT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_counts_at_once_and_until_it_is_dropped() {
        let meter = Meter::default();
        let page = Scraped {
            waiting: 1.0,
            running: 5.0,
            kv_used: 0.25,
            ..Scraped::default()
        };
        let mut first = meter.sent(100, Delivery::Streamed);
        let second = meter.sent(50, Delivery::Streamed);
        let load = meter.load(&page);
        assert_eq!(
            (load.prefill_queued_requests, load.prefill_queued_tokens),
            (2, 150)
        );
        assert_eq!((load.decode_running, load.kv_used), (3, Permille(250)));
        first.piece();
        drop(second);
        let load = meter.load(&Scraped::default());
        assert_eq!((load.prefill_queued_requests, load.decode_running), (0, 1));
        assert!(load.prefill_ns_per_token > 0, "it was alone when it was sent");
        drop(first);
        assert_eq!(meter.load(&Scraped::default()).decode_running, 0);
    }

    #[test]
    fn an_answer_in_one_piece_waits_only_as_long_as_its_prompt_takes() {
        let meter = Meter::default();
        meter.measured(1000, Duration::from_millis(1), None);
        let _whole = meter.sent(1000, Delivery::Whole);
        assert_eq!(meter.load(&Scraped::default()).prefill_queued_requests, 1);
        std::thread::sleep(Duration::from_millis(5));
        let load = meter.load(&Scraped::default());
        assert_eq!((load.prefill_queued_requests, load.decode_running), (0, 1));
    }
}
