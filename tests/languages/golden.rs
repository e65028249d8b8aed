//! One guest of each toolchain gives the answers of the native reference below, on random inputs.
//!
//! `tests/languages/run` makes the guests with `portolan policy new` and `policy build`, so what is tested are the
//! templates, the helpers beside them and the toolchains.

use crate::policies_agree::{Inputs, ask, inputs, loader, names};
use portolan_plugin::ComponentLoader;
use portolan_policy::builtin::{Candidates, Groups, Rank, Tier};
use portolan_policy::{
    Answer, CostMatrix, CostRow, Directive, Event, Matrix, NEVER, Placement, QuestionKind, RequestView,
    RouteView, Scope, Subject,
};
use portolan_ports::{Binding, PolicyLoader, Reuse};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the guests lie, named `LANGUAGE-QUESTION.wasm`.
const GUESTS: &str = "PORTOLAN_LANGUAGE_GUESTS";
/// Inputs a guest: with an interpreter a few seconds.
const CASES: u32 = 48;
/// JavaScript's numbers are exact up to here.
const EXACT: u64 = (1 << 53) - 1;

/// The templates' defaults, and a configuration that changes every answer.
fn configs(question: QuestionKind) -> [&'static str; 2] {
    match question {
        QuestionKind::Residency => ["", r#"{"compute_also_in": "us"}"#],
        QuestionKind::Cost => ["", r#"{"us_per_price_micro": 5}"#],
        QuestionKind::Routing => ["{}", r#"{"near_below_tokens": 90000}"#],
        QuestionKind::Invalidation => ["", r#"{"max_idle_ms": 60000}"#],
    }
}

fn reference(question: QuestionKind, inputs: &Inputs, is_default: bool) -> Answer {
    let request = RequestView(&inputs.request);
    let rows = Matrix::new(inputs.stride, &inputs.rows);
    match question {
        QuestionKind::Residency => Answer::Residency(placements(&inputs.subject, is_default)),
        QuestionKind::Cost => {
            let mut costs = CostMatrix::default();
            let us_per_price_micro = if is_default { 100 } else { 5 };
            rows.rows()
                .for_each(|row| costs.push(&cost(RouteView(row), us_per_price_micro)));
            Answer::Cost(costs.cells)
        }
        QuestionKind::Routing => {
            let candidates = Candidates::new(rows, Matrix::new(inputs.cost_stride, &inputs.costs));
            let near_below = if is_default { 2048 } else { 90_000 };
            Answer::Routing(candidates.ranks(request, |candidate| {
                let near = candidate.route.prefill_site() == request.origin_site();
                let second = candidate.uncached_tokens(request) < near_below && !near;
                let tier = if second { Tier::Second } else { Tier::Preferred };
                Rank::new(tier, candidate.cost.total_us())
            }))
        }
        QuestionKind::Invalidation => {
            let max_idle_ms = if is_default { 1_800_000 } else { 60_000 };
            Answer::Invalidation(directives(&inputs.event, Groups(rows), max_idle_ms))
        }
    }
}

fn placements(subject: &Subject, is_default: bool) -> Vec<Placement> {
    let names = names();
    let placement = |here: u32| {
        if [0, here].contains(&subject.data_jurisdiction) {
            Placement::Resident
        } else if !is_default && names.jurisdiction("us") == Some(here) {
            Placement::Transient
        } else {
            Placement::Denied
        }
    };
    names
        .sites
        .iter()
        .map(|site| placement(site.jurisdiction))
        .collect()
}

fn cost(route: RouteView<'_>, us_per_price_micro: u64) -> CostRow {
    let finite = |value: u64| u32::try_from(value).unwrap_or(NEVER).min(NEVER - 1);
    let prefill = u64::from(route.prefill_us());
    let beyond = u64::from(route.transfer_us()).saturating_sub(prefill) + u64::from(route.link_rtt_us());
    let transfer = if route.is_local() { 0 } else { beyond };
    let time = u64::from(route.queue_us()) + prefill + transfer + u64::from(route.decode_us());
    CostRow {
        total_us: finite(time + u64::from(route.price_micros()) * us_per_price_micro),
        queue_us: finite(route.queue_us().into()),
        prefill_us: finite(prefill),
        transfer_us: finite(transfer),
        decode_us: finite(route.decode_us().into()),
        cache_benefit_us: 0,
    }
}

fn directives(event: &Event, groups: Groups<'_>, max_idle_ms: u64) -> Vec<Directive> {
    match event {
        Event::ModelUpdated(change) => vec![Directive::BelowVersion {
            model: change.model,
            version: change.new_version,
        }],
        Event::DependenciesChanged(changed) => changed.iter().cloned().map(Directive::DependsOn).collect(),
        Event::CapacityPressure(p) if p.used_mib > p.limit_mib / 10 * 9 => {
            vec![Directive::FreeMib(p.used_mib - p.limit_mib / 10 * 9)]
        }
        Event::TenantRemoved => groups.iter().map(|g| Directive::DropGroup(g.group())).collect(),
        Event::Tick(_) => vec![Directive::IdleLongerThan(max_idle_ms)],
        Event::CapacityPressure(_) | Event::PrefixRevoked(_) => Vec::new(),
    }
}

/// With 64-bit values that every language has.
fn exact(mut inputs: Inputs) -> Inputs {
    match &mut inputs.event {
        Event::ModelUpdated(change) => {
            change.old_version &= EXACT;
            change.new_version &= EXACT;
        }
        Event::PrefixRevoked(value) | Event::Tick(value) => *value &= EXACT,
        Event::DependenciesChanged(_) | Event::CapacityPressure(_) | Event::TenantRemoved => {}
    }
    inputs
}

fn question_of(guest: &Path) -> QuestionKind {
    let stem = guest
        .file_stem()
        .and_then(|stem| stem.to_str())
        .expect("a readable name");
    let (_, question) = stem.split_once('-').expect("LANGUAGE-QUESTION");
    question.parse().expect("a question")
}

fn assert_agrees(loader: &ComponentLoader, guest: &Path) {
    let question = question_of(guest);
    let component = std::fs::read(guest).expect("the guest can be read");
    let compiled = loader.compile(&component).expect("the guest compiles");
    for config in configs(question) {
        let binding = Binding {
            scope: Scope::Platform,
            question,
            name: "golden".into(),
            version: hex::encode(Sha256::digest(&component)),
            config: config.to_owned(),
            names: Arc::new(names()),
            reuse: Reuse::default(),
        };
        let policy = loader
            .load(&binding, &component, Some(&compiled))
            .unwrap_or_else(|e| panic!("{}: {e}", guest.display()));
        let mut runner = TestRunner::new(ProptestConfig {
            cases: CASES,
            rng_seed: RngSeed::Fixed(3),
            failure_persistence: None,
            ..ProptestConfig::default()
        });
        let is_default = config == configs(question)[0];
        let outcome = runner.run(&inputs().prop_map(exact), |inputs| {
            let expected = reference(question, &inputs, is_default);
            prop_assert_eq!(ask(&*policy, inputs.question(question)), expected);
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{} under {config:?}: {error}", guest.display()));
    }
    // A configuration with an unknown key keeps the policy from being bound, in every language.
    let binding = Binding {
        scope: Scope::Platform,
        question,
        name: "golden".into(),
        version: hex::encode(Sha256::digest(&component)),
        config: r#"{"no_such_setting": 1}"#.into(),
        names: Arc::new(names()),
        reuse: Reuse::default(),
    };
    let refused = loader.load(&binding, &component, Some(&compiled)).err();
    let refused = refused.unwrap_or_else(|| panic!("{} takes an unknown setting", guest.display()));
    let codes: Vec<_> = refused.0.findings.iter().map(|finding| &*finding.code).collect();
    assert!(
        codes.contains(&"configuration-refused"),
        "{}: {codes:?}",
        guest.display()
    );
}

#[test]
#[ignore = "needs guests: `make test` builds and compares those in C, `make test-languages` those of four toolchains"]
fn guests_of_every_toolchain_agree_with_the_native_reference() {
    let folder =
        std::env::var_os(GUESTS).unwrap_or_else(|| panic!("{GUESTS} names the folder of the guests"));
    let mut guests: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the folder can be read")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    guests.sort();
    assert!(!guests.is_empty(), "there is no guest");
    let loader = loader();
    for guest in guests {
        assert_agrees(&loader, &guest);
    }
}
