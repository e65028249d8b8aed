//! What `check` says about components that cannot be policies.

use crate::guests::{Guest, STATE_ADD};
use crate::support::{loader, loader_with, patient};
use portolan_plugin::Limits;
use portolan_policy::QuestionKind;
use portolan_ports::{Finding, PolicyLoader, PolicyReport, Severity};

fn check(component: &[u8]) -> PolicyReport {
    loader().check(None, component, None)
}

/// The finding of this code, which must be there.
fn finding<'a>(report: &'a PolicyReport, code: &str) -> &'a Finding {
    report
        .findings
        .iter()
        .find(|f| f.code == code)
        .unwrap_or_else(|| panic!("no {code} in {report:#?}"))
}

/// Refused with this code, a message with this phrase, and some help.
fn refused(component: &[u8], code: &str, phrase: &str) {
    refused_as(&check(component), code, phrase);
}

fn refused_as(report: &PolicyReport, code: &str, phrase: &str) {
    assert!(!report.ok, "{report:#?}");
    let finding = finding(report, code);
    assert_eq!(finding.severity, Severity::Error);
    assert!(
        finding.message.contains(phrase),
        "{phrase:?} is not in {:?}",
        finding.message
    );
    assert!(!finding.help.is_empty());
}

#[test]
fn a_good_component_passes_with_its_measures() {
    let component = Guest::echo().component();
    let report = loader().check(Some(QuestionKind::Routing), &component, None);
    assert!(report.ok, "{report:#?}");
    assert_eq!(report.question, Some(QuestionKind::Routing));
    assert_eq!((report.sha256.len(), report.bytes), (64, component.len() as u64));
    assert!(
        report.findings.iter().all(|f| f.severity == Severity::Note),
        "{report:#?}"
    );
    assert!(finding(&report, "class").message.contains("compact class"));
    assert!(finding(&report, "call-fuel").message.contains("of 84000 fuel"));
}

#[test]
fn exports_beyond_the_contract_do_no_harm() {
    let report = check(&Guest::echo().component_with_init());
    assert!(report.ok, "{report:#?}");
}

#[test]
fn files_that_are_no_components_are_recognised() {
    refused(b"", "empty", "the file is empty");
    refused(b"\x7fELF\x02\x01\x01", "not-wasm", "an ELF executable");
    refused(b"PK\x03\x04rest", "not-wasm", "a zip archive");
    refused(b"\x1f\x8b\x08rest", "not-wasm", "gzip-compressed data");
    refused(b"\n <!DOCTYPE html><p>404", "not-wasm", "an HTML page");
    refused(b"(component)", "not-wasm", "WebAssembly text");
    refused("héllo".as_bytes(), "not-wasm", "but text");
    refused(b"\xff\xfe\x00\x01", "not-wasm", "unknown binary data");
    refused(b"\0as", "truncated", "ends after 3 bytes");
    refused(b"\0asm\x0d\0\0\0", "wasm-version", "version 0d 00 00 00");
}

#[test]
fn a_core_module_is_refused_with_the_way_to_mend_it() {
    let module = Guest::echo().core_module();
    refused(
        &module,
        "core-module",
        "a core WebAssembly module, not a component",
    );
    let report = check(&module);
    assert!(
        finding(&report, "core-module")
            .help
            .contains("portolan policy componentize")
    );
}

#[test]
fn a_compiled_artefact_is_never_taken() {
    let sealed = loader().compile(&Guest::echo().component()).unwrap();
    refused(&sealed, "precompiled", "native code");
    refused(&sealed[40..], "precompiled", "native code");
}

#[test]
fn a_component_cut_anywhere_is_refused() {
    let component = Guest::echo().component();
    let loader = loader();
    for end in (1..component.len()).step_by(97) {
        let report = loader.check(None, &component[..end], None);
        assert!(!report.ok, "{end} of {} bytes passed", component.len());
    }
    refused(
        &component[..component.len() / 2],
        "truncated",
        "in the middle of a section",
    );
}

#[test]
fn damaged_components_never_panic() {
    let component = Guest::cost().component();
    let loader = loader();
    for i in (8..component.len()).step_by(61) {
        let mut damaged = component.clone();
        damaged[i] ^= 0x55;
        loader.check(Some(QuestionKind::Cost), &damaged, None);
    }
}

#[test]
fn size_is_checked_first_and_told() {
    let component = Guest::echo().component();
    let exact = Limits {
        component_bytes: component.len(),
        ..patient()
    };
    assert!(loader_with(exact).check(None, &component, None).ok);
    let small = Limits {
        component_bytes: component.len() - 1,
        ..patient()
    };
    let report = loader_with(small).check(None, &component, None);
    refused_as(
        &report,
        "too-large",
        &format!("has {} bytes, at most {}", component.len(), component.len() - 1),
    );
}

#[test]
fn imports_beyond_the_contract_are_named() {
    let wasi = |name: &str| wat::parse_str(format!(r#"(component (import "{name}" (instance)))"#)).unwrap();
    refused(
        &wasi("wasi:cli/environment@0.2.6"),
        "wasi-import",
        "imports wasi:cli/environment@0.2.6",
    );
    refused(
        &wasi("acme:clock/now@1.0.0"),
        "unknown-import",
        "imports acme:clock/now@1.0.0",
    );
    refused(
        &wasi("portolan:policy/secrets@0.1.0"),
        "unknown-import",
        "imports portolan:policy/secrets@0.1.0",
    );
    let function = wat::parse_str(r#"(component (import "now" (func (result u64))))"#).unwrap();
    refused(&function, "unknown-import", "imports now");
}

#[test]
fn another_version_of_the_contract_is_refused_with_both_versions() {
    let import = r#"(component (import "portolan:policy/host@0.2.0" (instance)))"#;
    let report = check(&wat::parse_str(import).unwrap());
    refused_as(
        &report,
        "wit-version",
        "imports portolan:policy/host@0.2.0; this host serves portolan:policy@0.1.0",
    );
    let export = r#"(component (instance $i) (export "portolan:policy/routing-policy@0.2.0" (instance $i)))"#;
    let report = check(&wat::parse_str(export).unwrap());
    refused_as(
        &report,
        "wit-version",
        "exports portolan:policy/routing-policy@0.2.0",
    );
}

#[test]
fn the_question_must_be_the_one_asked_for() {
    let report = loader().check(Some(QuestionKind::Routing), &Guest::cost().component(), None);
    refused_as(&report, "other-question", "answers cost, but routing is wanted");
    assert_eq!(report.question, Some(QuestionKind::Cost));
    refused(
        &wat::parse_str("(component)").unwrap(),
        "no-question",
        "exports nothing",
    );
    let both = r#"(component (instance $i)
        (export "portolan:policy/cost-policy@0.1.0" (instance $i))
        (export "portolan:policy/routing-policy@0.1.0" (instance $i)))"#;
    refused(
        &wat::parse_str(both).unwrap(),
        "several-questions",
        "answers cost and routing",
    );
}

#[test]
fn a_component_without_lifecycle_or_with_other_types_is_refused() {
    let bare = r#"(component (instance $i) (export "portolan:policy/cost-policy@0.1.0" (instance $i)))"#;
    refused(
        &wat::parse_str(bare).unwrap(),
        "no-lifecycle",
        "portolan:policy/lifecycle@0.1.0",
    );
    let empty = r#"(component (instance $i)
        (export "portolan:policy/lifecycle@0.1.0" (instance $i))
        (export "portolan:policy/cost-policy@0.1.0" (instance $i)))"#;
    refused(
        &wat::parse_str(empty).unwrap(),
        "wrong-types",
        "does not fit the world `cost`",
    );
}

#[test]
fn measures_beyond_the_limits_are_told_with_numbers() {
    let memories = "(component (core module (memory 1)) (core module (memory 1)))";
    refused(
        &wat::parse_str(memories).unwrap(),
        "too-many-memories",
        "has 2 memories, at most 1",
    );
    let tables = format!("(component (core module {}))", "(table 1 funcref)".repeat(5));
    refused(
        &wat::parse_str(tables).unwrap(),
        "too-many-tables",
        "has 5 tables, at most 4",
    );
    let instances = format!(
        "(component (core module $m) {})",
        "(core instance (instantiate $m))".repeat(17)
    );
    refused(
        &wat::parse_str(instances).unwrap(),
        "too-many-instances",
        "has 17 core instances, at most 16",
    );
    let functions = format!("(component (core module {}))", "(func)".repeat(50_000));
    refused(
        &wat::parse_str(functions).unwrap(),
        "too-many-functions",
        "has 50000 functions, at most 40000",
    );
    let nested = (0..100).fold(String::new(), |inner, _| format!("(component {inner})"));
    refused(
        &wat::parse_str(nested).unwrap(),
        "too-many-components",
        "has 99 components within it, at most 64",
    );
    // Few bytes, and types of gigabytes were they validated.
    let imports: String = (0..1000)
        .map(|i| format!("(import \"f{i}\" (func (param \"a\" (own $r))))"))
        .collect();
    let instances: String = (1..900)
        .map(|i| {
            format!(
                "(instance $i{i} (instantiate $c (with \"x\" (instance $i{}))))",
                i - 1
            )
        })
        .collect();
    let bomb = format!(
        "(component (import \"x\" (instance $i0 (export \"r\" (type (sub resource))))) \
         (component $c (import \"x\" (instance $x (export \"r\" (type (sub resource))))) \
         (alias export $x \"r\" (type $r)) {imports}) {instances})"
    );
    refused(
        &wat::parse_str(bomb).unwrap(),
        "too-many-components",
        "at most 128 are read",
    );
    let function = format!("(component (core module (func {})))", "nop ".repeat(512 << 10));
    refused(
        &wat::parse_str(function).unwrap(),
        "function-too-large",
        "at most 524288 are compiled",
    );
}

#[test]
fn names_that_collide_are_refused() {
    // wat refuses the same name twice, so one byte of the second is changed afterwards.
    let mut component = wat::parse_str(
        r#"(component (core module $m (func (export "f"))) (core instance $i (instantiate $m))
            (func $f (canon lift (core func $i "f")))
            (export "same-name" (func $f)) (export "some-name" (func $f)))"#,
    )
    .unwrap();
    let at = component
        .windows(9)
        .position(|bytes| bytes == b"some-name")
        .unwrap();
    component[at + 1] = b'a';
    refused(&component, "invalid", "same-name");
}

#[test]
fn features_that_policies_do_not_need_are_refused() {
    let threads = "(component (core module (memory 1 1 shared)))";
    refused(&wat::parse_str(threads).unwrap(), "invalid", "threads");
    let memory64 = "(component (core module (memory i64 1)))";
    refused(&wat::parse_str(memory64).unwrap(), "invalid", "memory64");
}

#[test]
fn too_much_memory_is_refused_with_the_limit() {
    let component = Guest {
        pages: 257,
        ..Guest::echo()
    }
    .component();
    refused(&component, "too-much-memory", "16777216 bytes");
    let report = check(
        &Guest {
            pages: 256,
            ..Guest::echo()
        }
        .component(),
    );
    assert!(report.ok, "{report:#?}");
    assert_eq!(finding(&report, "much-memory").severity, Severity::Warning);
}

#[test]
fn a_probe_that_traps_is_a_warning_with_the_trap() {
    let report = check(&Guest::always("unreachable").component());
    let warning = finding(&report, "probe-failed");
    assert!(report.ok);
    assert_eq!(warning.severity, Severity::Warning);
    assert!(
        warning.message.contains("unreachable") && warning.message.contains("rows of"),
        "{}",
        warning.message
    );
}

#[test]
fn one_that_is_stopped_by_fuel_or_configures_badly_is_told() {
    let report = check(
        &Guest {
            configure: "(loop $l (br $l)) (unreachable)".into(),
            ..Guest::echo()
        }
        .component(),
    );
    refused_as(&report, "configure-failed", "budget of 50000000 fuel");
    let looping = check(&Guest::always("(loop $l (br $l))").component());
    assert!(
        finding(&looping, "probe-failed")
            .message
            .contains("used up its budget")
    );
}

#[test]
fn state_does_not_make_probes_differ() {
    let deed = "(i32.store8 (i32.const 1040) (i32.const 1))
        (i32.store (i32.const 1044) (i32.wrap_i64 (call $add (i32.const 1024) (i32.const 1) (i64.const 1))))
        (return (i32.const 1040))";
    let report = check(
        &Guest {
            imports: STATE_ADD,
            ..Guest::always(deed)
        }
        .component(),
    );
    assert!(
        report.ok && report.findings.iter().all(|f| f.code != "nondeterministic"),
        "{report:#?}"
    );
}

#[test]
fn names_of_a_stranger_are_shortened_and_counted() {
    let long = format!("acme:{}/x", "a".repeat(60_000));
    let imports: String = (0..200)
        .map(|n| format!(r#"(import "{long}{n}" (instance))"#))
        .collect();
    let report = check(&wat::parse_str(format!("(component {imports})")).unwrap());
    refused_as(&report, "unknown-import", "… (60");
    let said: usize = report.findings.iter().map(|finding| finding.message.len()).sum();
    assert!(
        report.findings.len() < 40 && said < 10_000,
        "{} findings, {said} bytes",
        report.findings.len()
    );

    let wasi: String = (0..50)
        .map(|n| format!(r#"(import "wasi:x{n}/y@0.2.0" (instance))"#))
        .collect();
    let report = check(&wat::parse_str(format!("(component {wasi})")).unwrap());
    refused_as(&report, "wasi-import", "wasi:x0/y@0.2.0, ");
    refused_as(&report, "wasi-import", " and 26 more");
}
