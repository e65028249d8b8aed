//! Tables for residency and invalidation, and the list of policies itself.

use super::*;
use crate::{Dependency, Directive, GroupRow, ModelChange, Placement, Pressure, Purpose, Subject};
use Placement::{Denied, Resident, Transient};

fn placements(config: &str, data_jurisdiction: u32) -> Vec<Placement> {
    let subject = Subject {
        purpose: Purpose::Serve,
        data_jurisdiction,
        data_class: 0,
        from_site: None,
    };
    let question = Question::Residency {
        subject,
        request: &[],
        sites: 4,
    };
    match ask(&*made(QuestionKind::Residency, "jurisdiction", config), question) {
        Answer::Residency(placements) => placements,
        other => panic!("{other:?}"),
    }
}

#[test]
fn data_stays_in_its_jurisdiction_but_for_what_is_configured() {
    let rules = r#"{"allow": {"uk": ["eu"]}, "transient": {"eu": ["uk"]}, "deny_sites": ["ams"]}"#;
    for (config, data, expected) in [
        ("", 0, [Resident; 4]),
        ("", 1, [Resident, Resident, Denied, Denied]),
        ("", 3, [Denied, Denied, Denied, Resident]),
        ("", 77, [Denied; 4]),
        (rules, 0, [Resident, Denied, Resident, Resident]),
        (rules, 1, [Resident, Denied, Transient, Denied]),
        (rules, 2, [Resident, Denied, Resident, Denied]),
    ] {
        assert_eq!(
            placements(config, data),
            expected,
            "data of {data} under {config:?}"
        );
    }
}

#[test]
fn a_misspelt_rule_is_no_rule_and_so_an_error() {
    for config in [
        r#"{"deny_sites": ["fraa"]}"#,
        r#"{"allow": {"ue": ["uk"]}}"#,
        r#"{"transient": {"eu": ["?"]}}"#,
    ] {
        assert!(
            policy(QuestionKind::Residency, "jurisdiction", config, &four_sites()).is_err(),
            "{config}"
        );
    }
}

fn directives(name: &str, config: &str, event: &Event, groups: &[GroupRow]) -> Vec<Directive> {
    let cells: Vec<u32> = groups.iter().flat_map(GroupRow::to_cells).collect();
    let groups = Matrix::new(crate::GroupColumn::COUNT as u32, &cells);
    match ask(
        &*made(QuestionKind::Invalidation, name, config),
        Question::Invalidation { event, groups },
    ) {
        Answer::Invalidation(directives) => directives,
        other => panic!("{other:?}"),
    }
}

fn dependency(kind: &str) -> Dependency {
    Dependency {
        kind: kind.to_owned(),
        name: "n".to_owned(),
        version: "2".to_owned(),
    }
}

#[test]
fn every_rule_drops_what_an_older_model_computed() {
    let event = Event::ModelUpdated(ModelChange {
        model: 3,
        old_version: 6,
        new_version: 7,
    });
    for name in names(QuestionKind::Invalidation) {
        let expected = [Directive::BelowVersion { model: 3, version: 7 }];
        assert_eq!(directives(name, "", &event, &[]), expected, "{name}");
    }
}

#[test]
fn a_changed_dependency_kills_its_dependants_only() {
    let event = Event::DependenciesChanged(vec![
        dependency("document"),
        dependency("format"),
        dependency("tool"),
    ]);
    let groups = [
        GroupRow {
            depends_bits: 0b001,
            ..Default::default()
        },
        GroupRow {
            depends_bits: 0b010,
            ..Default::default()
        },
    ];
    let kinds = |name, config| -> Vec<String> {
        let kind = |directive| match directive {
            Directive::DependsOn(dependency) => dependency.kind,
            other => panic!("{other:?}"),
        };
        directives(name, config, &event, &groups)
            .into_iter()
            .map(kind)
            .collect()
    };
    assert_eq!(kinds("version", ""), ["document", "format", "tool"]);
    assert_eq!(
        kinds("dependency", ""),
        ["document", "format"],
        "nothing depends on the tool"
    );
    assert_eq!(
        kinds("dependency", r#"{"ignore_kinds": ["format"]}"#),
        ["document"]
    );
}

#[test]
fn dependencies_beyond_the_bits_are_never_taken_for_unused() {
    let event = Event::DependenciesChanged(vec![dependency("document"); 40]);
    assert_eq!(directives("dependency", "", &event, &[]).len(), 8);
}

#[test]
fn a_removed_tenant_loses_every_group() {
    let groups = [
        GroupRow {
            group: 4,
            ..Default::default()
        },
        GroupRow {
            group: 9,
            ..Default::default()
        },
    ];
    for name in names(QuestionKind::Invalidation) {
        let expected = [Directive::DropGroup(4), Directive::DropGroup(9)];
        assert_eq!(
            directives(name, "", &Event::TenantRemoved, &groups),
            expected,
            "{name}"
        );
    }
}

#[test]
fn idle_blocks_go_at_the_tick_and_room_is_made_with_headroom() {
    assert_eq!(
        directives("idle", "", &Event::Tick(5), &[]),
        [Directive::IdleLongerThan(1_800_000)]
    );
    assert_eq!(directives("version", "", &Event::Tick(5), &[]), []);
    let pressure = |used_mib| {
        Event::CapacityPressure(Pressure {
            site: 0,
            used_mib,
            limit_mib: 1000,
        })
    };
    assert_eq!(
        directives("idle", "", &pressure(960), &[]),
        [Directive::FreeMib(60)]
    );
    assert_eq!(directives("idle", "", &pressure(900), &[]), []);
    assert_eq!(
        directives("idle", r#"{"keep_permille": 500}"#, &pressure(960), &[]),
        [Directive::FreeMib(460)]
    );
}

#[test]
fn every_listed_policy_can_be_made_and_says_who_it_is() {
    for &(question, name) in BUILT_IN {
        let policy = made(question, name, "");
        let descriptor = policy.descriptor();
        assert_eq!((descriptor.question, descriptor.name.as_str()), (question, name));
        assert_eq!(descriptor.version, "built-in");
        for other in QuestionKind::ALL.into_iter().filter(|q| *q != question) {
            assert!(
                super::policy(other, name, "", &four_sites()).is_err(),
                "{name} answers {other}"
            );
        }
    }
    for question in QuestionKind::ALL {
        assert_eq!(names(question).next(), Some(default_for(question)));
    }
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    let error = policy(QuestionKind::Routing, "tresholt", "", &four_sites())
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("tresholt") && error.contains("lowest-cost, threshold, offload"),
        "{error}"
    );
}

#[test]
fn a_policy_asked_another_question_says_so() {
    let policy = made(QuestionKind::Cost, "ttft", "");
    let question = Question::Invalidation {
        event: &Event::Tick(0),
        groups: Matrix::new(1, &[]),
    };
    let answered = policy.ask(&Call {
        question,
        labels: &BTreeMap::new(),
        request_id: "r",
    });
    assert!(matches!(answered.result, Err(crate::PolicyFault::BadAnswer(_))));
}
