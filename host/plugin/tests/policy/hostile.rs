//! Guests that misbehave: the right fault, in bounded time, and no harm to the next call or the neighbour.

use crate::guests::{CONFIGURED, Guest, LOG, STATE_ADD};
use crate::support::{
    Routing, assert_echo, eventually, load, loader, loader_with, misbehave, patient, thread_time,
};
use portolan_base::TenantName;
use portolan_plugin::{ComponentLoader, Limits, TenantLimits};
use portolan_policy::{Answer, Policy, PolicyFault, RoutingDecision};
use portolan_ports::PolicyRejection;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ENDLESS: &str = "(loop $l (br $l)) (unreachable)";

pub(crate) fn policy(loader: &ComponentLoader, guest: &Guest) -> Arc<dyn Policy> {
    load(loader, "mallory", &guest.component()).unwrap()
}

/// The fault of one misdeed, having checked that the version answers before and after it.
pub(crate) fn fault_of(guest: &Guest) -> PolicyFault {
    let loader = loader();
    let policy = policy(&loader, guest);
    assert_echo(&*policy);
    let fault = misbehave(&*policy);
    assert_echo(&*policy);
    assert_eq!(misbehave(&*policy), fault, "the second time went otherwise");
    assert_echo(&*policy);
    let (_, stats) = loader.stats().versions.pop().unwrap();
    assert_eq!(stats.faults.get(fault.word()), Some(&2), "{stats:?}");
    assert_eq!(stats.calls, 5);
    fault
}

fn rejection(guest: &Guest) -> PolicyRejection {
    load(&loader(), "mallory", &guest.component()).err().unwrap()
}

#[test]
fn an_endless_loop_runs_out_of_fuel() {
    assert_eq!(fault_of(&Guest::hostile(ENDLESS)), PolicyFault::OutOfFuel(84_000));
}

#[test]
fn an_endless_loop_in_the_allocator_runs_out_of_fuel() {
    let guest = Guest {
        realloc: "(if (global.get $armed) (then (loop $l (br $l))))",
        ..Guest::echo()
    };
    let guest = Guest {
        extra: r#"(global $armed (mut i32) (i32.const 0))"#,
        configure: format!("(global.set $armed (i32.const 1)) {CONFIGURED}"),
        ..guest
    };
    let loader = loader();
    let policy = policy(&loader, &guest);
    assert_eq!(misbehave(&*policy), PolicyFault::OutOfFuel(84_000));
}

/// Loops around what costs most time for its fuel.
const DEAR_LOOPS: [(&str, &str); 9] = [
    ("nothing", "(loop $l (br $l)) (unreachable)"),
    (
        "divisions",
        "(loop $l (global.set $x (i64.div_u (i64.const -1) (i64.or (global.get $x) (i64.const 3)))) (br $l)) (unreachable)",
    ),
    (
        "square roots",
        "(loop $l (global.set $f (f64.sqrt (f64.div (f64.const 1e300) (global.get $f)))) (br $l)) (unreachable)",
    ),
    (
        "a write to each page",
        "(loop $l (i32.store (i32.and (local.get $i) (i32.const 0x1f000)) (i32.const 1))
            (local.set $i (i32.add (local.get $i) (i32.const 4096))) (br $l)) (unreachable)",
    ),
    (
        "growing memory by nothing",
        "(loop $l (drop (memory.grow (i32.const 0))) (br $l)) (unreachable)",
    ),
    (
        "growing memory",
        "(loop $l (drop (memory.grow (i32.const 1))) (br $l)) (unreachable)",
    ),
    (
        "growing a table by nothing",
        "(loop $l (drop (table.grow $t (ref.null func) (i32.const 0))) (br $l)) (unreachable)",
    ),
    (
        "filling little",
        "(loop $l (memory.fill (i32.const 65536) (i32.const 7) (i32.const 0)) (br $l)) (unreachable)",
    ),
    (
        "filling much",
        "(loop $l (memory.fill (i32.const 65536) (i32.const 7) (i32.const 65536)) (br $l)) (unreachable)",
    ),
];

#[test]
fn an_endless_loop_costs_the_caller_less_than_a_millisecond() {
    const EXTRA: &str =
        "(global $x (mut i64) (i64.const 9)) (global $f (mut f64) (f64.const 9)) (table $t 1 funcref)";
    let loader = loader();
    let question = Routing::new(1, &[1; 180]);
    for (what, deed) in DEAR_LOOPS {
        // A version that looped is kept off the calling thread, so each round loads another.
        let times = (0..3).map(|round| {
            let deed = format!("(drop (i32.const {round})) {deed}");
            let policy = policy(&loader, &Guest::hostile(&deed).with_extra(EXTRA));
            let before = thread_time();
            let answered = question.ask(&*policy);
            let spent = thread_time() - before;
            assert_eq!(answered.result, Err(PolicyFault::OutOfFuel(200_000)), "{what}");
            assert!(loader.stats().versions.last().unwrap().1.is_slow, "{what}");
            spent
        });
        let worst = times.max().unwrap_or_default();
        println!("a loop around {what} cost the caller {worst:?} of processor time at worst");
        assert!(worst < Duration::from_millis(1), "{what}: {worst:?}");
    }
}

#[test]
fn a_guest_that_fills_much_memory_does_so_on_another_thread() {
    // Every page of 6 MiB faulted in: little fuel, much time.
    let deed = "(drop (memory.grow (i32.const 96)))
        (loop $l (i32.store (local.get $i) (i32.const 1))
            (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 4096))) (i32.const 6291456))))
        (local.set $i (i32.const 0))";
    let loader = loader();
    let policy = policy(&loader, &Guest::hostile(deed));
    let question = Routing::new(1, &[9]);
    let before = thread_time();
    let answered = question.ask(&*policy);
    let spent = thread_time() - before;
    assert_eq!(
        answered.result,
        Ok(Answer::Routing(RoutingDecision::Scores(vec![9]))),
        "it is slow, not wrong"
    );
    let stats = loader.stats().versions.pop().unwrap().1;
    assert_eq!((stats.is_slow, stats.slow_calls, stats.calls), (true, 1, 1));
    println!("a guest that fills 6 MiB cost the caller {spent:?} of processor time");
    assert!(spent < Duration::from_millis(1), "{spent:?}");
}

#[test]
fn a_version_that_looped_is_kept_off_the_calling_thread() {
    let loader = loader();
    let policy = policy(&loader, &Guest::hostile(ENDLESS));
    misbehave(&*policy);
    assert!(loader.stats().versions[0].1.is_slow);
    let before = thread_time();
    misbehave(&*policy);
    let spent = thread_time() - before;
    assert!(
        spent < Duration::from_micros(200),
        "{spent:?} on the calling thread"
    );
    assert_eq!(loader.stats().versions[0].1.slow_calls, 1);
}

#[test]
fn a_trap_is_named_with_its_place() {
    let fault = fault_of(&Guest::hostile("(call $boom)").with_extra("(func $boom unreachable)"));
    let PolicyFault::Trap(text) = fault else {
        panic!("{fault:?}")
    };
    assert_eq!(text, "wasm `unreachable` instruction executed in boom");
}

#[test]
fn memory_without_end_is_refused_at_the_limit() {
    let deed = "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) (unreachable)";
    assert_eq!(
        fault_of(&Guest::hostile(deed)),
        PolicyFault::OutOfMemory(16 << 20)
    );
}

#[test]
fn a_guest_that_lives_with_refused_memory_is_heard() {
    let deed = "(drop (memory.grow (i32.const 60000)))";
    let loader = loader();
    let policy = policy(&loader, &Guest::hostile(deed));
    let answered = Routing::new(1, &[9]).ask(&*policy);
    assert_eq!(
        answered.result,
        Ok(Answer::Routing(RoutingDecision::Scores(vec![9])))
    );
}

#[test]
fn a_version_that_takes_much_memory_leaves_the_calling_thread() {
    let loader = loader();
    let is_slow_after = |pages: u32| {
        let policy = policy(
            &loader,
            &Guest::hostile(&format!("(drop (memory.grow (i32.const {pages})))")),
        );
        assert!(Routing::new(1, &[1]).ask(&*policy).result.is_ok());
        loader.stats().versions.last().unwrap().1.is_slow
    };
    // Guests begin with two pages, and 32 pages are 2 MiB.
    assert!(!is_slow_after(30));
    assert!(is_slow_after(31));
}

#[test]
fn a_table_without_end_is_refused_at_the_limit() {
    let deed = "(loop $more (br_if $more
        (i32.ne (table.grow $t (ref.null func) (i32.const 1000)) (i32.const -1)))) (unreachable)";
    let guest = Guest::hostile(deed).with_extra("(table $t 1 funcref)");
    assert_eq!(fault_of(&guest).word(), "out-of-memory");
}

#[test]
fn deep_recursion_ends_at_the_stack_limit() {
    // The usual budget is gone before the stack is.
    let mut limits = patient();
    limits.inline_call.base = 2_000_000;
    limits.inline_call.ceiling = 4_000_000;
    let loader = loader_with(limits);
    let guest = Guest::hostile("(drop (call $deep (i64.const 1)))").with_extra(
        "(func $deep (param i64) (result i64)
            (i64.add (local.get 0) (call $deep (i64.add (local.get 0) (i64.const 1)))))",
    );
    let policy = policy(&loader, &guest);
    let fault = misbehave(&*policy);
    assert!(
        matches!(&fault, PolicyFault::Trap(text) if text.contains("call stack exhausted")),
        "{fault:?}"
    );
    assert_echo(&*policy);
}

#[test]
fn a_flood_of_log_lines_is_paid_for_in_fuel() {
    let deed = "(loop $l (call $log (i32.const 1) (i32.const 1024) (i32.const 16)) (br $l))";
    let guest = Guest {
        imports: LOG,
        ..Guest::hostile(deed)
    };
    assert_eq!(fault_of(&guest), PolicyFault::OutOfFuel(84_000));
}

#[test]
fn a_host_call_with_a_bad_pointer_traps_the_guest_only() {
    let deed = "(call $log (i32.const 1) (i32.const 0x7fff0000) (i32.const 16))";
    let guest = Guest {
        imports: LOG,
        ..Guest::hostile(deed)
    };
    let fault = fault_of(&guest);
    assert!(
        matches!(fault, PolicyFault::BadAnswer(_) | PolicyFault::Trap(_)),
        "{fault:?}"
    );
}

#[test]
fn a_loop_before_the_first_call_is_found_when_loading() {
    let start = Guest::echo().with_extra("(func $s (loop $l (br $l))) (start $s)");
    let configure = Guest {
        configure: ENDLESS.into(),
        ..Guest::echo()
    };
    let trap = Guest {
        configure: "unreachable".into(),
        ..Guest::echo()
    };
    for (guest, code, phrase) in [
        (start, "cannot-start", "used up its budget of 50000000 fuel"),
        (
            configure,
            "configure-failed",
            "used up its budget of 50000000 fuel",
        ),
        (trap, "configure-failed", "unreachable"),
    ] {
        let PolicyRejection(report) = rejection(&guest);
        let finding = report.findings.last().unwrap();
        assert_eq!(finding.code, code);
        assert!(finding.message.contains(phrase), "{}", finding.message);
    }
}

#[test]
fn a_configure_that_loops_later_costs_a_call_less_than_a_millisecond() {
    // The state outlives instances: the first is configured at once, later ones loop.
    let configure = format!(
        "(if (i64.gt_u (call $add (i32.const 1024) (i32.const 1) (i64.const 1)) (i64.const 1))
            (then (loop $l (br $l)))) {CONFIGURED}"
    );
    let guest = Guest {
        imports: STATE_ADD,
        configure,
        ..Guest::echo()
    };
    let loader = loader();
    let policy = policy(&loader, &guest);
    assert_echo(&*policy);
    let question = Routing::new(0, &[1]);
    let before = thread_time();
    let answered = question.ask(&*policy);
    let spent = thread_time() - before;
    println!("an endless loop in configure cost a caller {spent:?} of processor time");
    assert_eq!(answered.result, Err(PolicyFault::OutOfFuel(400_000)));
    assert!(spent < Duration::from_millis(1), "{spent:?}");
}

#[test]
fn the_clock_ends_what_fuel_does_not() {
    let limits = Limits {
        inline_deadline_ms: 5,
        setup_deadline_ms: 10_000,
        ..patient()
    };
    let mut generous = limits;
    generous.inline_call.base = u64::MAX / 4;
    generous.inline_call.ceiling = u64::MAX / 2;
    let loader = loader_with(generous);
    let policy = policy(&loader, &Guest::hostile(ENDLESS));
    assert_eq!(misbehave(&*policy), PolicyFault::TimedOut(5));
    assert_echo(&*policy);
}

#[test]
fn a_tenants_worst_policy_leaves_the_neighbour_alone() {
    let loader = loader();
    let neighbour = load(&loader, "alice", &Guest::echo().component()).unwrap();
    let deeds = [
        ENDLESS,
        "unreachable",
        "(drop (memory.grow (i32.const 200))) (unreachable)",
    ];
    let hostile: Vec<_> = deeds
        .iter()
        .map(|deed| policy(&loader, &Guest::hostile(deed)))
        .collect();
    let over = AtomicBool::new(false);
    let asked = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut asked = 0_u32;
            while !over.load(Ordering::Relaxed) || asked < 100 {
                assert_echo(&*neighbour);
                asked += 1;
            }
            asked
        });
        for _ in 0..100 {
            hostile.iter().for_each(|policy| drop(misbehave(&**policy)));
        }
        over.store(true, Ordering::Relaxed);
        asking.join().unwrap()
    });
    println!("the neighbour was answered {asked} times meanwhile");
    let all = loader.stats().versions;
    let (_, stats) = all
        .iter()
        .find(|(key, _)| key.scope == crate::support::tenant("alice"))
        .unwrap();
    assert!(stats.faults.values().all(|count| *count == 0), "{stats:?}");
    drop((neighbour, hostile));
    eventually("every instance is gone", || loader.stats().live_instances == 0);
}

#[test]
fn a_tenant_has_what_its_quotas_leave_it() {
    let narrow = TenantLimits {
        fuel_per_call: Some(30_000),
        memory_mib: Some(1),
        concurrent_calls: Some(0),
        ..TenantLimits::default()
    };
    let name = |name| TenantName::new(name).unwrap();
    let calls = TenantLimits {
        concurrent_calls: None,
        ..narrow
    };
    let loader = loader();
    let usual = TenantLimits {
        fuel_per_call: Some(50_000),
        ..TenantLimits::default()
    };
    let own = [
        (name("barred"), narrow),
        (name("small"), calls),
        (name("other"), TenantLimits::default()),
    ];
    let loader = loader.with_tenant_limits(usual, own);
    let endless = Guest::hostile(ENDLESS).component();
    let of = |tenant, component: &[u8]| load(&loader, tenant, component).unwrap();
    assert_eq!(misbehave(&*of("barred", &endless)), PolicyFault::Saturated);
    assert_eq!(misbehave(&*of("small", &endless)), PolicyFault::OutOfFuel(30_000));
    assert_eq!(misbehave(&*of("other", &endless)), PolicyFault::OutOfFuel(84_000));
    assert_eq!(misbehave(&*of("usual", &endless)), PolicyFault::OutOfFuel(50_000));
    let greedy = Guest::hostile(
        "(loop $l (br_if $l (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) (unreachable)",
    );
    let greedy = greedy.component();
    assert_eq!(
        misbehave(&*of("small", &greedy)),
        PolicyFault::OutOfMemory(1 << 20)
    );
    assert_eq!(
        misbehave(&*of("other", &greedy)),
        PolicyFault::OutOfMemory(16 << 20)
    );
}

#[test]
fn calls_beyond_a_full_lane_are_answered_saturated() {
    let limits = Limits {
        slow_threads: 1,
        slow_queue_per_scope: 1,
        slow_queue: 1,
        inline_calls_per_tenant: 0,
        setup_deadline_ms: 10_000,
        ..patient()
    };
    let mut slow = limits;
    slow.slow_deadline_ms = 300;
    slow.inline_call.base = u64::MAX / 4;
    slow.inline_call.ceiling = u64::MAX / 2;
    let loader = loader_with(slow);
    let policy = policy(&loader, &Guest::hostile(ENDLESS));
    let words = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| misbehave(&*policy).word()))
            .collect();
        calls
            .into_iter()
            .map(|call| call.join().unwrap())
            .collect::<Vec<_>>()
    });
    assert!(
        words.contains(&"saturated") && words.contains(&"timed-out"),
        "{words:?}"
    );
}
