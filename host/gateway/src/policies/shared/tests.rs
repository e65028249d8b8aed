//! Two desks of one fleet, each over a store of its own.

use super::*;
use crate::policies::tests::{active, by, desk_over, routing, upload};
use portolan_ports::{MemoryShared, MemoryStore, PolicyStore};

struct Process {
    store: Arc<MemoryStore>,
    desk: PolicyDesk,
}

fn process(shared: &Arc<MemoryShared>) -> Process {
    let store = Arc::new(MemoryStore::new());
    let desk = desk_over(&store).sharing(Arc::clone(shared) as Arc<dyn SharedPolicies>);
    Process { store, desk }
}

/// Takes over everything that was shared so far, as a process does that was away.
fn catch_up(process: &Process, shared: &MemoryShared) -> Vec<bool> {
    let states = shared.shared().into_iter();
    states.map(|state| process.desk.adopt(state).unwrap()).collect()
}

#[test]
fn a_binding_made_at_one_process_answers_at_the_other_and_after_its_restart() {
    let shared = Arc::new(MemoryShared::default());
    let (paris, virginia) = (process(&shared), process(&shared));
    let bound = paris.desk.upload(upload(routing(), "ok:1"), &by()).unwrap();
    assert_eq!(catch_up(&virginia, &shared), [true]);
    assert_eq!(
        active(&virginia.desk, &routing()),
        Some(bound.version.sha256.clone())
    );
    assert_eq!(catch_up(&virginia, &shared), [false], "told twice, done once");
    assert_eq!(catch_up(&paris, &shared), [false], "its own word changes nothing");
    let restarted = desk_over(&virginia.store);
    restarted.restore().unwrap();
    assert_eq!(active(&restarted, &routing()), Some(bound.version.sha256));

    virginia.desk.unbind(&routing(), &by()).unwrap();
    assert_eq!(catch_up(&paris, &shared).last(), Some(&true));
    assert_eq!(active(&paris.desk, &routing()), None);
    let line = &paris.store.audit(1).unwrap()[0];
    assert_eq!(
        (line.action.as_str(), line.actor.as_str()),
        ("policy.unbind", "tess")
    );
}

#[test]
fn pins_and_stops_hold_everywhere() {
    let shared = Arc::new(MemoryShared::default());
    let (paris, virginia) = (process(&shared), process(&shared));
    paris.desk.upload(upload(routing(), "ok:1"), &by()).unwrap();
    paris.desk.pin(&routing(), &by()).unwrap();
    catch_up(&virginia, &shared);
    let refused = virginia.desk.upload(upload(routing(), "ok:2"), &by());
    assert!(matches!(refused, Err(DeskError::Pinned { .. })), "{refused:?}");
    virginia.desk.unpin(&routing(), &by()).unwrap();
    virginia.desk.disable(&routing(), &by()).unwrap();
    catch_up(&paris, &shared);
    assert!(paris.desk.rollout(&routing()).unwrap().disabled.is_some());
    assert_eq!(paris.store.audit(1).unwrap()[0].action, "policy.disable");
}

#[test]
fn what_the_fleet_does_not_take_is_not_changed_here_either_but_a_stop_is() {
    let shared = Arc::new(MemoryShared::default());
    let paris = process(&shared);
    let before = paris.desk.upload(upload(routing(), "ok:1"), &by()).unwrap();
    for error in [
        SharedError::ChangedElsewhere,
        SharedError::NotAcknowledged("cut".into()),
    ] {
        shared.refuse(Some(error.clone()));
        let refused = paris.desk.upload(upload(routing(), "ok:2"), &by()).unwrap_err();
        assert!(matches!(refused, DeskError::NotShared(why) if why == error));
        assert!(paris.desk.unbind(&routing(), &by()).is_err());
        assert_eq!(
            active(&paris.desk, &routing()),
            Some(before.version.sha256.clone())
        );
        assert_eq!(paris.desk.list().unwrap(), std::slice::from_ref(&before.binding));
    }
    paris.desk.disable(&routing(), &by()).unwrap();
    assert!(paris.desk.rollout(&routing()).unwrap().disabled.is_some());
    paris.desk.share_untold();
    assert_eq!(shared.shared().len(), 1, "the fleet does not know yet");
    shared.refuse(None);
    paris.desk.share_untold();
    assert!(shared.shared()[1].rollout.disabled.is_some());
    paris.desk.share_untold();
    assert_eq!(shared.shared().len(), 2, "told once");
}

#[test]
fn a_component_that_is_out_of_reach_or_other_bytes_changes_nothing() {
    let shared = Arc::new(MemoryShared::default());
    let (paris, virginia) = (process(&shared), process(&shared));
    let bound = paris.desk.upload(upload(routing(), "ok:1"), &by()).unwrap();
    let state = shared.shared().remove(0);
    shared.damage(&bound.version.sha256, Bytes::from("ok:evil"));
    assert!(matches!(
        virginia.desk.adopt(state.clone()),
        Err(AdoptError::OtherBytes(_))
    ));
    let elsewhere = Process {
        desk: desk_over(&virginia.store).sharing(Arc::new(MemoryShared::default())),
        store: Arc::clone(&virginia.store),
    };
    assert!(matches!(
        elsewhere.desk.adopt(state),
        Err(AdoptError::Shared(SharedError::Missing(_)))
    ));
    assert!(virginia.store.bindings().unwrap().is_empty());
    assert!(
        virginia
            .store
            .versions(&routing().scope, routing().question)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn what_others_bind_is_pruned_by_the_same_quota_as_what_is_uploaded_here() {
    let shared = Arc::new(MemoryShared::default());
    let (paris, virginia) = (process(&shared), process(&shared));
    let kept = |process: &Process| {
        let slot = routing();
        process.store.versions(&slot.scope, slot.question).unwrap().len()
    };
    let most = portolan_ports::Quotas::default().stored_versions as usize;
    for n in 0..most + 5 {
        paris
            .desk
            .upload(upload(routing(), &format!("ok:{n}")), &by())
            .unwrap();
        virginia.desk.adopt(shared.shared().pop().unwrap()).unwrap();
    }
    assert_eq!((kept(&paris), kept(&virginia)), (most, most));
    assert_eq!(
        active(&virginia.desk, &routing()),
        active(&paris.desk, &routing())
    );
}
