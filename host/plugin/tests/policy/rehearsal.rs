//! A check tries a component with the configuration and the names it will be bound with.

use crate::guests::{CONFIGURED, Guest, LOG};
use crate::support::{loader, tenant};
use portolan_policy::{NameTables, Scope};
use portolan_ports::{Finding, LogOccasion, PolicyLoader, PolicyOwner, PolicyReport, Rehearsal};
use std::sync::Arc;

fn with_config(component: &[u8], config: &str) -> PolicyReport {
    let rehearsal = Rehearsal {
        config,
        names: None,
        owner: None,
    };
    loader().check(None, component, Some(rehearsal))
}

fn find<'a>(report: &'a PolicyReport, code: &str) -> Option<&'a Finding> {
    report.findings.iter().find(|finding| finding.code == code)
}

/// Refuses a configuration that does not begin with `{`, with the configuration itself as the reason.
fn demanding() -> Vec<u8> {
    let configure = format!(
        "(if (i32.or (i32.eqz (local.get 1)) (i32.ne (i32.load8_u (local.get 0)) (i32.const 123))) (then
            (i32.store8 (i32.const 1024) (i32.const 1))
            (i32.store (i32.const 1028) (local.get 0)) (i32.store (i32.const 1032) (local.get 1))))
         {CONFIGURED}"
    );
    Guest {
        configure,
        ..Guest::echo()
    }
    .component()
}

#[test]
fn a_configuration_that_is_refused_keeps_the_component_out_and_is_named() {
    let report = with_config(&demanding(), "nonsense");
    assert!(!report.ok, "{report:#?}");
    let refused = find(&report, "configuration-refused").unwrap();
    assert!(refused.message.ends_with(": nonsense"), "{refused:?}");
    assert!(refused.help.contains("--names"), "{refused:?}");
    let names = Arc::new(NameTables::default());
    let bound = Rehearsal {
        config: "nonsense",
        names: Some(&names),
        owner: None,
    };
    let report = loader().check(None, &demanding(), Some(bound));
    let refused = find(&report, "configuration-refused").unwrap();
    assert!(!refused.help.contains("--names"), "{refused:?}");
    assert!(with_config(&demanding(), "{}").ok);
}

#[test]
fn probes_go_to_the_component_as_it_is_configured() {
    // Remembers the first byte of its configuration, and traps when that is `!`.
    let guest = Guest {
        configure: format!("(i32.store8 (i32.const 900) (i32.load8_u (local.get 0))) {CONFIGURED}"),
        ..Guest::always("(if (i32.eq (i32.load8_u (i32.const 900)) (i32.const 33)) (then unreachable))")
    };
    let component = guest.component();
    assert_eq!(find(&with_config(&component, "{}"), "probe-failed"), None);
    let report = with_config(&component, "!");
    assert!(find(&report, "probe-failed").is_some(), "{report:#?}");
}

#[test]
fn what_a_component_writes_while_it_is_checked_is_its_owners() {
    let guest = Guest {
        imports: LOG,
        ..Guest::always("(call $log (i32.const 1) (i32.const 1024) (i32.const 16))")
    };
    let (loader, component, owner) = (loader(), guest.component(), tenant("t"));
    let rehearsal = Rehearsal {
        config: "",
        names: None,
        owner: Some(PolicyOwner {
            scope: &owner,
            name: "mine",
        }),
    };
    let report = loader.check(None, &component, Some(rehearsal));
    let lines = loader.log_lines(&owner);
    assert!(!lines.is_empty(), "{report:#?}");
    for line in &lines {
        assert_eq!((&*line.policy, line.during), ("mine", LogOccasion::Check));
        assert_eq!(line.version, report.sha256);
    }
    assert_eq!(loader.log_lines(&Scope::Platform), []);
    loader.check(None, &component, None);
    assert_eq!(
        loader.log_lines(&owner).len(),
        lines.len(),
        "nobody's, so the platform's"
    );
    assert!(!loader.log_lines(&Scope::Platform).is_empty());
}

#[test]
fn a_configuration_that_is_too_large_is_told_without_compiling() {
    let report = with_config(&demanding(), &"{".repeat((64 << 10) + 1));
    assert!(!report.ok);
    assert_eq!(report.findings.len(), 1, "{report:#?}");
    assert_eq!(report.findings[0].code, "configuration-too-large");
}

#[test]
fn probes_speak_of_the_names_that_are_given() {
    // Answers for three sites whatever it is asked: right among made-up names, wrong for a fleet of one.
    let component = Guest::residency().component();
    assert_eq!(find(&with_config(&component, ""), "probe-failed"), None);
    let names = Arc::new(NameTables {
        sites: vec![portolan_policy::SiteEntry {
            name: "paris".into(),
            region: "eu-west".into(),
            jurisdiction: 0,
        }],
        ..NameTables::default()
    });
    let rehearsal = Rehearsal {
        config: "",
        names: Some(&names),
        owner: None,
    };
    let report = loader().check(None, &component, Some(rehearsal));
    assert!(find(&report, "probe-failed").is_some(), "{report:#?}");
}
