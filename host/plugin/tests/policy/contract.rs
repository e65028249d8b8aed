//! The contract's text against the host's own types: names and order must be the same.

use portolan_plugin::POLICY_WIT;
use portolan_policy::{CostColumn, GroupColumn, QuestionKind, RequestColumn, RouteColumn};
use wit_parser::{PackageId, Resolve, TypeDefKind, WorldItem};

fn contract() -> (Resolve, PackageId) {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("policy.wit", POLICY_WIT).unwrap();
    (resolve, package)
}

fn cases(interface: &str, name: &str) -> Vec<String> {
    let (resolve, package) = contract();
    let interface = &resolve.interfaces[resolve.packages[package].interfaces[interface]];
    match &resolve.types[interface.types[name]].kind {
        TypeDefKind::Enum(e) => e.cases.iter().map(|case| case.name.clone()).collect(),
        other => panic!("{name} is {other:?}"),
    }
}

#[test]
fn columns_are_the_hosts_columns_in_order() {
    let names = |all: Vec<String>, name: &str| assert_eq!(cases("types", name), all, "{name}");
    names(
        RequestColumn::ALL.iter().map(|c| c.name()).collect(),
        "request-column",
    );
    names(
        RouteColumn::ALL.iter().map(|c| c.name()).collect(),
        "route-column",
    );
    names(CostColumn::ALL.iter().map(|c| c.name()).collect(), "cost-column");
    names(
        GroupColumn::ALL.iter().map(|c| c.name()).collect(),
        "group-column",
    );
}

#[test]
fn enums_are_the_hosts_enums_in_order() {
    assert_eq!(
        cases("residency-policy", "placement"),
        ["denied", "transient", "resident"]
    );
    assert_eq!(
        cases("residency-policy", "purpose"),
        ["serve", "fetch", "replicate", "prewarm", "spill"]
    );
    assert_eq!(cases("host", "level"), ["debug", "info", "warn", "error"]);
}

#[test]
fn there_is_a_world_for_each_question_with_its_interface() {
    let (resolve, package) = contract();
    let package = &resolve.packages[package];
    assert_eq!(package.name.to_string(), "portolan:policy@0.1.0");
    let worlds: Vec<_> = package.worlds.keys().map(String::as_str).collect();
    assert_eq!(worlds, QuestionKind::ALL.map(QuestionKind::as_str));
    for question in QuestionKind::ALL {
        let world = &resolve.worlds[package.worlds[question.as_str()]];
        let exports: Vec<_> = world
            .exports
            .values()
            .map(|item| match item {
                WorldItem::Interface { id, .. } => resolve.interfaces[*id].name.clone().unwrap(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(exports, ["lifecycle".to_owned(), format!("{question}-policy")]);
    }
}
