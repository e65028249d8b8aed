//! Rollouts over the fakes of the store and the loader.

use crate::policies::tests::{acme, active, by, desk_over, routing, upload};
use crate::policies::{Activation, By, DeskError, PolicyDesk, PolicySlot, RollBack, TrialOrder, Upload};
use portolan_base::{RequestId, TenantName};
use portolan_decide::{Budget, Draw, PathRecord, Percent, TrialStage};
use portolan_policy::{PolicySource, QuestionKind, Scope};
use portolan_ports::{
    BindingChange, ENFORCED_KEPT, Enforced, EnforcedRecord, MemoryStore, PolicyStore, StoreCall,
    config_digest,
};
use std::sync::Arc;

struct Bench {
    store: Arc<MemoryStore>,
    desk: PolicyDesk,
}

impl Bench {
    fn new() -> Self {
        let store = Arc::new(MemoryStore::new());
        let desk = desk_over(&store);
        Self { store, desk }
    }

    /// Binds a version and gives its SHA-256.
    fn bound(&self, component: &str, config: &str) -> String {
        let upload = Upload {
            config: Some(config.into()),
            ..upload(routing(), component)
        };
        self.desk.upload(upload, &by()).unwrap().version.sha256
    }

    fn stored(&self, component: &str) -> String {
        let stored = self.desk.push(upload(routing(), component), &by());
        stored.unwrap().version.sha256
    }

    fn canary(&self, sha256: &str, percent: u8, budget: Budget) -> Result<(), DeskError> {
        self.desk
            .try_out(canary_order(Some(sha256), percent, Some(budget)), &by())
            .map(drop)
    }

    /// Which version answers acme's routing question at a place of the draw.
    fn answers(&self, place: u64) -> Option<String> {
        answers(&self.desk, place)
    }

    /// What the host took out of force by itself, as the slot's owner sees it after a restart.
    fn enforced(&self) -> Vec<EnforcedRecord> {
        let restarted = desk_over(&self.store);
        restarted.rollout(&routing()).unwrap().enforced
    }

    fn actions(&self) -> Vec<String> {
        let audit = self.store.audit(99).unwrap().into_iter().rev();
        audit.map(|line| line.action).collect()
    }

    /// So many calls of a version end so; the breaches are enforced as the gateway does.
    fn calls(&self, version: &str, outcome: &str, calls: usize) -> Vec<Enforced> {
        let record = record(version, outcome);
        let breaches = (0..calls).flat_map(|_| self.desk.observe(&record));
        breaches
            .filter_map(|breach| self.desk.enforce(&breach).unwrap())
            .collect()
    }
}

fn answers(desk: &PolicyDesk, place: u64) -> Option<String> {
    let policies = desk.table().for_tenant(&tenant(), Draw::of(place));
    policies.routing.map(|p| p.descriptor().version.clone())
}

fn tenant() -> TenantName {
    TenantName::new("acme").unwrap()
}

fn canary_order(sha256: Option<&str>, percent: u8, budget: Option<Budget>) -> TrialOrder {
    TrialOrder {
        slot: routing(),
        sha256: sha256.map(str::to_owned),
        stage: TrialStage::Canary {
            percent: Percent::try_from(percent).unwrap(),
        },
        config: None,
        budget,
        reuse: None,
    }
}

fn record(version: &str, outcome: &str) -> PathRecord {
    let call = serde_json::json!({
        "question": "routing", "name": "mine", "version": version, "source": "tenant", "micros": 10,
        "outcome": outcome,
    });
    let id = RequestId::from_client("r").unwrap();
    let text = serde_json::json!({
        "request_id": id, "tenant": tenant(), "model": "m", "accepted_ms": 0, "prompt_tokens": 1,
        "completion_tokens": 1, "route": null, "request": {}, "candidates": [], "policies": [call],
        "placements": [], "stages": [],
        "kv": { "bytes_moved": 0, "cached_tokens": 0, "computed_tokens": 0, "chunks_resent": 0 },
        "fallbacks": [], "status": "ok",
    });
    serde_json::from_value(text).unwrap()
}

/// The same, answered by the platform's policy.
pub(in crate::policies) fn platform_record(version: &str, outcome: &str) -> PathRecord {
    let mut record = record(version, outcome);
    record.policies[0].source = PolicySource::Platform;
    record
}

fn strict() -> Budget {
    Budget {
        window: 10,
        max_fault_permille: 100,
        max_micros_p99: None,
    }
}

fn undo() -> RollBack {
    RollBack {
        slot: routing(),
        to: None,
    }
}

#[test]
fn a_canary_answers_its_share_and_a_restart_brings_it_back() {
    let bench = Bench::new();
    let (old, new) = (bench.bound("ok:1", ""), bench.stored("ok:2"));
    bench.canary(&new, 25, strict()).unwrap();
    assert_eq!(bench.answers(2_499), Some(new.clone()));
    assert_eq!(bench.answers(2_500), Some(old.clone()));
    let restarted = desk_over(&bench.store);
    restarted.restore().unwrap();
    assert_eq!(answers(&restarted, 2_499), Some(new.clone()));
    assert_eq!(answers(&restarted, 2_500), Some(old.clone()));

    let wider = canary_order(None, 50, None);
    let rollout = bench.desk.try_out(wider, &by()).unwrap();
    assert_eq!(rollout.trial.unwrap().budget, strict(), "the budget is kept");
    assert_eq!(bench.answers(4_999), Some(new));
    bench.desk.withdraw(&routing(), &by()).unwrap();
    assert_eq!(bench.answers(0), Some(old));
    assert_eq!(
        bench.actions()[3..],
        ["policy.canary", "policy.canary", "policy.withdraw"]
    );
}

#[test]
fn a_canary_without_a_bound_version_shares_with_the_platforms() {
    let bench = Bench::new();
    let platform = PolicySlot::new(Scope::Platform, QuestionKind::Routing);
    let theirs = bench.desk.upload(upload(platform, "ok:9"), &by()).unwrap();
    let new = bench.stored("ok:2");
    bench.canary(&new, 50, strict()).unwrap();
    assert_eq!(bench.answers(0), Some(new));
    assert_eq!(bench.answers(9_999), Some(theirs.version.sha256));
}

#[test]
fn a_shadow_answers_nobody() {
    let bench = Bench::new();
    let (old, new) = (bench.bound("ok:1", ""), bench.stored("ok:2"));
    let order = TrialOrder {
        stage: TrialStage::Shadow,
        ..canary_order(Some(&new), 1, None)
    };
    bench.desk.try_out(order, &by()).unwrap();
    let policies = bench.desk.table().for_tenant(&tenant(), Draw::of(0));
    assert_eq!(policies.routing.unwrap().descriptor().version, old);
    assert_eq!(policies.shadows.len(), 1);
    assert_eq!(policies.shadows[0].descriptor().version, new);
}

#[test]
fn promotion_binds_with_configuration_and_budget_and_ends_the_trial() {
    let bench = Bench::new();
    let (_, new) = (bench.bound("ok:1", ""), bench.stored("ok:2"));
    let order = TrialOrder {
        config: Some("{\"a\":1}".into()),
        ..canary_order(Some(&new), 1, Some(strict()))
    };
    bench.desk.try_out(order, &by()).unwrap();
    let binding = bench.desk.promote(&routing(), &by()).unwrap();
    assert_eq!(
        (&binding.sha256, &*binding.config, binding.budget, binding.how),
        (&new, "{\"a\":1}", Some(strict()), BindingChange::Promote)
    );
    assert_eq!(bench.answers(9_999), Some(new));
    assert!(bench.desk.rollout(&routing()).unwrap().trial.is_none());
    assert!(bench.desk.table().trial(&acme(), QuestionKind::Routing).is_none());
    assert!(matches!(
        bench.desk.promote(&routing(), &by()),
        Err(DeskError::NotFound(_))
    ));
}

#[test]
fn a_trial_that_spends_its_budget_is_withdrawn_once_by_the_budget() {
    let bench = Bench::new();
    let (old, new) = (bench.bound("ok:1", ""), bench.stored("ok:2"));
    bench.canary(&new, 50, strict()).unwrap();
    assert_eq!(bench.calls(&new, "trap", 1), [], "one in ten is allowed");
    assert_eq!(
        bench.calls(&new, "saturated", 20),
        [],
        "others may have filled the lane"
    );
    assert_eq!(
        bench.calls(&old, "trap", 20),
        [],
        "the bound version has no budget"
    );
    bench.canary(&new, 50, strict()).unwrap();
    assert_eq!(bench.calls(&new, "trap", 9), [Enforced::Withdrawn]);
    assert_eq!(bench.answers(0), Some(old));
    let line = &bench.store.audit(1).unwrap()[0];
    assert_eq!(
        (&*line.actor, &*line.action, &*line.reason),
        ("budget", "policy.withdraw", "2 faults in 2 calls, 1 allowed")
    );
}

#[test]
fn a_bound_version_that_spends_its_budget_gives_way_to_the_one_before() {
    let bench = Bench::new();
    let (old, new) = (bench.bound("ok:1", "old"), bench.stored("ok:2"));
    bench.canary(&new, 50, strict()).unwrap();
    bench.desk.promote(&routing(), &by()).unwrap();
    assert_eq!(bench.calls(&new, "ok", 100), []);
    assert_eq!(bench.calls(&new, "timed-out", 5), [Enforced::RolledBack]);
    assert_eq!(bench.answers(0), Some(old));
    let binding = bench.desk.list().unwrap().remove(0);
    assert_eq!((&*binding.config, &*binding.actor), ("old", "budget"));
    assert_eq!(bench.actions().last().unwrap(), "policy.rollback");
}

#[test]
fn the_owner_is_told_what_was_withdrawn_why_and_who_answers_instead() {
    let bench = Bench::new();
    let (old, new) = (bench.bound("ok:1", "old"), bench.stored("ok:2"));
    assert_eq!(bench.enforced(), []);
    bench.canary(&new, 50, strict()).unwrap();
    bench.calls(&new, "trap", 9);
    let told = bench.enforced().pop().unwrap();
    assert_eq!(
        (
            told.done,
            &told.sha256,
            told.percent.map(u8::from),
            told.generation
        ),
        (Enforced::Withdrawn, &new, Some(50), None)
    );
    assert_eq!(told.spent.to_string(), "2 faults in 2 calls, 1 allowed");
    assert_eq!(told.last_fault.as_deref(), Some("trap"));
    assert_eq!(told.instead.unwrap().sha256, old);

    bench.canary(&new, 50, strict()).unwrap();
    let promoted = bench.desk.promote(&routing(), &by()).unwrap();
    bench.calls(&new, "timed-out", 5);
    let told = bench.enforced().pop().unwrap();
    assert_eq!(
        (told.done, told.generation, told.config_digest),
        (
            Enforced::RolledBack,
            Some(promoted.generation),
            config_digest(&promoted.config)
        )
    );
    assert_eq!(told.instead.unwrap().sha256, old);
    assert_eq!(
        bench.enforced().len(),
        2,
        "the withdrawal before it is still told"
    );
    let binding = bench.desk.list().unwrap().remove(0);
    assert_eq!(binding.in_place_of.unwrap().sha256, new);

    bench.canary(&new, 50, strict()).unwrap();
    bench.desk.withdraw(&routing(), &by()).unwrap();
    assert_eq!(bench.enforced().len(), 2, "what people do is not the host's");
}

#[test]
fn a_canary_with_nothing_bound_is_followed_by_nobody_of_the_slot_and_the_latest_are_kept() {
    let bench = Bench::new();
    let new = bench.stored("ok:2");
    for _ in 0..=ENFORCED_KEPT {
        bench.canary(&new, 50, strict()).unwrap();
        assert_eq!(bench.calls(&new, "trap", 2), [Enforced::Withdrawn]);
    }
    let told = bench.enforced();
    assert_eq!(told.len(), ENFORCED_KEPT);
    assert!(told.iter().all(|told| told.instead.is_none()));
}

#[test]
fn a_bound_version_with_nothing_before_it_or_a_pin_stays() {
    let bench = Bench::new();
    let only = bench.stored("ok:1");
    let activation = |sha256: &str| Activation {
        slot: routing(),
        sha256: sha256.into(),
        config: None,
        budget: Some(strict()),
        reuse: None,
    };
    bench.desk.activate(activation(&only), &by()).unwrap();
    assert_eq!(bench.calls(&only, "trap", 9), []);
    let second = bench.stored("ok:2");
    bench.desk.activate(activation(&second), &by()).unwrap();
    bench.desk.pin(&routing(), &by()).unwrap();
    assert_eq!(bench.calls(&second, "trap", 9), []);
    assert_eq!(bench.answers(0), Some(second.clone()));
    bench.desk.unpin(&routing(), &by()).unwrap();
    assert_eq!(
        bench.calls(&second, "trap", 2),
        [Enforced::RolledBack],
        "it goes on failing"
    );
    assert_eq!(bench.answers(0), Some(only));
}

#[test]
fn a_budget_that_could_not_be_enforced_is_enforced_later() {
    let bench = Bench::new();
    let (old, new) = (bench.bound("ok:1", ""), bench.stored("ok:2"));
    bench.canary(&new, 50, strict()).unwrap();
    let record = record(&new, "trap");
    let mut breaches = (0..2).flat_map(|_| bench.desk.observe(&record));
    let breach = breaches.next().expect("two faults in ten are one too many");
    bench.store.fail(StoreCall::PutRollout);
    bench.desk.enforce(&breach).unwrap_err();
    bench.store.heal();
    assert_eq!(bench.calls(&new, "trap", 99), [], "not at once");
    assert_eq!(bench.calls(&new, "trap", 1), [Enforced::Withdrawn]);
    assert_eq!(bench.answers(0), Some(old));
}

#[test]
fn roll_backs_go_one_step_at_a_time_and_restore_the_configuration() {
    let bench = Bench::new();
    let one = bench.bound("ok:1", "c1");
    let two = bench.bound("ok:2", "c2");
    let three = bench.bound("ok:3", "c3");
    let back = || {
        let binding = bench.desk.roll_back(&undo(), &by());
        binding.map(|b| (b.sha256, b.config))
    };
    assert_eq!(back().unwrap(), (two, "c2".into()));
    assert_eq!(back().unwrap(), (one, "c1".into()));
    assert!(matches!(back(), Err(DeskError::NotFound(_))));
    let to = RollBack {
        to: Some(three.clone()),
        ..undo()
    };
    assert_eq!(bench.desk.roll_back(&to, &by()).unwrap().config, "c3");
    assert_eq!(active(&bench.desk, &routing()), Some(three.clone()));
    bench.desk.unbind(&routing(), &by()).unwrap();
    assert_eq!(
        bench.desk.roll_back(&undo(), &by()).unwrap().sha256,
        three,
        "after an unbind: what was in force"
    );
}

#[test]
fn a_pin_refuses_every_change_of_the_binding_and_names_who_and_why() {
    let bench = Bench::new();
    let (old, new) = (bench.bound("ok:1", ""), bench.stored("ok:2"));
    bench.canary(&new, 10, strict()).unwrap();
    let pin = By::new("operator", "audit week");
    bench.desk.pin(&routing(), &pin).unwrap();
    let activation = Activation {
        slot: routing(),
        sha256: new.clone(),
        config: None,
        budget: None,
        reuse: None,
    };
    let desk = &bench.desk;
    let refused = [
        desk.upload(upload(routing(), "ok:3"), &by()).err(),
        desk.activate(activation, &by()).err(),
        bench.canary(&new, 50, strict()).err(),
        desk.promote(&routing(), &by()).err(),
        desk.roll_back(
            &RollBack {
                to: Some(old),
                ..undo()
            },
            &by(),
        )
        .err(),
        desk.unbind(&routing(), &by()).err(),
        desk.disable(&routing(), &by()).err(),
        desk.pin(&routing(), &by()).err(),
    ];
    for (position, error) in refused.iter().enumerate() {
        let error = error
            .as_ref()
            .unwrap_or_else(|| panic!("change {position} was made"));
        assert!(matches!(error, DeskError::Pinned { .. }), "{position}: {error}");
        assert!(
            error.to_string().contains("pinned by operator (audit week)"),
            "{error}"
        );
    }
    let restarted = desk_over(&bench.store);
    restarted.restore().unwrap();
    assert!(
        restarted.unbind(&routing(), &by()).is_err(),
        "a restart keeps the pin"
    );
    assert!(
        desk.push(upload(routing(), "ok:4"), &by()).is_ok(),
        "storing changes nobody's answer"
    );
    desk.withdraw(&routing(), &by()).unwrap();
    desk.unpin(&routing(), &by()).unwrap();
    desk.upload(upload(routing(), "ok:3"), &by()).unwrap();
    assert!(matches!(
        desk.unpin(&routing(), &by()),
        Err(DeskError::Conflict(_))
    ));
}

#[test]
fn a_disabled_question_is_answered_by_its_fallback_until_it_is_enabled() {
    let bench = Bench::new();
    let (old, new) = (bench.bound("ok:1", ""), bench.stored("ok:2"));
    bench.canary(&new, 50, strict()).unwrap();
    bench
        .desk
        .disable(&routing(), &By::new("operator", "too slow"))
        .unwrap();
    let says = |desk: &PolicyDesk| {
        let policies = desk.table().for_tenant(&tenant(), Draw::of(0));
        let policy = policies.routing.unwrap();
        let question = portolan_policy::Question::Routing {
            request: &[],
            routes: portolan_policy::Matrix::new(1, &[]),
            costs: portolan_policy::Matrix::new(1, &[]),
        };
        let call = portolan_policy::Call {
            question,
            labels: &Default::default(),
            request_id: "r",
        };
        policy
            .ask(&call)
            .result
            .map(drop)
            .map_err(|fault| fault.to_string())
    };
    let said = says(&bench.desk).unwrap_err();
    assert!(said.contains("disabled by operator: too slow"), "{said}");
    bench.bound("ok:3", "");
    assert!(says(&bench.desk).is_err(), "an upload does not enable");
    let restarted = desk_over(&bench.store);
    restarted.restore().unwrap();
    assert!(says(&restarted).is_err(), "a restart does not enable");
    bench.desk.enable(&routing(), &by()).unwrap();
    assert!(says(&bench.desk).is_ok());
    assert_eq!(bench.answers(0), Some(new), "the canary is back");
    assert_ne!(bench.answers(9_999), Some(old), "and the newest binding");
}

#[test]
fn a_store_that_fails_leaves_the_table_as_it_was() {
    let bench = Bench::new();
    let (old, new) = (bench.bound("ok:1", ""), bench.stored("ok:2"));
    bench.store.fail(StoreCall::PutRollout);
    assert!(bench.canary(&new, 100, strict()).is_err());
    assert!(bench.desk.disable(&routing(), &by()).is_err());
    assert_eq!(bench.answers(0), Some(old));
    bench.store.heal();
    bench.canary(&new, 100, strict()).unwrap();
    bench.store.fail(StoreCall::PutRollout);
    assert!(bench.desk.withdraw(&routing(), &by()).is_err());
    assert_eq!(bench.answers(0), Some(new));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let bench = Bench::new();
    let old = bench.bound("ok:1", "");
    let none = canary_order(None, 5, None);
    assert!(matches!(
        bench.desk.try_out(none, &by()),
        Err(DeskError::NotFound(_))
    ));
    assert!(matches!(
        bench.canary(&old, 5, strict()),
        Err(DeskError::Conflict(_))
    ));
    let empty = Budget {
        window: 0,
        ..strict()
    };
    let new = bench.stored("ok:2");
    assert!(matches!(
        bench.canary(&new, 5, empty),
        Err(DeskError::BadBudget(_))
    ));
    let unknown = bench.canary(&"0".repeat(64), 5, strict());
    assert!(matches!(unknown, Err(DeskError::NotFound(_))));
    let elsewhere = PolicySlot::new(Scope::Platform, QuestionKind::Cost);
    assert!(matches!(
        bench.desk.disable(&elsewhere, &by()),
        Err(DeskError::NotFound(_))
    ));
    assert!(matches!(
        bench.desk.withdraw(&elsewhere, &by()),
        Err(DeskError::NotFound(_))
    ));
}

#[test]
fn what_no_request_asks_is_not_put_on_trial() {
    let bench = Bench::new();
    let slot = PolicySlot::new(acme(), QuestionKind::Invalidation);
    let pushed = bench.desk.push(upload(slot.clone(), "ok:1"), &by()).unwrap();
    for stage in [TrialStage::Shadow, canary_order(None, 5, None).stage] {
        let order = TrialOrder {
            slot: slot.clone(),
            stage,
            ..canary_order(Some(&pushed.version.sha256), 5, None)
        };
        let refused = bench.desk.try_out(order, &by());
        let Err(DeskError::Conflict(why)) = refused else {
            panic!("{refused:?}")
        };
        assert!(why.contains("activate the version"), "{why}");
    }
    assert!(bench.desk.rollout(&slot).unwrap().is_plain());
}
