//! What the loader is told of a binding, through every change.

use super::super::tests::{by, routing, upload};
use super::super::*;
use parking_lot::Mutex;
use portolan_base::Moment;
use portolan_decide::{Percent, TrialStage};
use portolan_policy::Policy;
use portolan_ports::{FakeLoader, MemoryStore, PolicyRejection, Rehearsal, Reuse};

/// The fake, and what it was last told of the instances.
#[derive(Default)]
struct Noting(Mutex<Option<Reuse>>);

impl PolicyLoader for Noting {
    fn check(
        &self,
        question: Option<QuestionKind>,
        component: &[u8],
        rehearsal: Option<Rehearsal<'_>>,
    ) -> PolicyReport {
        FakeLoader.check(question, component, rehearsal)
    }

    fn compile(&self, component: &[u8]) -> Result<Vec<u8>, PolicyRejection> {
        FakeLoader.compile(component)
    }

    fn accepts(&self, sha256: &str, compiled: &[u8]) -> bool {
        FakeLoader.accepts(sha256, compiled)
    }

    fn load(
        &self,
        binding: &Binding,
        component: &[u8],
        compiled: Option<&[u8]>,
    ) -> Result<Arc<dyn Policy>, PolicyRejection> {
        *self.0.lock() = Some(binding.reuse);
        FakeLoader.load(binding, component, compiled)
    }
}

struct Fixed;

impl Clock for Fixed {
    fn now(&self) -> Moment {
        Moment(1)
    }
}

fn desk(store: &Arc<MemoryStore>) -> (PolicyDesk, Arc<Noting>) {
    let loader = Arc::new(Noting::default());
    let desk = PolicyDesk::new(DeskParts {
        store: Arc::clone(store) as Arc<dyn PolicyStore>,
        loader: Arc::clone(&loader) as Arc<dyn PolicyLoader>,
        names: Arc::new(|| Arc::new(NameTables::default())),
        clock: Arc::new(Fixed),
    });
    (desk, loader)
}

fn told(loader: &Noting) -> Reuse {
    loader.0.lock().take().expect("something was loaded")
}

fn activation(sha256: &str, reuse: Option<Reuse>) -> Activation {
    Activation {
        slot: routing(),
        sha256: sha256.to_owned(),
        config: None,
        budget: None,
        reuse,
    }
}

#[test]
fn reuse_holds_through_upload_activation_restart_and_roll_back() {
    let store = Arc::new(MemoryStore::new());
    let (desk, loader) = desk(&store);
    let warm = Upload {
        reuse: Reuse::Warm,
        ..upload(routing(), "ok:1")
    };
    let uploaded = desk.upload(warm, &by()).unwrap();
    assert_eq!(
        (told(&loader), uploaded.binding.reuse),
        (Reuse::Warm, Reuse::Warm)
    );

    let version = uploaded.version.sha256;
    let fresh = desk
        .activate(activation(&version, Some(Reuse::Fresh)), &by())
        .unwrap();
    assert_eq!((told(&loader), fresh.reuse), (Reuse::Fresh, Reuse::Fresh));
    let again = desk.activate(activation(&version, None), &by()).unwrap();
    assert_eq!(
        (told(&loader), again.reuse),
        (Reuse::Fresh, Reuse::Fresh),
        "as it was last bound"
    );

    let (restarted, reloaded) = self::desk(&store);
    restarted.restore().unwrap();
    assert_eq!(told(&reloaded), Reuse::Fresh);

    let order = RollBack {
        slot: routing(),
        to: None,
    };
    let back = restarted.roll_back(&order, &by()).unwrap();
    assert_eq!(
        (told(&reloaded), back.reuse),
        (Reuse::Warm, Reuse::Warm),
        "one step"
    );
    assert_eq!(
        store.audit(1).unwrap()[0].change.as_ref().unwrap().reuse,
        Some(Reuse::Warm)
    );
}

#[test]
fn a_trial_keeps_its_reuse_from_stage_to_stage_and_gives_it_to_the_binding() {
    let store = Arc::new(MemoryStore::new());
    let (desk, loader) = desk(&store);
    desk.upload(upload(routing(), "ok:1"), &by()).unwrap();
    let kept = desk.push(upload(routing(), "ok:2"), &by()).unwrap();
    let order = |sha256: Option<String>, stage, reuse| TrialOrder {
        slot: routing(),
        sha256,
        stage,
        config: None,
        budget: None,
        reuse,
    };
    let shadow = order(Some(kept.version.sha256), TrialStage::Shadow, Some(Reuse::Warm));
    desk.try_out(shadow, &by()).unwrap();
    assert_eq!(told(&loader), Reuse::Warm);
    let percent = Percent::try_from(5).unwrap();
    let canary = desk
        .try_out(order(None, TrialStage::Canary { percent }, None), &by())
        .unwrap();
    assert_eq!(
        (told(&loader), canary.trial.unwrap().reuse),
        (Reuse::Warm, Reuse::Warm)
    );
    let bound = desk.promote(&routing(), &by()).unwrap();
    assert_eq!((told(&loader), bound.reuse), (Reuse::Warm, Reuse::Warm));
}

#[test]
fn a_record_of_before_reuse_was_known_goes_by_class() {
    let store = Arc::new(MemoryStore::new());
    let (desk, _) = desk(&store);
    let bound = desk.upload(upload(routing(), "ok:1"), &by()).unwrap().binding;
    let text = serde_json::to_value(&bound).unwrap();
    assert!(text.get("reuse").is_none(), "{text}");
    assert_eq!(serde_json::from_value::<BindingRecord>(text).unwrap(), bound);
}

#[test]
fn another_configuration_is_probed_before_it_is_bound_or_tried() {
    let store = Arc::new(MemoryStore::new());
    let (desk, loader) = desk(&store);
    let version = desk
        .upload(upload(routing(), "ok:1"), &by())
        .unwrap()
        .version
        .sha256;
    let other = desk
        .push(upload(routing(), "ok:2"), &by())
        .unwrap()
        .version
        .sha256;
    let before = store.audit(9).unwrap();
    told(&loader);

    let faulty = Activation {
        config: Some("faulty".into()),
        ..activation(&version, None)
    };
    let trial = TrialOrder {
        slot: routing(),
        sha256: Some(other),
        stage: TrialStage::Shadow,
        config: Some("faulty".into()),
        budget: None,
        reuse: None,
    };
    let refusals = [
        desk.activate(faulty, &by()).err(),
        desk.try_out(trial, &by()).err(),
    ];
    for refused in refusals {
        let Some(DeskError::Rejected(report)) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(report.findings[0].code, "probe-failed");
    }
    assert_eq!(store.audit(9).unwrap(), before, "nothing changed");
    assert_eq!(*loader.0.lock(), None, "and nothing was loaded");
}

fn with(config: Option<&str>, component: &str) -> Upload {
    Upload {
        config: config.map(str::to_owned),
        ..upload(routing(), component)
    }
}

fn codes(report: &PolicyReport) -> Vec<&str> {
    report.findings.iter().map(|finding| &*finding.code).collect()
}

#[test]
fn a_new_version_keeps_the_configuration_in_force_unless_another_is_given() {
    let (desk, _) = desk(&Arc::new(MemoryStore::new()));
    let first = desk.upload(with(None, "ok:1"), &by()).unwrap();
    assert_eq!(first.binding.config, "", "there was none");
    assert_eq!(codes(&first.report), [""; 0]);
    desk.upload(with(Some("{\"a\":1}"), "ok:1"), &by()).unwrap();
    let second = desk.upload(with(None, "ok:2"), &by()).unwrap();
    assert_eq!(second.binding.config, "{\"a\":1}");
    assert_eq!(codes(&second.report), ["configuration-kept"]);
    let third = desk.upload(with(Some(""), "ok:2"), &by()).unwrap();
    assert_eq!(third.binding.config, "", "that is what was asked for");
    assert_eq!(codes(&third.report), [""; 0]);
}

#[test]
fn a_version_that_was_never_bound_is_tried_and_bound_with_the_configuration_in_force() {
    let (desk, _) = desk(&Arc::new(MemoryStore::new()));
    desk.upload(with(Some("{\"a\":1}"), "ok:1"), &by()).unwrap();
    let kept = desk.push(with(None, "ok:2"), &by()).unwrap();
    assert_eq!(kept.config, "{\"a\":1}", "it is checked with what it will have");
    let order = TrialOrder {
        slot: routing(),
        sha256: Some(kept.version.sha256.clone()),
        stage: TrialStage::Shadow,
        config: None,
        budget: None,
        reuse: None,
    };
    let rollout = desk.try_out(order, &by()).unwrap();
    assert_eq!(rollout.trial.unwrap().config, "{\"a\":1}");
    let bound = desk.activate(activation(&kept.version.sha256, None), &by());
    assert_eq!(bound.unwrap().config, "{\"a\":1}");
}

#[test]
fn another_policy_is_not_handed_the_configuration_in_force_and_that_is_said() {
    let (desk, _) = desk(&Arc::new(MemoryStore::new()));
    let named = |name: &str, config, component| Upload {
        name: name.into(),
        ..with(config, component)
    };
    desk.upload(named("one", Some("{\"a\":1}"), "ok:1"), &by())
        .unwrap();
    let kept = desk.push(named("two", None, "ok:2"), &by()).unwrap();
    assert_eq!(
        (&*kept.config, codes(&kept.report)),
        ("", vec!["configuration-not-kept"])
    );
    assert!(
        kept.report.findings[0].help.contains("--name one"),
        "{:?}",
        kept.report
    );
    let bound = desk
        .activate(activation(&kept.version.sha256, None), &by())
        .unwrap();
    assert_eq!((&*bound.name, &*bound.config), ("two", ""));
    let third = desk.upload(named("three", None, "ok:3"), &by()).unwrap();
    assert_eq!(codes(&third.report), [""; 0], "there is none to lose");
}

#[test]
fn whoever_refuses_the_configuration_in_force_is_told_that_it_was_kept() {
    let store = Arc::new(MemoryStore::new());
    let (desk, _) = desk(&store);
    let old = desk.upload(with(None, "ok:1"), &by()).unwrap();
    let never = desk.push(with(None, "ok:2"), &by()).unwrap();
    let refused_by_all = BindingRecord {
        config: "faulty".into(),
        ..old.binding
    };
    store.bind(refused_by_all).unwrap();
    let refusals = [
        desk.upload(with(None, "ok:3"), &by()).err(),
        desk.activate(activation(&never.version.sha256, None), &by())
            .err(),
    ];
    for refused in refusals {
        let Some(DeskError::Rejected(report)) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(codes(&report), ["probe-failed", "configuration-kept"]);
    }
}
