//! Chaos: schedules of faults that a seed repeats, and one checker that holds what happened against the promises.
//! Docs: `docs/chaos.md`.
//!
//! `PORTOLAN_CHAOS_SEED=N` repeats one schedule; `PORTOLAN_CHAOS_SCHEDULES=N` says how many to run, from there on;
//! `PORTOLAN_CHAOS_TELL=1` prints what is planned.

mod checker;
mod dice;
mod history;
mod in_process;
mod processes;
mod valve;

use checker::{Violation, check};
use history::{History, Outcome};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Seeds of a run that is not told otherwise follow this one.
const SEED: u64 = 0xc4a0_5000;
/// Schedules that a run of all tests has time for.
const SCHEDULES: u64 = 120;
/// Schedules under way at once: each waits most of its time.
const AT_ONCE: usize = 24;

/// The seeds to run.
fn seeds(schedules: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let many = number("PORTOLAN_CHAOS_SCHEDULES");
    match number("PORTOLAN_CHAOS_SEED") {
        Some(seed) => seed..seed + many.unwrap_or(1),
        None => SEED..SEED + many.unwrap_or(schedules),
    }
}

/// What schedules had in them, so that an empty proof is noticed.
#[derive(Debug, Default)]
struct Tally {
    schedules: u64,
    answered: u64,
    refused: u64,
    broken_off: u64,
    gone: u64,
    remote: u64,
    reused: u64,
    begun_anew: u64,
    fallbacks: u64,
    orders: u64,
    promised: u64,
    unacknowledged: u64,
    begins: [u64; 3],
    births: u64,
}

impl Tally {
    fn add(&mut self, history: &History) {
        self.schedules += 1;
        for ask in &history.asks {
            *match ask.outcome {
                Outcome::Answered(_) => &mut self.answered,
                Outcome::Refused(..) => &mut self.refused,
                Outcome::BrokenOff(_) | Outcome::CutInSilence(_) => &mut self.broken_off,
                Outcome::Gone => &mut self.gone,
            } += 1;
            let Some(record) = &ask.record else { continue };
            self.remote += u64::from(
                record
                    .route
                    .as_ref()
                    .is_some_and(|r| r.prefill_site != r.decode_site),
            );
            self.reused += u64::from(record.kv.cached_tokens > 0);
            self.begun_anew += record.fallbacks.iter().filter(|f| f.from == "cached KV").count() as u64;
            self.fallbacks += record.fallbacks.len() as u64;
        }
        for order in &history.orders {
            self.orders += 1;
            self.promised += u64::from(order.waited && order.acknowledged);
            self.unacknowledged += u64::from(!order.acknowledged);
        }
        for begin in &history.begins {
            self.begins[begin.what as usize] += 1;
        }
        self.births += history.births.len() as u64;
    }
}

/// Runs every seed on a few threads; returns what was in them, and what was found wrong.
fn run_all(
    seeds: std::ops::Range<u64>,
    run: impl Fn(u64) -> History + Sync,
) -> (Tally, Vec<(u64, Violation)>) {
    let (next, tally, found) = (
        AtomicU64::new(seeds.start),
        Mutex::new(Tally::default()),
        Mutex::new(Vec::new()),
    );
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min((seeds.end - seeds.start) as usize) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let history = run(seed);
                    let violations = check(&history);
                    tally.lock().unwrap().add(&history);
                    found
                        .lock()
                        .unwrap()
                        .extend(violations.into_iter().map(|violation| (seed, violation)));
                }
            });
        }
    });
    (tally.into_inner().unwrap(), found.into_inner().unwrap())
}

/// Fails with every violation and how to see it again.
fn none_of(found: &[(u64, Violation)]) {
    let mut of_each: BTreeMap<u8, usize> = BTreeMap::new();
    for (_, violation) in found {
        *of_each.entry(violation.promise).or_default() += 1;
    }
    let line = |(seed, violation): &(u64, Violation)| format!("PORTOLAN_CHAOS_SEED={seed}: {violation}");
    let lines: Vec<String> = found.iter().map(line).collect();
    assert!(
        found.is_empty(),
        "{} violations, by promise {of_each:?}:\n{}",
        found.len(),
        lines.join("\n")
    );
}

#[test]
fn whatever_breaks_in_one_process_breaks_no_promise() {
    let seeds = seeds(SCHEDULES);
    let began = Instant::now();
    let (tally, found) = run_all(seeds.clone(), in_process::run);
    println!("seeds {seeds:?}, {:.1?}: {tally:?}", began.elapsed());
    none_of(&found);
    if tally.schedules >= 100 {
        let [prefills, fetches, decodes] = tally.begins;
        assert!(prefills > 100 && fetches > 3 && decodes > 10, "{tally:?}");
        assert!(
            tally.promised > 50 && tally.unacknowledged > 5 && tally.remote > 100,
            "{tally:?}"
        );
        assert!(
            tally.answered > 1000 && tally.refused > 10 && tally.begun_anew > 5,
            "{tally:?}"
        );
    }
}

/// Schedules with processes that a run of all tests has time for: half of the faults.
const PROCESS_SCHEDULES: u64 = 3;

#[test]
fn whatever_breaks_between_processes_breaks_no_promise() {
    for seed in seeds(PROCESS_SCHEDULES) {
        let began = Instant::now();
        let Some(played) = processes::run(seed) else {
            return;
        };
        let mut tally = Tally::default();
        tally.add(&played.history);
        println!(
            "seed {seed}, {:?}, {:.1?}: {tally:?}",
            played.faults,
            began.elapsed()
        );
        let found = check(&played.history);
        let found: Vec<_> = found.into_iter().map(|violation| (seed, violation)).collect();
        if !found.is_empty() {
            println!("{}", played.errors.join("\n"));
        }
        none_of(&found);
        assert!(tally.answered > 20 && tally.promised > 0, "{tally:?}");
    }
}
