//! What is kept of bindings and proposals that are over has a bound, in the store and in the fake alike.

use crate::harness::{Dice, assert_audit_is_whole, binding, version};
use crate::trust::proposal;
use crate::{QUESTION, open};
use portolan_base::{Moment, TenantName};
use portolan_decide::Spent;
use portolan_ports::{
    BINDINGS_KEPT, ENFORCED_KEPT, Enforced, EnforcedRecord, MemoryStore, PROPOSALS_KEPT, PolicyStore,
    Removal, RemovalCause, Scope, Verdict, VerdictKind,
};
use portolan_store::SledStore;

/// Both, so that what one does the other is held to.
fn both(check: impl Fn(&dyn PolicyStore)) {
    let folder = tempfile::tempdir().unwrap();
    check(&SledStore::open(folder.path(), &Dice::seeded(1)).unwrap());
    check(&MemoryStore::new());
}

#[test]
fn of_many_bindings_the_newest_are_kept_and_the_last_of_each_version() {
    both(|store| {
        let acme = Scope::Tenant(TenantName::new("acme").unwrap());
        let put = |name| {
            store
                .put_version(version(acme.clone(), QUESTION, name, 1))
                .unwrap()
        };
        let (early, removed, one, two) = (put("early"), put("removed"), put("one"), put("two"));
        store.bind(binding(&early, 1)).unwrap();
        store.bind(binding(&removed, 2)).unwrap();
        store.bind(binding(&early, 3)).unwrap();
        for round in 0..2 * BINDINGS_KEPT as u64 {
            let next = if round.is_multiple_of(2) { &one } else { &two };
            store.bind(binding(next, 10 + round)).unwrap();
        }
        let history = store.history(&acme, QUESTION).unwrap();
        assert_eq!(
            history.len(),
            BINDINGS_KEPT + 2,
            "the newest, and the last of two versions"
        );
        let last = |sha256: &str| history.iter().rfind(|bound| bound.sha256 == sha256).unwrap();
        assert_eq!(
            last(&early.sha256).config,
            binding(&early, 3).config,
            "how it is bound again"
        );
        let generations: Vec<u64> = history.iter().map(|bound| bound.generation).collect();
        assert!(generations.is_sorted(), "{generations:?}");
        assert_eq!(history.last().unwrap().generation, 3 + 2 * BINDINGS_KEPT as u64);

        let removal = Removal {
            scope: acme.clone(),
            question: QUESTION,
            sha256: removed.sha256,
            cause: RemovalCause::Asked,
            actor: "op".into(),
            reason: String::new(),
            at: Moment(900),
        };
        store.remove_version(removal).unwrap();
        store.bind(binding(&one, 901)).unwrap();
        assert_eq!(store.history(&acme, QUESTION).unwrap().len(), BINDINGS_KEPT + 1);
        assert_audit_is_whole(store, 4 + 3 + 2 * BINDINGS_KEPT + 2);
    });
}

#[test]
fn what_the_host_took_out_of_force_stays_with_its_slot_and_the_latest_are_kept() {
    both(|store| {
        let acme = Scope::Tenant(TenantName::new("acme").unwrap());
        let one = store
            .put_version(version(acme.clone(), QUESTION, "one", 1))
            .unwrap();
        let bad = |at: u64| EnforcedRecord {
            done: Enforced::RolledBack,
            name: "bad".into(),
            sha256: "0".repeat(64),
            config_digest: None,
            percent: None,
            generation: Some(at),
            spent: Spent::Faults {
                faults: 6,
                calls: 6,
                allowed: 5,
            },
            last_fault: None,
            instead: None,
            at: Moment(at),
        };
        let most = ENFORCED_KEPT as u64;
        for at in 2..=most + 2 {
            let instead = portolan_ports::BindingRecord {
                in_place_of: Some(bad(at)),
                ..binding(&one, at)
            };
            store.bind(instead).unwrap();
            store.bind(binding(&one, at)).unwrap();
        }
        let rollout = store.rollout(&acme, QUESTION).unwrap();
        assert_eq!(rollout.enforced, (3..=most + 2).map(bad).collect::<Vec<_>>());
        assert!(
            store.rollouts().unwrap().is_empty(),
            "nothing is on trial or held"
        );
    });
}

#[test]
fn of_many_closed_proposals_the_newest_are_kept_and_those_that_wait_all() {
    both(|store| {
        let closed = |id: u64| {
            let verdict = Verdict {
                kind: VerdictKind::Rejected,
                actor: "operator bob".into(),
                reason: String::new(),
                at: Moment(9),
            };
            store.put_proposal(proposal(id, None)).unwrap();
            store.put_proposal(proposal(id, Some(verdict))).unwrap();
        };
        store.put_proposal(proposal(1, None)).unwrap();
        let most = PROPOSALS_KEPT as u64;
        (2..=most + 11).for_each(closed);
        let ids: Vec<u64> = store.proposals().unwrap().iter().map(|p| p.id).collect();
        let expected: Vec<u64> = [1].into_iter().chain(12..=most + 11).collect();
        assert_eq!(ids, expected);
        assert_audit_is_whole(store, 1 + 2 * (PROPOSALS_KEPT + 10));
    });
}

#[test]
fn what_was_let_go_of_does_not_come_back_with_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let one = store
        .put_version(version(Scope::Platform, QUESTION, "one", 1))
        .unwrap();
    for round in 0..BINDINGS_KEPT as u64 + 1 {
        store.bind(binding(&one, round)).unwrap();
    }
    assert_eq!(
        store.history(&Scope::Platform, QUESTION).unwrap().len(),
        BINDINGS_KEPT
    );
    drop(store);
    assert_eq!(
        open(folder.path())
            .history(&Scope::Platform, QUESTION)
            .unwrap()
            .len(),
        BINDINGS_KEPT
    );
}
