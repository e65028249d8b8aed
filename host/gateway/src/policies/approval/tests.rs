//! Four eyes at the desk, over the fakes of its store and its loader.

use crate::policies::tests::{active, desk_over, routing, upload};
use crate::policies::{
    Activation, By, DeskError, Done, FourEyes, Order, PolicyDesk, PolicySlot, RollBack, Sender, TrialOrder,
};
use portolan_decide::{Budget, PathRecord, Percent, TrialStage};
use portolan_policy::{QuestionKind, Scope};
use portolan_ports::{MemoryStore, PolicyStore, ProposalState, ProposedChange, VerdictKind};
use std::sync::Arc;
use std::time::Duration;

use VerdictKind::{Approved, Rejected};

/// The clock of these tests passes a microsecond with each look at it.
const EXPIRY: Duration = Duration::from_micros(500);

fn platform() -> PolicySlot {
    PolicySlot::new(Scope::Platform, QuestionKind::Routing)
}

fn alice() -> By {
    By::new("operator alice", "faster")
}

fn bob() -> By {
    By::new("operator bob", "seen")
}

fn desk(store: &Arc<MemoryStore>) -> PolicyDesk {
    desk_over(store).with_four_eyes(FourEyes { expiry: EXPIRY })
}

fn proposed(result: Result<Done, DeskError>) -> u64 {
    match result {
        Ok(Done::Proposed(proposal)) => proposal.id,
        other => panic!("{other:?}"),
    }
}

/// Uploads a version for the platform and has it approved; gives its SHA-256.
fn bound(desk: &PolicyDesk, component: &str) -> String {
    let uploaded = desk
        .submit_upload(upload(platform(), component), &alice(), &Sender::Stays)
        .unwrap();
    let id = proposed(Ok(uploaded.done));
    desk.decide(id, Approved, &bob()).unwrap();
    uploaded.stored.version.sha256
}

fn activation(sha256: &str, config: Option<&str>) -> Order {
    Order::Activate(Activation {
        slot: platform(),
        sha256: sha256.to_owned(),
        config: config.map(str::to_owned),
        budget: None,
        reuse: None,
    })
}

fn canary(sha256: &str) -> Order {
    Order::Try(TrialOrder {
        slot: platform(),
        sha256: Some(sha256.to_owned()),
        stage: TrialStage::Canary {
            percent: Percent::try_from(5).unwrap(),
        },
        config: None,
        budget: None,
        reuse: None,
    })
}

#[test]
fn a_platform_change_waits_until_another_operator_approves_it() {
    let store = Arc::new(MemoryStore::new());
    let desk = desk(&store);
    let uploaded = desk
        .submit_upload(upload(platform(), "ok:1"), &alice(), &Sender::Stays)
        .unwrap();
    let id = proposed(Ok(uploaded.done));
    assert_eq!(active(&desk, &platform()), None, "kept, not active");
    let sha256 = uploaded.stored.version.sha256;

    let own = desk.decide(id, Approved, &alice());
    assert!(matches!(own, Err(DeskError::NotYours(_))), "{own:?}");
    assert_eq!(active(&desk, &platform()), None);

    // The proposal is in the store: a host that starts anew has it.
    let desk = super::tests::desk(&store);
    let (open, state) = desk.proposals().unwrap().remove(0);
    assert_eq!((open.id, state), (id, ProposalState::Pending));
    let decision = desk.decide(id, Approved, &bob()).unwrap();
    let Some(Done::Bound(binding)) = decision.done else {
        panic!("{decision:?}")
    };
    assert_eq!(binding.sha256, sha256);
    assert_eq!(active(&desk, &platform()), Some(sha256));

    let audit = store.audit(9).unwrap();
    let told: Vec<_> = audit.iter().rev().map(|l| (&*l.action, &*l.actor)).collect();
    let expected = [
        ("policy.put", "operator alice"),
        ("proposal.open", "operator alice"),
        ("policy.activate", "operator alice, with operator bob"),
        ("proposal.approve", "operator bob"),
    ];
    assert_eq!(told, expected);
    assert_eq!(audit[1].reason, "faster (proposal 1, approved: seen)");
    let again = desk.decide(id, Approved, &bob());
    assert!(matches!(again, Err(DeskError::Conflict(_))), "{again:?}");
}

#[test]
fn no_change_of_the_platform_gets_past_the_rule_and_tenants_are_not_under_it() {
    let store = Arc::new(MemoryStore::new());
    let desk = desk(&store);
    desk.upload(upload(routing(), "ok:0"), &alice()).unwrap();
    desk.submit(Order::Unbind(routing()), &alice()).unwrap();

    let first = bound(&desk, "ok:1");
    let second = bound(&desk, "ok:2");
    let third = desk
        .push(upload(platform(), "ok:3"), &alice())
        .unwrap()
        .version
        .sha256;
    let before = store.audit(99).unwrap();
    let (slot, by) = (platform(), alice());
    let back = RollBack {
        slot: platform(),
        to: None,
    };
    let Order::Activate(again) = activation(&first, None) else {
        panic!()
    };
    let Order::Try(trial) = canary(&third) else {
        panic!()
    };
    let direct = [
        desk.upload(upload(platform(), "ok:4"), &by).map(drop),
        desk.activate(again, &by).map(drop),
        desk.try_out(trial, &by).map(drop),
        desk.roll_back(&back, &by).map(drop),
        desk.unbind(&slot, &by),
        desk.pin(&slot, &by).map(drop),
    ];
    for result in direct {
        assert!(matches!(result, Err(DeskError::NeedsApproval(_))), "{result:?}");
    }
    assert_eq!(store.audit(99).unwrap(), before, "nothing was written");
    assert_eq!(active(&desk, &platform()), Some(second));

    for order in [
        activation(&first, None),
        canary(&third),
        Order::RollBack(back),
        Order::Unbind(platform()),
        Order::Pin(platform()),
    ] {
        proposed(desk.submit(order, &alice()));
    }
}

#[test]
fn what_is_approved_is_exactly_what_was_proposed_or_nothing() {
    let store = Arc::new(MemoryStore::new());
    let desk = desk(&store);
    let first = bound(&desk, "ok:1");
    let second = desk
        .push(upload(platform(), "ok:2"), &alice())
        .unwrap()
        .version
        .sha256;
    let one = proposed(desk.submit(activation(&second, Some("{\"a\":1}")), &alice()));
    let other = proposed(desk.submit(Order::Unbind(platform()), &alice()));
    let same = desk.submit(activation(&second, Some("{\"a\":1}")), &bob());
    assert!(matches!(same, Err(DeskError::Conflict(_))), "{same:?}");

    desk.decide(one, Approved, &bob()).unwrap();
    let binding = desk.list().unwrap().remove(0);
    assert_eq!((&*binding.sha256, &*binding.config), (&*second, "{\"a\":1}"));
    let late = desk.decide(other, Approved, &bob());
    assert!(
        matches!(late, Err(DeskError::Conflict(_))),
        "the slot changed: {late:?}"
    );
    assert_eq!(active(&desk, &platform()), Some(second));
    let rejected = desk.decide(other, Rejected, &alice()).unwrap();
    assert_eq!(rejected.done, None, "one's own may be taken back");

    let back = Order::RollBack(RollBack {
        slot: platform(),
        to: None,
    });
    let back = proposed(desk.submit(back, &bob()));
    let (proposal, _) = desk.proposals().unwrap().remove(0);
    assert!(matches!(&proposal.change, ProposedChange::Rollback { sha256, .. } if *sha256 == first));
    desk.decide(back, Approved, &alice()).unwrap();
    assert_eq!(active(&desk, &platform()), Some(first));
}

#[test]
fn a_trial_and_its_promotion_are_two_proposals() {
    let desk = desk(&Arc::new(MemoryStore::new()));
    bound(&desk, "ok:1");
    let second = desk
        .push(upload(platform(), "ok:2"), &alice())
        .unwrap()
        .version
        .sha256;
    let trial = proposed(desk.submit(canary(&second), &alice()));
    assert!(desk.rollout(&platform()).unwrap().trial.is_none());
    desk.decide(trial, Approved, &bob()).unwrap();
    let running = desk.rollout(&platform()).unwrap().trial.unwrap();
    assert_eq!((&running.sha256, running.budget), (&second, Budget::default()));
    let promotion = proposed(desk.submit(Order::Promote(platform()), &bob()));
    desk.decide(promotion, Approved, &alice()).unwrap();
    assert_eq!(active(&desk, &platform()), Some(second));
}

#[test]
fn a_proposal_expires() {
    let desk = desk(&Arc::new(MemoryStore::new()));
    let uploaded = desk
        .submit_upload(upload(platform(), "ok:1"), &alice(), &Sender::Stays)
        .unwrap();
    let id = proposed(Ok(uploaded.done));
    while desk.proposals().unwrap()[0].1 == ProposalState::Pending {}
    let late = desk.decide(id, Approved, &bob());
    assert!(matches!(late, Err(DeskError::Conflict(_))), "{late:?}");
    assert_eq!(active(&desk, &platform()), None);
    let anew = activation(&uploaded.stored.version.sha256, None);
    assert_eq!(proposed(desk.submit(anew, &alice())), id + 1);
}

#[test]
fn one_operator_may_disable_in_an_emergency_and_not_enable() {
    let store = Arc::new(MemoryStore::new());
    let desk = desk(&store);
    let first = bound(&desk, "ok:1");
    let done = desk.submit(Order::Disable(platform()), &alice()).unwrap();
    assert!(matches!(done, Done::Rollout(_)), "{done:?}");
    let line = store.audit(1).unwrap().remove(0);
    assert_eq!(line.action, "policy.disable");
    assert_eq!(line.reason, "faster (alone, without approval)");
    let id = proposed(desk.submit(Order::Enable(platform()), &alice()));
    desk.decide(id, Approved, &bob()).unwrap();
    assert_eq!(active(&desk, &platform()), Some(first));
}

#[test]
fn a_spent_budget_waits_for_nobody() {
    let desk = desk(&Arc::new(MemoryStore::new()));
    bound(&desk, "ok:1");
    let second = desk
        .push(upload(platform(), "ok:2"), &alice())
        .unwrap()
        .version
        .sha256;
    let trial = proposed(desk.submit(canary(&second), &alice()));
    desk.decide(trial, Approved, &bob()).unwrap();
    let record: PathRecord = crate::policies::rollout::tests::platform_record(&second, "trap");
    let spent = (0..10_000).flat_map(|_| desk.observe(&record)).next();
    let spent = spent.expect("ten thousand traps spend any budget");
    assert!(desk.enforce(&spent).unwrap().is_some());
    assert!(desk.rollout(&platform()).unwrap().trial.is_none());
}
