//! The clock that ends overlong calls: it advances the engine's epoch while guests run, and rests when none does.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wasmtime::{Engine, EngineWeak};

/// How often the epoch advances: the resolution of every deadline.
const TICK: Duration = Duration::from_millis(1);

/// Ticks without a new call before the clock rests. Waking it costs a call some microseconds: a host that is asked
/// ten times a second or more never pays, and one that is idle burns nothing.
const TICKS_BEFORE_REST: u32 = 100;

/// Advances the epoch while guests run. Its thread ends when this is dropped.
pub(crate) struct Ticker(Arc<Shared>);

#[derive(Default)]
struct Shared {
    begun: AtomicU64,
    ended: AtomicU64,
    ticks: AtomicU64,
    lateness_us: AtomicU64,
    /// Whether the thread rests, or is about to.
    resting: AtomicBool,
    over: AtomicBool,
    rest: Mutex<()>,
    wake: Condvar,
}

/// A guest runs: the epoch advances until this is dropped.
pub(crate) struct Running<'a>(&'a Shared);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::SeqCst);
        self.0.wake();
    }
}

impl Ticker {
    /// Starts a thread: a task of the serving runtime would stop ticking exactly when guests keep that runtime busy.
    pub(crate) fn start(engine: &Engine) -> std::io::Result<Arc<Self>> {
        let shared = Arc::<Shared>::default();
        let (engine, own) = (engine.weak(), shared.clone());
        std::thread::Builder::new()
            .name("policy-ticker".into())
            .spawn(move || own.tick_on(&engine))?;
        Ok(Arc::new(Self(shared)))
    }

    /// Says that guest code is about to run.
    pub(crate) fn run(&self) -> Running<'_> {
        let shared = &*self.0;
        // The call counts itself, then looks whether the clock rests; the clock says that it rests, then counts the
        // calls. Whichever comes second sees the other, so no call runs beside a clock that rests.
        shared.begun.fetch_add(1, Ordering::SeqCst);
        if shared.resting.load(Ordering::SeqCst) {
            shared.wake();
        }
        Running(shared)
    }

    /// The longest that a tick has come late, in microseconds.
    pub(crate) fn lateness_us(&self) -> u64 {
        self.0.lateness_us.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn tick_on(&self, engine: &EngineWeak) {
        let (mut quiet, mut seen) = (0, 0);
        while !self.over.load(Ordering::SeqCst) {
            let slept = Instant::now();
            std::thread::sleep(TICK);
            let Some(engine) = engine.upgrade() else { return };
            engine.increment_epoch();
            drop(engine);
            self.note_tick(slept.elapsed());
            let begun = self.begun.load(Ordering::SeqCst);
            quiet = if begun == seen { quiet + 1 } else { 0 };
            seen = begun;
            if quiet >= TICKS_BEFORE_REST {
                self.rest();
                quiet = 0;
            }
        }
    }

    fn note_tick(&self, slept: Duration) {
        let late = slept.saturating_sub(TICK).as_micros();
        self.lateness_us
            .fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.ticks.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for a call, unless one runs.
    fn rest(&self) {
        let mut at_rest = self.rest.lock();
        self.resting.store(true, Ordering::SeqCst);
        while !self.is_needed() && self.resting.load(Ordering::SeqCst) {
            self.wake.wait(&mut at_rest);
        }
        self.resting.store(false, Ordering::SeqCst);
    }

    fn is_needed(&self) -> bool {
        // In this order: a call that ends between the two reads counts as running, never the other way round.
        let ended = self.ended.load(Ordering::SeqCst);
        self.begun.load(Ordering::SeqCst) != ended || self.over.load(Ordering::SeqCst)
    }

    fn wake(&self) {
        let _at_rest = self.rest.lock();
        self.resting.store(false, Ordering::SeqCst);
        self.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticker() -> (Engine, Arc<Ticker>) {
        let engine = Engine::default();
        let ticker = Ticker::start(&engine).unwrap();
        (engine, ticker)
    }

    fn ticks(ticker: &Ticker) -> u64 {
        ticker.0.ticks.load(Ordering::Relaxed)
    }

    fn until(what: &str, mut happened: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !happened() {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "never happened: {what}"
            );
            std::thread::sleep(TICK);
        }
    }

    #[test]
    fn the_clock_rests_without_calls_and_ticks_beside_one() {
        let (_engine, ticker) = ticker();
        until("it rests", || ticker.0.resting.load(Ordering::SeqCst));
        let before = ticks(&ticker);
        std::thread::sleep(TICK * 30);
        assert_eq!(ticks(&ticker), before, "it ticked without a call");
        let running = ticker.run();
        // Longer than it takes to fall asleep when no call begins.
        let enough = u64::from(TICKS_BEFORE_REST) * 2;
        until("it ticks on beside a long call", || {
            ticks(&ticker) > before + enough
        });
        drop(running);
        until("it rests again", || ticker.0.resting.load(Ordering::SeqCst));
    }

    /// Calls that come just when the clock lies down: each must see a tick.
    #[test]
    fn no_call_is_left_beside_a_resting_clock() {
        let (_engine, ticker) = ticker();
        for round in 0..20 {
            until("it rests", || ticker.0.resting.load(Ordering::SeqCst));
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        let before = ticks(&ticker);
                        let _running = ticker.run();
                        until(&format!("a tick in round {round}"), || ticks(&ticker) > before);
                    });
                }
            });
        }
    }

    #[test]
    fn the_thread_ends_with_its_owner() {
        let (_engine, ticker) = ticker();
        let shared = ticker.0.clone();
        until("it rests", || shared.resting.load(Ordering::SeqCst));
        drop(ticker);
        until("the thread let go", || Arc::strong_count(&shared) == 1);
    }
}
