//! Every shipped component gives the very answers of the built-in policy of its name, for any input.

use portolan_base::{Clock, Moment};
use portolan_plugin::{ArtefactKey, Compilation, ComponentLoader, Limits, LoaderConfig, MemoryState};
use portolan_policy::builtin::{self, BUILT_IN};
use portolan_policy::{
    Answer, Call, Dependency, Event, Matrix, ModelChange, NameTables, Policy, Pressure, Purpose, Question,
    QuestionKind, Scope, SiteEntry, Subject,
};
use portolan_ports::{Binding, PolicyLoader, Reuse};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Cases a policy and configuration: with sixteen policies a few seconds, most of them spent starting instances.
const CASES: u32 = 64;
/// The most candidate routes a request has.
const ROWS: usize = 64;

struct Midnight;

impl Clock for Midnight {
    fn now(&self) -> Moment {
        Moment(0)
    }
}

/// A configuration with every key set away from its default, where the policy has any.
fn unusual_config(name: &str) -> &'static str {
    match name {
        "jurisdiction" => r#"{"allow": {"eu": ["us"]}, "transient": {"us": ["eu"]}, "deny_sites": ["lon"]}"#,
        "ttft" => r#"{"overlap_permille": 500, "round_trips": 2, "decode_permille": 1000}"#,
        "latency-aware" => {
            r#"{"rtt_weight_permille": 2000, "prefill_ns_per_token": 7, "queue_ns_per_token": 4000000000}"#
        }
        "price-aware" => {
            r#"{"second_is_worth_micros": 7, "batch_second_is_worth_micros": 3, "within_slo_permille": 900}"#
        }
        "threshold" => {
            r#"{"local_below_tokens": 10, "remote_above_tokens": 20, "congested_permille": 1,
                "larger_pool_discount_permille": 999}"#
        }
        "offload" => r#"{"threshold_tokens": 3, "congested_permille": 1}"#,
        "prefix-affinity" => r#"{"balance_tokens": 1}"#,
        "dependency" => r#"{"ignore_kinds": ["b"]}"#,
        "idle" => r#"{"max_idle_ms": 18446744073709551615, "keep_permille": 1}"#,
        _ => "{}",
    }
}

pub(crate) fn names() -> NameTables {
    let site = |name: &str, jurisdiction| SiteEntry {
        name: name.into(),
        region: "r".into(),
        jurisdiction,
    };
    NameTables {
        tenant: "acme".into(),
        sites: vec![site("fra", 1), site("lon", 2), site("iad", 2)],
        jurisdictions: ["any", "eu", "us"].map(String::from).to_vec(),
        models: vec!["m".into()],
        user_classes: vec!["standard".into()],
    }
}

fn component(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../plugins/dist")
        .join(format!("{name}.wasm"));
    std::fs::read(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run `make plugins` first", path.display()))
}

pub(crate) fn loader() -> ComponentLoader {
    // Generous in waiting, since other tests run at the same time; the real limits in fuel and space.
    let limits = Limits {
        pool_instances: 64,
        inline_deadline_ms: 2_000,
        slow_deadline_ms: 10_000,
        setup_deadline_ms: 10_000,
        ..Limits::default()
    };
    let state = Arc::new(MemoryState::default());
    let config = LoaderConfig {
        limits,
        key: ArtefactKey::from_bytes([7; 32]),
        state,
        compilation: Compilation::InProcess,
    };
    ComponentLoader::new(config, Arc::new(Midnight)).expect("the engine starts")
}

/// What is asked, owned.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    pub(crate) request: Vec<u32>,
    pub(crate) stride: u32,
    pub(crate) rows: Vec<u32>,
    pub(crate) cost_stride: u32,
    pub(crate) costs: Vec<u32>,
    pub(crate) event: Event,
    pub(crate) subject: Subject,
}

impl Inputs {
    pub(crate) fn question(&self, kind: QuestionKind) -> Question<'_> {
        let rows = Matrix::new(self.stride, &self.rows);
        let request = &self.request;
        match kind {
            QuestionKind::Residency => Question::Residency {
                subject: self.subject,
                request,
                sites: 3,
            },
            QuestionKind::Cost => Question::Cost {
                request,
                routes: rows,
            },
            QuestionKind::Routing => Question::Routing {
                request,
                routes: rows,
                costs: Matrix::new(self.cost_stride, &self.costs),
            },
            QuestionKind::Invalidation => Question::Invalidation {
                event: &self.event,
                groups: rows,
            },
        }
    }
}

/// Small numbers, so that sites and modes meet; usual ones; any; and the largest.
fn cell() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..4u32, 4 => 0..100_000u32, 1 => any::<u32>(), 1 => u32::MAX - 1..=u32::MAX]
}

fn matrix(strides: std::ops::Range<u32>) -> impl Strategy<Value = (u32, Vec<u32>)> {
    strides.prop_flat_map(|stride| {
        (
            Just(stride),
            prop::collection::vec(cell(), 0..ROWS.saturating_mul(stride as usize).max(1)),
        )
    })
}

fn event() -> impl Strategy<Value = Event> {
    let dependency =
        ("[abc]", "[a-z]{0,4}", "[0-9]").prop_map(|(kind, name, version)| Dependency { kind, name, version });
    prop_oneof![
        (cell(), any::<u64>(), any::<u64>()).prop_map(|(model, old_version, new_version)| {
            Event::ModelUpdated(ModelChange {
                model,
                old_version,
                new_version,
            })
        }),
        prop::collection::vec(dependency, 0..40).prop_map(Event::DependenciesChanged),
        (cell(), cell(), cell()).prop_map(|(site, used_mib, limit_mib)| {
            Event::CapacityPressure(Pressure {
                site,
                used_mib,
                limit_mib,
            })
        }),
        any::<u64>().prop_map(Event::PrefixRevoked),
        Just(Event::TenantRemoved),
        any::<u64>().prop_map(Event::Tick),
    ]
}

pub(crate) fn inputs() -> impl Strategy<Value = Inputs> {
    let subject =
        (cell(), cell(), prop::option::of(cell())).prop_map(|(data_jurisdiction, data_class, from_site)| {
            Subject {
                purpose: Purpose::Serve,
                data_jurisdiction,
                data_class,
                from_site,
            }
        });
    (
        prop::collection::vec(cell(), 0..30),
        matrix(1..30),
        matrix(1..9),
        event(),
        subject,
    )
        .prop_map(
            |(request, (stride, rows), (cost_stride, costs), event, subject)| Inputs {
                request,
                stride,
                rows,
                cost_stride,
                costs,
                event,
                subject,
            },
        )
}

pub(crate) fn ask(policy: &dyn Policy, question: Question<'_>) -> Answer {
    let answered = policy.ask(&Call {
        question,
        labels: &BTreeMap::new(),
        request_id: "req-1",
    });
    answered
        .result
        .unwrap_or_else(|fault| panic!("{}: {fault}", policy.descriptor().name))
}

fn assert_agree(loader: &ComponentLoader, question: QuestionKind, name: &str, config: &str) {
    let native = builtin::policy(question, name, config, &names()).expect("the configuration is good");
    let binding = Binding {
        scope: Scope::Platform,
        question,
        name: name.to_owned(),
        version: loader.check(Some(question), &component(name), None).sha256,
        config: config.to_owned(),
        names: Arc::new(names()),
        reuse: Reuse::default(),
    };
    let guest = loader
        .load(&binding, &component(name), None)
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut runner = TestRunner::new(ProptestConfig {
        cases: CASES,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&inputs(), |inputs| {
        let (expected, got) = (
            ask(&*native, inputs.question(question)),
            ask(&*guest, inputs.question(question)),
        );
        prop_assert_eq!(got, expected);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{name} under {config}: {error}"));
}

#[test]
fn components_and_built_in_policies_agree_on_random_inputs() {
    let loader = loader();
    for &(question, name) in BUILT_IN {
        for config in ["", unusual_config(name)] {
            assert_agree(&loader, question, name, config);
        }
    }
}

#[test]
fn a_component_refuses_a_configuration_with_the_same_words() {
    let loader = loader();
    let binding = Binding {
        scope: Scope::Platform,
        question: QuestionKind::Cost,
        name: "ttft".into(),
        version: loader.check(None, &component("ttft"), None).sha256,
        config: r#"{"overlap_permille": 1.5}"#.into(),
        names: Arc::new(names()),
        reuse: Reuse::default(),
    };
    let refused = loader
        .load(&binding, &component("ttft"), None)
        .err()
        .expect("a fraction is refused");
    let said: Vec<_> = refused
        .0
        .findings
        .iter()
        .map(|finding| finding.message.as_str())
        .collect();
    let native = builtin::policy(QuestionKind::Cost, "ttft", &binding.config, &names())
        .err()
        .expect("refused");
    let reason = std::error::Error::source(&native)
        .expect("the reason is the source")
        .to_string();
    assert!(
        said.iter().any(|message| message.contains(&reason)),
        "{said:?} should contain {reason:?}"
    );
}
