//! The desk over the fakes of its store and its loader.

use super::*;
use portolan_base::{Moment, TenantName};
use portolan_policy::{Answer, Call, PolicyFault, Question};
use portolan_ports::{FakeLoader, MemoryStore, Reuse, StoreCall, StoreError};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[derive(Default)]
struct TickingClock(AtomicU64);

impl Clock for TickingClock {
    fn now(&self) -> Moment {
        Moment(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

pub(super) fn desk_over(store: &Arc<MemoryStore>) -> PolicyDesk {
    PolicyDesk::new(DeskParts {
        store: Arc::clone(store) as Arc<dyn PolicyStore>,
        loader: Arc::new(FakeLoader),
        names: Arc::new(|| Arc::new(NameTables::default())),
        clock: Arc::new(TickingClock::default()),
    })
}

pub(super) fn acme() -> Scope {
    Scope::Tenant(TenantName::new("acme").unwrap())
}

pub(super) fn routing() -> PolicySlot {
    PolicySlot::new(acme(), QuestionKind::Routing)
}

pub(super) fn upload(slot: PolicySlot, component: &str) -> Upload {
    Upload {
        slot,
        name: "mine".into(),
        component: component.to_owned().into(),
        config: None,
        signature: String::new(),
        budget: None,
        reuse: Reuse::ByClass,
    }
}

pub(super) fn by() -> By {
    By::new("tess", "because")
}

pub(super) fn active(desk: &PolicyDesk, slot: &PolicySlot) -> Option<String> {
    desk.table()
        .get(&slot.scope, slot.question)
        .map(|policy| policy.descriptor().version.clone())
}

#[test]
fn an_upload_is_active_when_it_returns_and_comes_back_after_a_restart() {
    let store = Arc::new(MemoryStore::new());
    let desk = desk_over(&store);
    let uploaded = desk.upload(upload(routing(), "ok:1"), &by()).unwrap();
    assert_eq!(uploaded.binding.generation, 1);
    assert_eq!(active(&desk, &routing()), Some(uploaded.version.sha256.clone()));
    assert_eq!(
        store.compiled(&uploaded.version.sha256).unwrap().unwrap(),
        "compiled ok:1".as_bytes()
    );

    let restarted = desk_over(&store);
    assert_eq!(active(&restarted, &routing()), None);
    let restored = restarted.restore().unwrap();
    assert_eq!(restored.active, [uploaded.binding]);
    assert!(restored.failed.is_empty());
    assert_eq!(active(&restarted, &routing()), Some(uploaded.version.sha256));
}

#[test]
fn a_bad_upload_changes_nothing_and_leaves_nothing() {
    let store = Arc::new(MemoryStore::new());
    let desk = desk_over(&store);
    let good = desk.upload(upload(routing(), "ok:1"), &by()).unwrap();
    let audit = store.audit(9).unwrap();

    let long = "x".repeat(64 * 1024 + 1);
    let bad = [
        upload(routing(), "text"),
        upload(routing(), "ok-cost:"),
        upload(routing(), "unloadable:"),
        Upload {
            config: Some("bad".into()),
            ..upload(routing(), "ok:2")
        },
        Upload {
            config: Some(long),
            ..upload(routing(), "ok:2")
        },
        Upload {
            name: "../mine".into(),
            ..upload(routing(), "ok:2")
        },
    ];
    for upload in bad {
        let label = format!("{upload:?}");
        let result = desk.upload(upload.clone(), &by());
        assert!(
            !matches!(result, Ok(_) | Err(DeskError::Store(_) | DeskError::NotFound(_))),
            "{label}"
        );
        assert!(desk.push(upload, &by()).is_err(), "{label}");
        assert_eq!(
            active(&desk, &routing()),
            Some(good.version.sha256.clone()),
            "{label}"
        );
        assert_eq!(store.audit(9).unwrap(), audit, "{label}");
    }
    let Err(DeskError::Rejected(report)) = desk.upload(upload(routing(), "text"), &by()) else {
        panic!()
    };
    assert_eq!(report.findings[0].code, "no-component");
}

#[test]
fn a_store_that_fails_leaves_the_table_as_it_was() {
    let store = Arc::new(MemoryStore::new());
    let desk = desk_over(&store);
    let first = desk.upload(upload(routing(), "ok:1"), &by()).unwrap();
    for call in [StoreCall::PutVersion, StoreCall::Bind] {
        store.fail(call);
        assert!(matches!(
            desk.upload(upload(routing(), "ok:2"), &by()),
            Err(DeskError::Store(StoreError::Io(_)))
        ));
        assert_eq!(
            active(&desk, &routing()),
            Some(first.version.sha256.clone()),
            "{call:?}"
        );
        store.heal();
    }
    store.fail(StoreCall::Unbind);
    assert!(desk.unbind(&routing(), &by()).is_err());
    assert_eq!(active(&desk, &routing()), Some(first.version.sha256));
}

#[test]
fn a_pushed_version_waits_until_it_is_activated_and_a_roll_back_brings_back_its_configuration() {
    let store = Arc::new(MemoryStore::new());
    let desk = desk_over(&store);
    let configured = Upload {
        config: Some("{\"a\":1}".into()),
        ..upload(routing(), "ok:1")
    };
    let first = desk.upload(configured, &by()).unwrap();
    let second = desk.push(upload(routing(), "ok:2"), &by()).unwrap();
    assert_eq!(active(&desk, &routing()), Some(first.version.sha256.clone()));

    let activation = Activation {
        slot: routing(),
        sha256: second.version.sha256.clone(),
        config: None,
        budget: None,
        reuse: None,
    };
    assert_eq!(desk.activate(activation, &by()).unwrap().generation, 2);
    assert_eq!(active(&desk, &routing()), Some(second.version.sha256.clone()));

    let back = Activation {
        slot: routing(),
        sha256: first.version.sha256.clone(),
        config: None,
        budget: None,
        reuse: None,
    };
    let back = desk
        .activate(back, &By::new("tess", "worse than before"))
        .unwrap();
    assert_eq!((back.generation, back.config.as_str()), (3, "{\"a\":1}"));
    assert_eq!(active(&desk, &routing()), Some(first.version.sha256.clone()));
    assert_eq!(desk.list().unwrap(), [back]);
    assert_eq!(
        desk.versions(&routing()).unwrap(),
        [first.version, second.version.clone()]
    );

    assert_eq!(
        desk.version_of(&routing(), b"ok:2").unwrap(),
        Some(second.version.clone())
    );
    assert_eq!(desk.version_of(&routing(), b"ok:3").unwrap(), None);

    let foreign = PolicySlot::new(Scope::Platform, QuestionKind::Routing);
    let stolen = Activation {
        slot: foreign,
        sha256: second.version.sha256,
        config: None,
        budget: None,
        reuse: None,
    };
    assert!(matches!(
        desk.activate(stolen, &by()),
        Err(DeskError::NotFound(_))
    ));
}

#[test]
fn unbinding_leaves_the_other_bindings_alone() {
    let store = Arc::new(MemoryStore::new());
    let desk = desk_over(&store);
    let platform = PolicySlot::new(Scope::Platform, QuestionKind::Routing);
    let kept = desk.upload(upload(platform.clone(), "ok:1"), &by()).unwrap();
    desk.upload(upload(routing(), "ok:2"), &by()).unwrap();
    desk.unbind(&routing(), &by()).unwrap();
    assert_eq!(active(&desk, &routing()), None);
    assert_eq!(active(&desk, &platform), Some(kept.version.sha256));
    assert!(matches!(
        desk.unbind(&routing(), &by()),
        Err(DeskError::NotFound(_))
    ));
}

#[test]
fn a_binding_that_cannot_be_restored_faults_and_does_not_open_what_it_closed() {
    let store = Arc::new(MemoryStore::new());
    let residency = PolicySlot::new(acme(), QuestionKind::Residency);
    let desk = desk_over(&store);
    let good = desk.upload(upload(routing(), "ok:1"), &by()).unwrap();
    let version = desk
        .push(upload(residency.clone(), "ok:2"), &by())
        .unwrap()
        .version;
    store
        .bind(BindingRecord {
            config: "bad".into(),
            scope: residency.scope.clone(),
            question: residency.question,
            sha256: version.sha256,
            ..good.binding.clone()
        })
        .unwrap();

    let restored = desk.restore().unwrap();
    assert_eq!(restored.active, [good.binding]);
    assert!(matches!(
        &restored.failed[..],
        [NotRestored {
            error: DeskError::Rejected(_),
            ..
        }]
    ));
    let table = desk.table();
    let policy = table.get(&residency.scope, residency.question).unwrap();
    let subject = portolan_policy::Subject {
        purpose: portolan_policy::Purpose::Serve,
        data_jurisdiction: 0,
        data_class: 0,
        from_site: None,
    };
    let question = Question::Residency {
        subject,
        request: &[],
        sites: 2,
    };
    let answered = policy.ask(&Call {
        question,
        labels: &BTreeMap::new(),
        request_id: "req-1",
    });
    assert!(
        matches!(answered.result, Err(PolicyFault::Unavailable(_))),
        "{answered:?}"
    );
}

#[test]
fn what_a_sender_that_left_had_sent_is_kept_and_takes_nobodys_place() {
    let store = Arc::new(MemoryStore::new());
    let desk = desk_over(&store);
    desk.upload(upload(routing(), "ok:wanted"), &by()).unwrap();
    let active_before = active(&desk, &routing());
    let gone = Sender::Waits(std::sync::Weak::new());
    let refused = desk
        .upload_from(upload(routing(), "ok:late"), &by(), &gone)
        .unwrap_err();
    assert!(
        refused.to_string().contains("left while it was compiled"),
        "{refused}"
    );
    assert_eq!(active(&desk, &routing()), active_before);
    assert_eq!(desk.versions(&routing()).unwrap().len(), 2, "kept");
    let waits = Arc::new(());
    let there = Sender::Waits(Arc::downgrade(&waits));
    desk.upload_from(upload(routing(), "ok:late"), &by(), &there)
        .unwrap();
    assert_ne!(active(&desk, &routing()), active_before);
}

#[test]
fn a_reader_sees_every_binding_through_two_hundred_swaps() {
    const SWAPS_A_WRITER: usize = 50;
    let store = Arc::new(MemoryStore::new());
    let desk = desk_over(&store);
    let slots: Vec<PolicySlot> = QuestionKind::ALL
        .map(|question| PolicySlot::new(acme(), question))
        .into();
    for slot in &slots {
        desk.upload(upload(slot.clone(), "ok:first"), &by()).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers = [(); 2].map(|()| {
            scope.spawn(|| {
                let mut reads = 0_u32;
                while reads == 0 || !done.load(Ordering::Acquire) {
                    let table = desk.table();
                    for slot in &slots {
                        let policy = table
                            .get(&slot.scope, slot.question)
                            .expect("every slot stays bound");
                        assert_eq!(policy.descriptor().question, slot.question);
                    }
                    reads += 1;
                }
                reads
            })
        });
        let writers: Vec<_> = slots
            .iter()
            .map(|slot| {
                let desk = &desk;
                scope.spawn(move || {
                    for n in 0..SWAPS_A_WRITER {
                        desk.upload(upload(slot.clone(), &format!("ok:{n}")), &by())
                            .unwrap();
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Release);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
    for binding in desk.list().unwrap() {
        assert_eq!(binding.generation, 1 + SWAPS_A_WRITER as u64);
        let slot = PolicySlot::new(binding.scope, binding.question);
        assert_eq!(
            active(&desk, &slot),
            Some(binding.sha256),
            "table and store agree"
        );
    }
}

#[test]
fn writers_of_one_slot_leave_table_and_store_in_agreement() {
    let store = Arc::new(MemoryStore::new());
    let desk = desk_over(&store);
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let desk = &desk;
            scope.spawn(move || {
                for n in 0..25 {
                    desk.upload(upload(routing(), &format!("ok:{writer}-{n}")), &by())
                        .unwrap();
                }
            });
        }
    });
    let binding = desk.list().unwrap().remove(0);
    assert_eq!(binding.generation, 100);
    assert_eq!(active(&desk, &routing()), Some(binding.sha256));
}

#[test]
fn a_tenants_policy_is_told_its_tenant_and_the_platforms_is_not() {
    let desk = desk_over(&Arc::new(MemoryStore::new()));
    let told = Told {
        name: "n",
        sha256: "v",
        config: "",
        reuse: Reuse::ByClass,
    };
    assert_eq!(desk.binding(&routing(), told).names.tenant, "acme");
    let platform = PolicySlot::new(Scope::Platform, QuestionKind::Routing);
    assert_eq!(desk.binding(&platform, told).names.tenant, "");
}

#[test]
fn answers_of_the_fake_fit_their_question() {
    let desk = desk_over(&Arc::new(MemoryStore::new()));
    let slot = PolicySlot::new(Scope::Platform, QuestionKind::Invalidation);
    desk.upload(upload(slot.clone(), "ok-invalidation:"), &by())
        .unwrap();
    let event = portolan_policy::Event::TenantRemoved;
    let question = Question::Invalidation {
        event: &event,
        groups: portolan_policy::Matrix::new(1, &[]),
    };
    let table = desk.table();
    let policy = table.get(&slot.scope, slot.question).unwrap();
    let answered = policy.ask(&Call {
        question,
        labels: &BTreeMap::new(),
        request_id: "req-1",
    });
    assert_eq!(answered.result, Ok(Answer::Invalidation(Vec::new())));
}

#[test]
fn what_is_not_compiled_for_this_host_is_bound_first_and_compiled_afterwards() {
    let store = Arc::new(MemoryStore::new());
    let desk = desk_over(&store);
    let ready = desk.upload(upload(routing(), "ok:1"), &by()).unwrap();
    let residency = PolicySlot::new(acme(), QuestionKind::Residency);
    let stale = desk.upload(upload(residency.clone(), "ok:2"), &by()).unwrap();
    let cost = PolicySlot::new(acme(), QuestionKind::Cost);
    let replaced = desk.upload(upload(cost.clone(), "ok:3"), &by()).unwrap();
    for version in [&stale.version.sha256, &replaced.version.sha256] {
        store.put_compiled(version, b"of another release").unwrap();
    }

    let restarted = Arc::new(desk_over(&store));
    let restored = restarted.restore().unwrap();
    assert_eq!(restored.active, [ready.binding]);
    assert_eq!(restored.pending, [residency.clone(), cost.clone()]);
    let outcome = |desk: &PolicyDesk| {
        let table = desk.table();
        let policy = table.get(&residency.scope, residency.question).unwrap();
        let subject = portolan_policy::Subject {
            purpose: portolan_policy::Purpose::Serve,
            data_jurisdiction: 0,
            data_class: 0,
            from_site: None,
        };
        let question = Question::Residency {
            subject,
            request: &[],
            sites: 2,
        };
        let call = Call {
            question,
            labels: &BTreeMap::new(),
            request_id: "r",
        };
        policy.ask(&call).result.is_ok()
    };
    let gauge = |desk: &PolicyDesk| {
        let samples = desk.samples();
        let of = |why| {
            let found = samples
                .iter()
                .find(|s| s.name == "policy_bindings_unavailable" && s.labels[0].1 == why);
            found.unwrap().value.clone()
        };
        (of("compiling"), of("failed"))
    };
    use portolan_ports::Reading::Gauge;
    assert!(!outcome(&restarted), "closed until it is compiled");
    assert!(restarted.missing(&residency).unwrap().contains("not compiled"));
    assert_eq!(gauge(&restarted), (Gauge(2), Gauge(0)));

    // A tenant does not wait for the compiler to bind something else.
    let newer = restarted.upload(upload(cost.clone(), "ok:4"), &by()).unwrap();
    assert_eq!(gauge(&restarted), (Gauge(1), Gauge(0)));
    PolicyDesk::finish_restoring(&Arc::downgrade(&restarted), restored.pending);
    assert!(outcome(&restarted));
    assert_eq!(restarted.missing(&residency), None);
    assert_eq!(active(&restarted, &cost), Some(newer.version.sha256));
    assert_eq!(gauge(&restarted), (Gauge(0), Gauge(0)));
    let again = desk_over(&store).restore().unwrap();
    assert!(again.pending.is_empty(), "what was compiled is kept");
}
