//! What loading and calling cost, printed: `cargo test -p portolan-plugin cost_of -- --nocapture`.

use crate::guests::Guest;
use crate::support::{Routing, binding, eventually, load, loader, loader_with, patient, tenant};
use portolan_plugin::Limits;
use portolan_policy::QuestionKind;
use portolan_ports::PolicyLoader;
use std::time::{Duration, Instant};

/// Fastest and median of many runs: the first is the cost, the second what a shared machine makes of it.
fn measure(what: &str, mut runs: Vec<Duration>) -> Duration {
    runs.sort();
    println!("{what}: fastest {:?}, median {:?}", runs[0], runs[runs.len() / 2]);
    runs[0]
}

fn time(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}

#[test]
fn cost_of_loading_and_calling() {
    let loader = loader();
    let component = Guest::echo().component();
    let bound = binding(tenant("t"), QuestionKind::Routing, &component);
    let sealed = loader.compile(&component).unwrap();
    let cold = (0..5).map(|_| time(|| drop(loader.load(&bound, &component, None).unwrap())));
    measure("load, compiling", cold.collect());
    let warm = (0..20).map(|_| time(|| drop(loader.load(&bound, &component, Some(&sealed)).unwrap())));
    measure("load, from a compiled artefact", warm.collect());

    let policy = load(&loader, "t", &component).unwrap();
    let question = Routing::new(0, &[7; 64]);
    let ready = (0..200).map(|_| {
        eventually("an instance is ready", || {
            loader.stats().versions[0].1.ready_instances >= 1
        });
        time(|| assert!(question.ask(&*policy).result.is_ok()))
    });
    let call = measure("call of 64 routes, instance ready", ready.collect());
    assert!(call < Duration::from_millis(1), "{call:?}");

    let unready = loader_with(Limits {
        ready_instances: 0,
        ..patient()
    });
    let policy = load(&unready, "t", &component).unwrap();
    let inline = (0..2_000).map(|_| time(|| assert!(question.ask(&*policy).result.is_ok())));
    let call = measure("call of 64 routes, instance made inline", inline.collect());
    assert!(call < Duration::from_millis(1), "{call:?}");

    let trapping = load(&unready, "u", &Guest::hostile("unreachable").component()).unwrap();
    let trap = Routing::new(1, &[7; 64]);
    let traps = (0..500).map(|_| time(|| assert!(trap.ask(&*trapping).result.is_err())));
    measure("trap, instance made inline", traps.collect());

    let laned = loader_with(Limits {
        inline_calls_per_tenant: 0,
        ..patient()
    });
    let policy = load(&laned, "t", &component).unwrap();
    let slow = (0..500).map(|_| time(|| assert!(question.ask(&*policy).result.is_ok())));
    measure("call of 64 routes through the slow lane", slow.collect());
}
