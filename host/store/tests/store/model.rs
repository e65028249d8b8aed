//! Any sequence of calls leaves the store as it leaves the fake in memory, across restarts.

use crate::harness::{Dice, binding, tenant, trial_of, version};
use portolan_base::{Moment, TenantName};
use portolan_policy::QuestionKind;
use portolan_ports::{
    Admission, HoldRecord, KeyRecord, MemoryStore, NewVersion, Operation, OperationKind, PolicyStore,
    Principal, Removal, RemovalCause, RolloutChange, RolloutDeed, RolloutRecord, Scope, StoreError,
    TrialRecord, VersionRecord,
};
use portolan_store::SledStore;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

#[derive(Clone, Debug)]
enum Step {
    Put {
        scope: u8,
        question: u8,
        component: u8,
    },
    Bind {
        scope: u8,
        question: u8,
        component: u8,
    },
    Rename {
        scope: u8,
        question: u8,
        component: u8,
    },
    Remove {
        scope: u8,
        question: u8,
        component: u8,
    },
    Upload {
        tenant: u8,
        most: u32,
    },
    Unbind {
        scope: u8,
        question: u8,
    },
    Rollout {
        scope: u8,
        question: u8,
        trial: Option<u8>,
        pinned: bool,
    },
    Tenant {
        name: u8,
        jurisdiction: u8,
    },
    Key {
        key: u8,
        tenant: u8,
    },
    Admit {
        label: u8,
        key: u8,
        tenant: u8,
    },
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let slot = (0..3_u8, 0..2_u8);
    let step = prop_oneof![
        4 => (slot.clone(), 0..4_u8).prop_map(|((scope, question), component)| Step::Put { scope, question, component }),
        4 => (slot.clone(), 0..4_u8).prop_map(|((scope, question), component)| Step::Bind { scope, question, component }),
        1 => (slot.clone(), 0..4_u8).prop_map(|((scope, question), component)| Step::Rename { scope, question, component }),
        2 => (slot.clone(), 0..4_u8).prop_map(|((scope, question), component)| Step::Remove { scope, question, component }),
        1 => (0..2_u8, 0..4_u32).prop_map(|(tenant, most)| Step::Upload { tenant, most }),
        2 => (slot.clone(), prop::option::of(0..4_u8), any::<bool>())
            .prop_map(|((scope, question), trial, pinned)| Step::Rollout { scope, question, trial, pinned }),
        2 => slot.prop_map(|(scope, question)| Step::Unbind { scope, question }),
        1 => (0..3_u8, 0..3_u8).prop_map(|(name, jurisdiction)| Step::Tenant { name, jurisdiction }),
        1 => (0..3_u8, 0..3_u8).prop_map(|(key, tenant)| Step::Key { key, tenant }),
        1 => (0..2_u8, 0..3_u8, 0..3_u8)
            .prop_map(|(label, key, tenant)| Step::Admit { label, key, tenant }),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..24)
}

fn scope(n: u8) -> Scope {
    match n {
        0 => Scope::Platform,
        n => Scope::Tenant(TenantName::new(&format!("t{n}")).unwrap()),
    }
}

fn question(n: u8) -> QuestionKind {
    QuestionKind::ALL[usize::from(n)]
}

fn record(scope_number: u8, question_number: u8, component: u8) -> VersionRecord {
    let new = version(
        scope(scope_number),
        question(question_number),
        &format!("c{component}"),
        0,
    );
    MemoryStore::new().put_version(new).unwrap()
}

/// What came of a step, in a form that two stores can be compared by.
fn take(store: &dyn PolicyStore, step: &Step, at: u64) -> Result<String, String> {
    let shown = |e: StoreError| e.to_string();
    match *step {
        Step::Put {
            scope: s,
            question: q,
            component,
        } => {
            let new = version(scope(s), question(q), &format!("c{component}"), at);
            store
                .put_version(new)
                .map(|record| format!("{record:?}"))
                .map_err(shown)
        }
        Step::Bind {
            scope,
            question,
            component,
        } => {
            let wanted = binding(&record(scope, question, component), at);
            store
                .bind(wanted)
                .map(|binding| format!("{binding:?}"))
                .map_err(shown)
        }
        Step::Rename {
            scope: s,
            question: q,
            component,
        } => {
            let new = version(scope(s), question(q), &format!("c{component}"), at);
            let other = "other".into();
            let stored = store.put_version(NewVersion { name: other, ..new });
            stored.map(|record| format!("{record:?}")).map_err(shown)
        }
        Step::Remove {
            scope: s,
            question: q,
            component,
        } => {
            let sha256 = record(s, q, component).sha256;
            let removal = Removal {
                scope: scope(s),
                question: question(q),
                sha256: sha256.clone(),
                cause: RemovalCause::Asked,
                actor: "op".into(),
                reason: String::new(),
                at: Moment(at),
            };
            store.remove_version(removal).map_err(shown)?;
            let left = (
                store.component(&sha256).is_ok(),
                store.compiled(&sha256).map_err(shown)?.is_some(),
            );
            Ok(format!("{left:?}"))
        }
        Step::Upload { tenant, most } => {
            let tenant = TenantName::new(&format!("t{tenant}")).unwrap();
            let at = Moment(at * 20 * 60_000_000);
            let turn = store.count_upload(&tenant, most, at).map_err(shown)?;
            if most == 3 {
                store.take_upload_back(&tenant, at).map_err(shown)?;
            }
            Ok(format!(
                "{turn:?}, {}",
                store.uploads(&tenant, at).map_err(shown)?
            ))
        }
        Step::Unbind {
            scope: s,
            question: q,
        } => store
            .unbind(&scope(s), question(q), "op", "", Moment(at))
            .map(|()| String::new())
            .map_err(shown),
        Step::Rollout {
            scope: s,
            question: q,
            trial,
            pinned,
        } => {
            let trial = trial.map(|component| trial_of(&record(s, q, component), at));
            put_rollout(store, (scope(s), question(q)), (trial, pinned), at).map_err(shown)
        }
        Step::Tenant { name, jurisdiction } => {
            let record = tenant(&format!("t{name}"), &format!("j{jurisdiction}"));
            store
                .put_tenant(record, "op", Moment(at))
                .map(|()| String::new())
                .map_err(shown)
        }
        Step::Key { key, tenant } => {
            let principal = Principal::Tenant(TenantName::new(&format!("t{tenant}")).unwrap());
            let record = KeyRecord {
                principal,
                label: label_of(key),
                holder: None,
            };
            store
                .put_key(&format!("sk-{key}"), record, "op", Moment(at))
                .map(|()| String::new())
                .map_err(shown)
        }
        Step::Admit {
            label,
            key,
            tenant: n,
        } => {
            let (label, key) = (label_of(label), format!("sk-{key}"));
            let record = tenant(&format!("t{n}"), "j9");
            let admission = Admission {
                label: &label,
                keys: vec![(&key, Principal::Tenant(record.name.clone()), None)],
                tenants: vec![record],
            };
            let note = (at.is_multiple_of(2)).then(|| noted(at));
            let revoked = store.admit(admission, note, "op", Moment(at));
            revoked.map(|revoked| revoked.to_string()).map_err(shown)
        }
        Step::Restart => Ok(String::new()),
    }
}

fn put_rollout(
    store: &dyn PolicyStore,
    (scope, question): (Scope, QuestionKind),
    (trial, pinned): (Option<TrialRecord>, bool),
    at: u64,
) -> Result<String, StoreError> {
    let (actor, reason) = ("op".to_owned(), "a test".to_owned());
    let hold = HoldRecord {
        actor: actor.clone(),
        reason: reason.clone(),
        at: Moment(at),
    };
    let deed = RolloutDeed {
        change: RolloutChange::Canary,
        subject: format!("{scope}, {question}"),
        actor,
        reason,
        at: Moment(at),
    };
    let rollout = RolloutRecord {
        trial,
        pinned: pinned.then_some(hold),
        ..RolloutRecord::plain(scope, question)
    };
    store.put_rollout(rollout, deed).map(|()| String::new())
}

fn noted(at: u64) -> Operation {
    Operation {
        at: Moment(at),
        actor: "op".into(),
        kind: OperationKind::Configure,
        subject: "1 keys".into(),
        reason: "a test".into(),
    }
}

/// Two labels for three keys, so that some keys share one.
fn label_of(key: u8) -> String {
    format!("k{}", key % 2)
}

/// Everything a store can be asked.
fn everything(store: &dyn PolicyStore) -> Vec<String> {
    let mut seen = vec![
        format!("{:?}", store.bindings()),
        format!("{:?}", store.rollouts()),
        format!("{:?}", store.tenants()),
        format!("{:?}", store.audit(usize::MAX)),
    ];
    for n in 0..3 {
        seen.push(format!("{:?}", store.authenticate(&format!("sk-{n}"))));
        seen.push(format!(
            "{:?}",
            store.tenant(&TenantName::new(&format!("t{n}")).unwrap())
        ));
        for q in 0..2 {
            let versions = store.versions(&scope(n), question(q)).unwrap();
            for version in &versions {
                seen.push(format!(
                    "{:?} {:?}",
                    store.component(&version.sha256),
                    store.compiled(&version.sha256)
                ));
            }
            seen.push(format!(
                "{versions:?} {:?}",
                store.history(&scope(n), question(q))
            ));
        }
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, rng_seed: RngSeed::Fixed(7), ..ProptestConfig::default() })]

    #[test]
    fn any_calls_leave_the_store_as_they_leave_its_model(steps in steps()) {
        let folder = tempfile::tempdir().unwrap();
        let model = MemoryStore::new();
        let mut store = SledStore::open(folder.path(), &Dice::seeded(1)).unwrap();
        for (at, step) in (1..).zip(steps.iter().chain([&Step::Restart])) {
            prop_assert_eq!(take(&store, step, at), take(&model, step, at), "{:?}", step);
            if matches!(step, Step::Restart) {
                drop(store);
                store = SledStore::open(folder.path(), &Dice::seeded(1)).unwrap();
                prop_assert_eq!(everything(&store), everything(&model));
            }
        }
    }
}
