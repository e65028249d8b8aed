//! Loading: compiled artefacts, reloads under load, what is counted.

use crate::guests::Guest;
use crate::support::{Routing, assert_echo, binding, eventually, load, loader, loader_with, patient, tenant};
use portolan_plugin::{ComponentizeError, Limits, VersionKey, VersionStats, componentize};
use portolan_policy::{Policy, QuestionKind};
use portolan_ports::{PolicyLoader, Reuse};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

#[test]
fn a_sealed_artefact_saves_compiling_and_a_damaged_one_does_not() {
    let component = Guest::echo().component();
    let sealed = loader().compile(&component).unwrap();
    // A loader of its own for each artefact: none remembers what another compiled.
    let loaded_with = |component: &[u8], artefact: &[u8]| {
        let loader = loader();
        let bound = binding(tenant("t"), QuestionKind::Routing, component);
        assert_echo(&*loader.load(&bound, component, Some(artefact)).unwrap());
        let stats = loader.stats();
        (stats.compiled, stats.artefacts_used, stats.artefacts_refused)
    };
    assert_eq!(loaded_with(&component, &sealed), (0, 1, 0));

    let mut damaged = sealed.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(loaded_with(&component, &damaged), (1, 0, 1), "one bit differs");
    let other = Guest::hostile("nop").component();
    assert_eq!(loaded_with(&other, &sealed), (1, 0, 1), "of another component");
    assert_eq!(loaded_with(&component, b"nonsense"), (1, 0, 1), "no artefact");
}

#[test]
fn an_upload_is_compiled_once() {
    let loader = loader();
    let component = Guest::echo().component();
    let report = loader.check(Some(QuestionKind::Routing), &component, None);
    assert!(report.ok, "{report:?}");
    assert_eq!(loader.stats().compiled, 1, "to be checked");
    loader.compile(&component).unwrap();
    assert_eq!(loader.stats().compiled, 1, "to be kept");
    assert_echo(&*load(&loader, "t", &component).unwrap());
    assert_eq!(loader.stats().compiled, 1, "to be loaded");
}

#[test]
fn the_eight_components_used_last_are_remembered_compiled() {
    let loader = loader();
    let components: Vec<Vec<u8>> = (0..9)
        .map(|n| Guest::hostile(&format!("(drop (i32.const {n}))")).component())
        .collect();
    let compiled_by = |component: &[u8]| {
        let before = loader.stats().compiled;
        loader.compile(component).unwrap();
        loader.stats().compiled - before
    };
    for component in &components[..8] {
        assert_eq!(compiled_by(component), 1, "seen for the first time");
    }
    for component in &components[..8] {
        assert_eq!(compiled_by(component), 0, "remembered");
    }
    assert_eq!(compiled_by(&components[0]), 0, "and used last");
    assert_eq!(compiled_by(&components[8]), 1, "the ninth");
    assert_eq!(compiled_by(&components[0]), 0, "used after the second");
    assert_eq!(compiled_by(&components[1]), 1, "pushed out by the ninth");
}

#[test]
fn the_bytes_must_be_those_of_the_bound_version() {
    let component = Guest::echo().component();
    let mut bound = binding(tenant("t"), QuestionKind::Routing, &component);
    bound.version = "0".repeat(64);
    let report = loader().load(&bound, &component, None).err().unwrap().0;
    assert_eq!(report.findings.last().unwrap().code, "other-version");
}

#[test]
fn instances_are_made_ahead_of_calls() {
    let loader = loader();
    let policy = load(&loader, "t", &Guest::echo().component()).unwrap();
    let ready = || loader.stats().versions[0].1.ready_instances;
    assert_eq!(ready(), 1, "one until it is asked");
    assert_echo(&*policy);
    eventually("eight instances are ready", || ready() == 8);
    for _ in 0..2 {
        assert_echo(&*policy);
    }
    let (key, stats) = loader.stats().versions.pop().unwrap();
    assert_eq!(
        (key.scope, key.question, key.policy.as_str()),
        (tenant("t"), QuestionKind::Routing, "test")
    );
    assert_eq!((stats.calls, stats.made_inline, stats.is_slow), (3, 0, false));
    assert!(stats.fuel > 0 && stats.made_ahead >= 8, "{stats:?}");
    for _ in 0..2 {
        assert_echo(&*policy);
    }
    eventually("the half that was used is replaced", || ready() == 8);
}

#[test]
fn a_version_that_nobody_asks_gives_way_to_a_busy_one() {
    // Half of the pool is kept ready: room for one version that is asked.
    let loader = loader_with(Limits {
        pool_instances: 16,
        ..patient()
    });
    let component = Guest::echo().component();
    let [first, second] = ["a", "b"].map(|name| load(&loader, name, &component).unwrap());
    let ready = |name| {
        let of = |(key, stats): &(VersionKey, VersionStats)| {
            (key.scope == tenant(name)).then_some(stats.ready_instances)
        };
        loader.stats().versions.iter().find_map(of).unwrap()
    };
    for (busy, name, idle) in [(&first, "a", "b"), (&second, "b", "a"), (&first, "a", "b")] {
        assert_echo(&**busy);
        eventually("the busy version has the room", || ready(name) == 8);
        assert_eq!(ready(idle), 0);
    }
    assert!(
        loader
            .stats()
            .versions
            .iter()
            .all(|(_, stats)| stats.faults.values().all(|count| *count == 0))
    );
}

#[test]
fn calls_outrunning_the_queue_make_their_own_instances() {
    let loader = loader();
    let policy = load(&loader, "t", &Guest::echo().component()).unwrap();
    (0..2_000).for_each(|_| assert_echo(&*policy));
    let (_, stats) = loader.stats().versions.pop().unwrap();
    println!(
        "of 2000 calls in a row, {} made their own instance",
        stats.made_inline
    );
    assert!(stats.faults.values().all(|count| *count == 0), "{stats:?}");
}

/// Resident memory of this process, in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

/// 2,000 reloads; `make bench` does 10,000.
#[test]
fn reloading_under_load_drops_no_call_and_leaks_nothing() {
    let loader = loader();
    let versions: Vec<_> = (0..8)
        .map(|n| {
            let component = Guest::hostile(&format!("(drop (i32.const {n}))")).component();
            let sealed = loader.compile(&component).unwrap();
            (
                binding(tenant("t"), QuestionKind::Routing, &component),
                component,
                sealed,
            )
        })
        .collect();
    let reload = |round: usize| {
        let (bound, component, sealed) = &versions[round % versions.len()];
        loader.load(bound, component, Some(sealed)).unwrap()
    };
    let active: Mutex<Arc<dyn Policy>> = Mutex::new(reload(0));
    let (over, asked) = (AtomicBool::new(false), AtomicU32::new(0));
    let question = Routing::new(0, &[3, 1, 2]);
    let mut resident = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let policy = active.lock().unwrap().clone();
                    let answered = question.ask(&*policy);
                    assert!(answered.result.is_ok(), "{answered:?}");
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 1..=2_000 {
            *active.lock().unwrap() = reload(round);
            let until = asked.load(Ordering::Relaxed) + 2;
            eventually(&format!("calls on version {round}"), || {
                asked.load(Ordering::Relaxed) >= until
            });
            if round % 100 == 0 {
                resident.push(resident_kib());
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    println!(
        "2,000 reloads under {} calls; resident KiB {resident:?}",
        asked.load(Ordering::Relaxed)
    );
    let most = |part: &[u64]| part.iter().copied().max().unwrap_or(0) as f64;
    let (early, late) = (most(&resident[5..10]), most(&resident[15..]));
    assert!(late < early * 1.05, "resident memory grew: {resident:?}");
    assert_eq!(loader.stats().compiled, 8, "a reload compiled");
    drop(active);
    eventually("every instance is gone", || loader.stats().live_instances == 0);
    eventually("every version is forgotten", || {
        loader.stats().versions.is_empty()
    });
    eventually("the pool is empty", || {
        loader.stats().pool_core_instances.unwrap_or(0) == 0
    });
}

#[test]
fn a_policy_outlives_its_loader() {
    let policy = load(&loader(), "t", &Guest::echo().component()).unwrap();
    assert_echo(&*policy);
}

#[test]
fn componentize_says_what_is_wrong() {
    assert!(matches!(
        componentize(&Guest::echo().component()),
        Err(ComponentizeError::AlreadyComponent)
    ));
    let bare = wat::parse_str("(module)").unwrap();
    assert!(matches!(componentize(&bare), Err(ComponentizeError::NoMetadata)));
    let guest = Guest {
        imports: r#"(import "env" "now" (func $now))"#,
        ..Guest::hostile("(call $now)")
    };
    let error = componentize(&guest.core_module()).unwrap_err();
    assert!(
        matches!(&error, ComponentizeError::Encode(why) if why.contains("env")),
        "{error}"
    );
    assert!(matches!(componentize(b"text"), Err(ComponentizeError::Encode(_))));
}

/// A router whose instances answer one call and trap in the second.
fn traps_when_asked_twice() -> Guest {
    let mut guest = Guest::echo();
    guest.extra = "(global $asked (mut i32) (i32.const 0))";
    guest.body = format!(
        "(global.set $asked (i32.add (global.get $asked) (i32.const 1)))
         (if (i32.gt_u (global.get $asked) (i32.const 1)) (then (unreachable)))
         {}",
        guest.body
    );
    guest
}

#[test]
fn instances_are_kept_warm_only_when_the_binding_says_so() {
    let component = traps_when_asked_twice().component();
    let loader = loader();
    let mut bound = binding(tenant("t"), QuestionKind::Routing, &component);
    let question = Routing::new(0, &[3, 1, 2]);
    let fresh = loader.load(&bound, &component, None).unwrap();
    for _ in 0..8 {
        assert!(question.ask(&*fresh).result.is_ok(), "an instance saw two calls");
    }
    bound.reuse = Reuse::Warm;
    let warm = loader.load(&bound, &component, None).unwrap();
    let results: Vec<bool> = (0..4).map(|_| question.ask(&*warm).result.is_ok()).collect();
    assert_eq!(
        results,
        [true, false, true, false],
        "the second call of an instance traps, and a trap ends it"
    );
}

#[test]
fn an_interpreted_guests_instance_is_kept_warm_unless_the_binding_says_otherwise() {
    let padding: &'static str = Box::leak(format!("(data \"{}\")", "x".repeat(70_000)).into_boxed_str());
    let mut guest = traps_when_asked_twice();
    guest.extra = Box::leak(format!("{} {padding}", guest.extra).into_boxed_str());
    let component = guest.component();
    let loader = loader();
    let mut bound = binding(tenant("t"), QuestionKind::Routing, &component);
    let question = Routing::new(0, &[3, 1, 2]);
    for (reuse, expected) in [(Reuse::ByClass, [true, false]), (Reuse::Fresh, [true, true])] {
        bound.reuse = reuse;
        let policy = loader.load(&bound, &component, None).unwrap();
        let results = [0, 1].map(|_| question.ask(&*policy).result.is_ok());
        assert_eq!(results, expected, "{reuse:?}");
    }
}

#[test]
fn a_warm_instance_ends_after_a_thousand_calls() {
    let loader = loader();
    // Its allocator never frees, so it needs room for a thousand calls.
    let guest = Guest {
        pages: 16,
        ..Guest::echo()
    };
    let component = guest.component();
    let mut bound = binding(tenant("t"), QuestionKind::Routing, &component);
    bound.reuse = Reuse::Warm;
    let question = Routing::new(0, &[3]);
    let ask = |policy: &dyn Policy| assert!(question.ask(policy).result.is_ok());
    let policy = loader.load(&bound, &component, None).unwrap();
    let made = || {
        let (_, stats) = loader.stats().versions.pop().unwrap();
        stats.made_ahead + stats.made_inline
    };
    ask(&*policy);
    eventually("eight instances are ready", || made() == 7);
    (1..1_000).for_each(|_| ask(&*policy));
    assert_eq!(made(), 7, "an instance was made although one was warm");
    assert_eq!(
        loader.stats().versions[0].1.ready_instances,
        7,
        "the first has ended"
    );
    ask(&*policy);
    assert_eq!(loader.stats().versions[0].1.ready_instances, 7, "another is warm");
}
