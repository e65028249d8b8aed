//! Compiling in a process of its own: the same policies, and compile bombs that end with it.

use crate::guests::Guest;
use crate::support::{assert_echo, load, loader_compiling, loader_with_worker, patient};
use portolan_plugin::{Compilation, CompileBudget, CompileBudgets, ComponentLoader, Limits};
use portolan_policy::QuestionKind;
use portolan_ports::PolicyLoader;
use rustix::process::Signal;
use std::fmt::Write;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A component around a core module.
fn component_of(module: &str) -> Vec<u8> {
    wat::parse_str(format!("(component (core module {module}))")).unwrap()
}

/// Limits that leave the compiler this many seconds and MiB, whatever the component's size.
pub(crate) fn budget(cpu_seconds: u64, mib: u64) -> Limits {
    let budget = CompileBudget {
        cpu_seconds,
        address_space_bytes: mib << 20,
    };
    let compile = CompileBudgets {
        compact: budget,
        medium: budget,
        large: budget,
    };
    Limits { compile, ..patient() }
}

/// Compiles a bomb without the checks that come before, and gives the code of the finding, if there was one.
fn detonate(loader: &ComponentLoader, name: &str, bomb: &[u8]) -> Option<String> {
    let begun = Instant::now();
    let code = loader.compile(bomb).err().and_then(|rejection| {
        let finding = rejection.0.findings.last().cloned();
        finding.map(|finding| {
            println!(
                "{name}: {} bytes, {:?}: {}",
                bomb.len(),
                begun.elapsed(),
                finding.message
            );
            finding.code
        })
    });
    if code.is_none() {
        println!("{name}: {} bytes, compiled in {:?}", bomb.len(), begun.elapsed());
    }
    code
}

fn repeated(times: usize, of: &str) -> String {
    of.repeat(times)
}

/// Just below the format's own limit of 7,654,321 bytes.
pub(crate) fn huge_function() -> Vec<u8> {
    let body = repeated(870_000, "(global.set 0 (i32.add (global.get 0) (i32.const 77)))");
    component_of(&format!("(global (mut i32) (i32.const 0)) (func {body})"))
}

fn many_functions() -> Vec<u8> {
    let mut functions = String::new();
    for i in 0..50_000 {
        let _ = write!(
            functions,
            "(func (param i32) (result i32) (i32.mul (local.get 0) (i32.const {i})))"
        );
    }
    component_of(&functions)
}

fn deep_nesting() -> Vec<u8> {
    component_of(&format!(
        "(func {} {})",
        repeated(100_000, "block "),
        repeated(100_000, "end ")
    ))
}

fn many_locals() -> Vec<u8> {
    let sets: String = (0..50_000).fold(String::new(), |mut sets, i| {
        let _ = write!(
            sets,
            "(local.set {i} (i32.load (local.get {})))",
            (i * 7919) % 50_000
        );
        sets
    });
    let locals = repeated(49_999, "i32 ");
    component_of(&format!("(memory 1) (func (param i32) (local {locals}) {sets})"))
}

fn nested_components() -> Vec<u8> {
    let nested = (0..100).fold(String::new(), |inner, _| format!("(component {inner})"));
    wat::parse_str(nested).unwrap()
}

#[test]
fn a_component_compiled_by_the_worker_answers_as_one_compiled_here() {
    let loader = loader_with_worker(patient());
    let component = Guest::echo().component();
    let report = loader.check(Some(QuestionKind::Routing), &component, None);
    assert!(report.ok, "{report:?}");
    let sealed = loader.compile(&component).unwrap();
    assert_echo(&*load(&loader, "t", &component).unwrap());
    assert_eq!(loader.stats().compiled, 1);
    let here = crate::support::loader();
    let bound = crate::support::binding(crate::support::tenant("t"), QuestionKind::Routing, &component);
    assert_echo(&*here.load(&bound, &component, Some(&sealed)).unwrap());
    assert_eq!(here.stats().artefacts_used, 1, "artefacts of both are the same");
}

#[test]
fn cost_of_the_worker() {
    let time = |loader: &ComponentLoader| {
        let begun = Instant::now();
        loader.compile(&Guest::echo().component()).unwrap();
        begun.elapsed()
    };
    let fastest = |make: &dyn Fn() -> ComponentLoader| (0..3).map(|_| time(&make())).min().unwrap();
    let child = fastest(&|| loader_with_worker(patient()));
    let here = fastest(&crate::support::loader);
    println!("compiling a small guest: {here:?} in this process, {child:?} in a process of its own");
}

#[test]
fn compile_bombs_end_with_their_process() {
    let loader = loader_with_worker(budget(1, 1024));
    let bombs = [
        ("7 MB in one function", huge_function()),
        ("50,000 functions", many_functions()),
        ("100,000 nested blocks", deep_nesting()),
        ("50,000 locals", many_locals()),
        ("100 nested components", nested_components()),
    ];
    for (name, bomb) in &bombs {
        let begun = Instant::now();
        if let Some(code) = detonate(&loader, name, bomb) {
            assert!(
                matches!(&*code, "compile-time" | "not-compiled" | "compiler-busy"),
                "{name}: {code}"
            );
        }
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{name} took {:?}",
            begun.elapsed()
        );
        assert!(!loader.check(None, bomb, None).ok, "{name} passed the check");
    }
    let code = detonate(&loader, bombs[0].0, &bombs[0].1);
    assert!(code.is_some(), "seven megabytes compiled within a second");
    assert_echo(&*load(&loader, "t", &Guest::echo().component()).unwrap());
}

/// The limit by the clock is three times as long, and a machine that is busy reaches that one first.
#[test]
fn a_worker_that_used_up_its_processor_time_is_ended_by_the_system() {
    let mut worker = Command::new(env!("CARGO_BIN_EXE_portolan-compile-worker"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let budget = [1_u64, 1 << 30].map(u64::to_le_bytes).concat();
    let mut input = worker.stdin.take().unwrap();
    input.write_all(&[budget, huge_function()].concat()).unwrap();
    drop(input);
    let ended = worker.wait().unwrap();
    assert_eq!(ended.signal(), Some(Signal::XCPU.as_raw()), "{ended}");
}

#[test]
fn a_component_that_needs_more_memory_than_it_may_is_not_compiled() {
    let loader = loader_with_worker(budget(60, 192));
    assert_eq!(
        detonate(&loader, "7 MB in 192 MiB", &huge_function()).as_deref(),
        Some("not-compiled")
    );
    assert_echo(&*load(&loader, "t", &Guest::echo().component()).unwrap());
}

#[test]
fn a_worker_that_says_nothing_is_the_hosts_fault() {
    for program in ["/bin/true", "/nonexistent/portolan"] {
        let loader = loader_compiling(Compilation::Child(program.into()), patient());
        let code = detonate(&loader, program, &Guest::echo().component());
        assert_eq!(code.as_deref(), Some("not-compiled"));
    }
}

/// It stands for one that the machine gives no time: it waits, and is not looked at by the system's limit.
#[test]
fn a_worker_without_processor_time_says_nothing_of_its_component() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("worker");
    // Written by another process: a file that this one has open cannot be run, and other tests fork meanwhile.
    let write = "printf '#!/bin/sh\\nexec sleep 60\\n' > \"$0\" && chmod 755 \"$0\"";
    let written = Command::new("sh")
        .args(["-c", write])
        .arg(&program)
        .status()
        .unwrap();
    assert!(written.success());
    let loader = loader_compiling(Compilation::Child(program), budget(1, 64));
    let begun = Instant::now();
    let code = detonate(&loader, "a worker that sleeps", &Guest::echo().component());
    assert_eq!(code.as_deref(), Some("compiler-busy"));
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "it was waited for: {:?}",
        begun.elapsed()
    );
}
