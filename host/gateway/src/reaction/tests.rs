//! The groups that policies see, and what their directives are about.

use super::*;
use portolan_base::{BlockId, Bytes, ModelName, Moment, Provenance, TenantName};
use portolan_kv::tier::Card;
use std::time::Duration;

fn names() -> NameTables {
    NameTables {
        models: vec!["m".to_owned(), "n".to_owned()],
        ..NameTables::default()
    }
}

fn scope(tenant: &str) -> Scope {
    Scope::Tenant(TenantName::new(tenant).unwrap())
}

fn document(version: &str) -> Dependency {
    Dependency {
        kind: "document".to_owned(),
        name: "d".to_owned(),
        version: version.to_owned(),
    }
}

fn card(n: u8, tenant: &str, (model, version): (&str, u64), used_ms: u64) -> Card {
    let about = Provenance {
        dependencies: [document("1")].into(),
        ..Provenance::of(
            TenantName::new(tenant).unwrap(),
            ModelName::new(model).unwrap(),
            version,
        )
    };
    Card {
        id: BlockId([n; 16]),
        parent: None,
        about: Arc::new(about),
        size: Bytes(1 << 20),
        has_snapshot: false,
        rebuild: Duration::from_micros(5),
        used_at: Moment(used_ms * 1000),
        reuses: 2,
        leased: false,
    }
}

fn groups<'a>(names: &'a NameTables, changed: &'a [Dependency]) -> Groups<'a> {
    let mut groups = Groups::new(names, 3, changed);
    let now = Moment(100_000);
    for card in [
        card(1, "acme", ("m", 1), 90),
        card(2, "acme", ("m", 1), 10),
        card(3, "acme", ("n", 1 << 33), 50),
        card(4, "globex", ("m", 1), 20),
    ] {
        groups.add(&card, now);
    }
    groups
}

fn ids(selectors: &[Selector]) -> Vec<u8> {
    let [Selector::Blocks(ids)] = selectors else {
        panic!("blocks: {selectors:?}")
    };
    let mut ids: Vec<u8> = ids.iter().map(|id| id.0[0]).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn a_tenants_policy_sees_its_own_groups_numbered_from_zero() {
    let (names, changed) = (names(), [document("2")]);
    let groups = groups(&names, &changed);
    let width = GroupColumn::COUNT;
    let cells = groups.cells(Some(&scope("acme")));
    let rows: Vec<&[u32]> = cells.chunks(width).collect();
    assert_eq!(rows[0], [0, 0, 1, 0, 3, 2, 2, 10, 4, 10, 1]);
    assert_eq!(rows[1], [1, 1, 0, 2, 3, 1, 1, 50, 2, 5, 1]);
    assert_eq!(rows.len(), 2);
    assert_eq!(groups.cells(None).len(), 3 * width);
}

#[test]
fn directives_are_about_the_blocks_of_whose_policy_it_is() {
    let (names, changed) = (names(), []);
    let groups = groups(&names, &changed);
    let acme = scope("acme");
    let about = |directive: Directive, of: Option<&Scope>| selectors(&[directive], &groups, of);
    let below = Directive::BelowVersion { model: 0, version: 2 };
    assert_eq!(ids(&about(below.clone(), Some(&acme))), [1, 2]);
    assert_eq!(ids(&about(below, None)), [1, 2, 4]);
    assert_eq!(ids(&about(Directive::DropGroup(1), Some(&acme))), [3]);
    assert!(about(Directive::DropGroup(9), Some(&acme)).is_empty());
    assert_eq!(ids(&about(Directive::IdleLongerThan(40), None)), [2, 3, 4]);
    assert_eq!(ids(&about(Directive::IdleLongerThan(50), Some(&acme))), [2]);
    assert_eq!(ids(&about(Directive::FreeMib(2), None)), [2, 4]);
    assert!(about(Directive::FreeMib(0), None).is_empty());
    let depends = about(Directive::DependsOn(document("2")), Some(&acme));
    let of = Some(acme);
    assert_eq!(
        depends,
        [Selector::Outdated {
            by: document("2"),
            of
        }]
    );
}

#[test]
fn of_blocks_used_at_the_same_time_the_last_of_a_prompt_goes_first() {
    let (names, changed) = (names(), []);
    let mut groups = Groups::new(&names, 3, &changed);
    // 9 came first and its name is the greatest: neither names nor arrival decide.
    for (n, parent) in [(9, None), (4, Some(9)), (7, Some(4)), (1, None)] {
        let parent = parent.map(|n| BlockId([n; 16]));
        let card = Card {
            parent,
            ..card(n, "acme", ("m", 1), 50)
        };
        groups.add(&card, Moment(100_000));
    }
    let freed = |mib| ids(&selectors(&[Directive::FreeMib(mib)], &groups, None));
    assert_eq!(freed(1), [7]);
    assert_eq!(freed(2), [4, 7]);
    assert_eq!(freed(3), [1, 4, 7]);
}

#[test]
fn the_built_in_rules_say_of_pressure_what_they_say_as_components() {
    let (names, changed) = (names(), []);
    let mut groups = Groups::new(&names, 3, &changed);
    for n in 1..=10 {
        groups.add(&card(n, "acme", ("m", 1), u64::from(n)), Moment(100_000));
    }
    groups.add(&card(11, "globex", ("m", 1), 0), Moment(100_000));
    let acme = scope("acme");
    let said = |name: &str| {
        let policy = portolan_policy::builtin::policy(QuestionKind::Invalidation, name, "", &names).unwrap();
        let cells = groups.cells(Some(&acme));
        let event = Event::CapacityPressure(portolan_policy::Pressure {
            site: 3,
            used_mib: 10,
            limit_mib: 10,
        });
        let question = Question::Invalidation {
            event: &event,
            groups: Matrix::new(GroupColumn::COUNT as u32, &cells),
        };
        let labels = BTreeMap::new();
        let call = portolan_policy::Call {
            question,
            labels: &labels,
            request_id: "",
        };
        match policy.ask(&call).result {
            Ok(Answer::Invalidation(directives)) => selectors(&directives, &groups, Some(&acme)),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        ids(&said("idle")),
        [1],
        "down to nine tenths, its own, the oldest first"
    );
    assert!(said("version").is_empty() && said("dependency").is_empty());
}
