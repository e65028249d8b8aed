//! Components from WebAssembly text that import WASI, fixed and asked.

use super::{Deed, FixError, fix};
use crate::lab::component::Workshop;
use portolan_plugin::POLICY_WIT;
use portolan_policy::{
    Answer, Call, Matrix, NameTables, Policy, PolicyFault, Question, RequestColumn, RoutingDecision,
};
use portolan_ports::{PolicyLoader, PolicyReport};
use std::collections::BTreeMap;
use std::sync::Arc;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// As much of WASI as the guests below import.
const WASI: [(&str, &str); 4] = [
    (
        "io.wit",
        "package wasi:io@0.2.6;
         interface streams {
           resource output-stream { check-write: func() -> result<u64>; }
         }",
    ),
    (
        "random.wit",
        "package wasi:random@0.2.6; interface random { get-random-u64: func() -> u64; }",
    ),
    (
        "cli.wit",
        "package wasi:cli@0.2.6;
         interface environment { get-environment: func() -> list<tuple<string, string>>; }
         interface stdout { use wasi:io/streams@0.2.6.{output-stream}; get-stdout: func() -> output-stream; }",
    ),
    ("other.wit", "package other:host@1.0.0; interface clock { now: func() -> u64; }"),
];

/// A router. It scores the one route with the length of the environment that it gets, having filled the place of the
/// answer with rubbish; and it draws a random number when its request's first column is 1.
const ROUTER: &str = r#"
    (import "wasi:cli/environment@0.2.6" "get-environment" (func $environment (param i32)))
    (import "wasi:random/random@0.2.6" "get-random-u64" (func $random (result i64)))
    (import "wasi:cli/stdout@0.2.6" "get-stdout" (func $stdout (result i32)))
    (import "wasi:io/streams@0.2.6" "[resource-drop]output-stream" (func $drop (param i32)))
    (memory (export "memory") 1)
    (global $next (mut i32) (i32.const 4096))
    (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
        (global.set $next (i32.add (global.get $next) (i32.const 1024)))
        (i32.sub (global.get $next) (i32.const 1024)))
    (func (export "portolan:policy/lifecycle@0.1.0#configure") (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)
        (result i32) (i32.const 1024))
    (func (export "portolan:policy/routing-policy@0.1.0#decide") (param $request i32) (param i32 i32 i32)
        (param $cells i32) (param i32 i32 i32) (result i32)
        (if (i32.eq (i32.load (local.get $request)) (i32.const 1))
            (then (call $drop (call $stdout)) (drop (call $random))))
        (i64.store (i32.const 2048) (i64.const -1))
        (call $environment (i32.const 2048))
        (i32.store (i32.const 1052) (i32.load (i32.const 2052)))
        (i32.store8 (i32.const 1040) (i32.const 0))
        (i32.store (i32.const 1044) (i32.const 1052))
        (i32.store (i32.const 1048) (i32.ne (local.get $cells) (i32.const 0)))
        (i32.const 1040))"#;

/// A component of the routing world that also imports these interfaces.
fn component(imports: &[&str], module: &str) -> Vec<u8> {
    let mut resolve = Resolve::default();
    resolve.push_str("policy.wit", POLICY_WIT).unwrap();
    for (name, text) in WASI {
        resolve.push_str(name, text).unwrap();
    }
    let imports: String = imports.iter().map(|name| format!("import {name};\n")).collect();
    let world =
        format!("package test:guest; world guest {{ include portolan:policy/routing@0.1.0; {imports} }}");
    let package = resolve.push_str("guest.wit", &world).unwrap();
    let world = resolve.select_world(&[package], Some("guest")).unwrap();
    let mut module = wat::parse_str(format!("(module {module})")).unwrap();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8, false).unwrap();
    let mut encoder = ComponentEncoder::default();
    encoder.validate(true).module(&module).unwrap();
    encoder.encode().unwrap()
}

fn router() -> Vec<u8> {
    let imports = [
        "wasi:cli/environment@0.2.6",
        "wasi:random/random@0.2.6",
        "wasi:cli/stdout@0.2.6",
        "wasi:io/streams@0.2.6",
    ];
    component(&imports, ROUTER)
}

fn check(component: &[u8]) -> PolicyReport {
    Workshop::new().unwrap().loader().check(None, component, None)
}

fn load(component: &[u8]) -> Arc<dyn Policy> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fixed.wasm");
    std::fs::write(&path, component).unwrap();
    let workshop = Workshop::new().unwrap();
    let file = workshop.open(&path, None).unwrap();
    workshop.load(&file, "", &NameTables::default()).unwrap()
}

fn ask(policy: &dyn Policy, first_column: u32) -> Result<Answer, PolicyFault> {
    let mut request = vec![0; RequestColumn::COUNT];
    request[0] = first_column;
    let call = Call {
        question: Question::Routing {
            request: &request,
            routes: Matrix::new(1, &[7]),
            costs: Matrix::new(1, &[7]),
        },
        labels: &BTreeMap::new(),
        request_id: "test",
    };
    policy.ask(&call).result
}

#[test]
fn a_component_with_wasi_passes_once_it_is_fixed_and_keeps_its_class() {
    let foreign = router();
    let report = check(&foreign);
    assert!(!report.ok);
    let finding = report.findings.iter().find(|f| f.code == "wasi-import").unwrap();
    assert!(finding.help.contains("portolan policy fix"), "{finding:?}");

    let fixed = fix(&foreign).unwrap();
    let report = check(&fixed.component);
    assert!(report.ok, "{report:#?}");
    let deeds: Vec<_> = fixed.stubs.iter().map(|stub| (&*stub.name, stub.does)).collect();
    assert_eq!(deeds.len(), 3, "{deeds:?}");
    assert!(deeds.contains(&("wasi:cli/environment@0.2.6#get-environment", Deed::AnswersNothing)));
    assert!(deeds.contains(&("wasi:random/random@0.2.6#get-random-u64", Deed::Traps)));
    let class = report.findings.iter().find(|f| f.code == "class").unwrap();
    assert!(class.message.contains("compact"), "{class:?}");
}

#[test]
fn a_fixed_component_runs_and_a_stub_that_traps_says_which_it_is() {
    let policy = load(&fix(&router()).unwrap().component);
    let nothing = Answer::Routing(RoutingDecision::Scores(vec![0]));
    assert_eq!(ask(&*policy, 0), Ok(nothing), "the environment has no entry");
    match ask(&*policy, 1) {
        Err(PolicyFault::Trap(text)) => {
            assert!(
                text.contains("wasi:cli/stdout@0.2.6#get-stdout (stubbed by policy fix)"),
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_neither_of_the_contract_nor_of_wasi_is_named() {
    let module = format!(r#"(import "other:host/clock@1.0.0" "now" (func (result i64))) {ROUTER}"#);
    let imports = [
        "wasi:cli/environment@0.2.6",
        "wasi:random/random@0.2.6",
        "wasi:cli/stdout@0.2.6",
        "wasi:io/streams@0.2.6",
        "other:host/clock@1.0.0",
    ];
    let error = fix(&component(&imports, &module)).unwrap_err();
    assert!(matches!(error, FixError::UnknownImports(_)), "{error}");
    assert!(error.to_string().contains("other:host/clock@1.0.0"), "{error}");
}

/// A component that gives what it has from WASI to one inside it.
fn composed(name_inside: &str) -> Vec<u8> {
    wat::parse_str(format!(
        r#"(component
            (import "wasi:random/random@0.2.6" (instance $random (export "get-random-u64" (func (result u64)))))
            (component $inner
                (import "{name_inside}" (instance $random (export "get-random-u64" (func (result u64)))))
                (core func $draw (canon lower (func $random "get-random-u64")))
                (func (export "draw") (result u64) (canon lift (core func $draw))))
            (instance $made (instantiate $inner (with "{name_inside}" (instance $random))))
            (export "draw" (func $made "draw")))"#
    ))
    .unwrap()
}

#[test]
fn a_component_inside_is_fixed_too() {
    let fixed = fix(&composed("wasi:random/random@0.2.6")).unwrap();
    assert_eq!(fixed.stubs.len(), 1, "{:?}", fixed.stubs);
    assert!(matches!(fix(&fixed.component), Err(FixError::NothingToFix)));
}

#[test]
fn what_needs_no_fixing_or_cannot_be_fixed_is_told_apart() {
    let fixed = fix(&router()).unwrap().component;
    assert!(matches!(fix(&fixed), Err(FixError::NothingToFix)));
    assert!(matches!(fix(b"\0asm\x01\0\0\0"), Err(FixError::NotComponent)));
    assert!(matches!(fix(b"text"), Err(FixError::NotComponent)));
    let foreign = router();
    for end in (0..foreign.len()).step_by(97) {
        assert!(fix(&foreign[..end]).is_err(), "cut to {end} bytes");
    }
    // The outer component hands an instance of WASI to the inner one under a name of its own.
    assert!(
        matches!(fix(&composed("random")), Err(FixError::HandedOn(name)) if name.contains("wasi:random"))
    );
}
