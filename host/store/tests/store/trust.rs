//! Signatures, proposals and named keys survive a restart, and the fake keeps them as the store does.

use crate::harness::version;
use crate::{QUESTION, open};
use portolan_base::{Moment, OperatorName};
use portolan_ports::{
    KeyRecord, MemoryStore, NewVersion, PolicyStore, Principal, ProposalRecord, ProposedChange, Reuse,
    RolloutRecord, Scope, SlotState, Verdict, VerdictKind, VersionSignature,
};

fn signed(key: char, at: u64) -> NewVersion {
    let signature = VersionSignature {
        key_id: key.to_string().repeat(16),
        signature: "1".repeat(128),
    };
    NewVersion {
        signatures: vec![signature],
        ..version(Scope::Platform, QUESTION, "one", at)
    }
}

pub(crate) fn proposal(id: u64, verdict: Option<Verdict>) -> ProposalRecord {
    ProposalRecord {
        id,
        scope: Scope::Platform,
        question: QUESTION,
        change: ProposedChange::Try {
            sha256: "ab".repeat(32),
            config: "{}".into(),
            budget: Default::default(),
            reuse: Reuse::ByClass,
            stage: portolan_decide::TrialStage::Canary {
                percent: portolan_decide::Percent::try_from(5).unwrap(),
            },
        },
        found: SlotState {
            bound: Some(3),
            made: 4,
            rollout: RolloutRecord::plain(Scope::Platform, QUESTION),
        },
        actor: "operator alice".into(),
        reason: "why".into(),
        at: Moment(7),
        expires: Moment(u64::MAX),
        verdict,
    }
}

/// Everything this file is about, done to a store; gives what it says afterwards.
fn written(store: &dyn PolicyStore) -> String {
    let first = store.put_version(signed('a', 1)).unwrap();
    let same = store.put_version(signed('a', 2)).unwrap();
    assert_eq!(same, first, "nothing to add");
    store.put_version(signed('b', 3)).unwrap();
    let alice = KeyRecord {
        principal: Principal::Operator,
        label: "configuration".into(),
        holder: Some(OperatorName::new("alice").unwrap()),
    };
    store
        .put_key("sk-alice", alice, "configuration", Moment(4))
        .unwrap();
    store.put_proposal(proposal(1, None)).unwrap();
    store.put_proposal(proposal(2, None)).unwrap();
    let verdict = Verdict {
        kind: VerdictKind::Approved,
        actor: "operator bob".into(),
        reason: "read".into(),
        at: Moment(9),
    };
    store.put_proposal(proposal(1, Some(verdict))).unwrap();
    told(store)
}

fn told(store: &dyn PolicyStore) -> String {
    let versions = store.versions(&Scope::Platform, QUESTION).unwrap();
    let (key, proposals) = (store.key("sk-alice").unwrap(), store.proposals().unwrap());
    format!(
        "{versions:?} {key:?} {proposals:?} {:?}",
        store.audit(99).unwrap()
    )
}

#[test]
fn signatures_names_and_proposals_come_back_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let before = written(&store);
    assert_eq!(before, written(&MemoryStore::new()), "the fake keeps the same");
    drop(store);
    let store = open(folder.path());
    assert_eq!(told(&store), before);

    let version = store.versions(&Scope::Platform, QUESTION).unwrap().remove(0);
    let keys: Vec<_> = version.signatures.iter().map(|s| &s.key_id[..1]).collect();
    assert_eq!(keys, ["a", "b"]);
    assert_eq!(store.key("sk-alice").unwrap().unwrap().actor(), "operator alice");
    let actions: Vec<_> = store
        .audit(99)
        .unwrap()
        .into_iter()
        .rev()
        .map(|l| l.action)
        .collect();
    let expected = [
        "policy.put",
        "policy.sign",
        "key.put",
        "proposal.open",
        "proposal.open",
        "proposal.approve",
    ];
    assert_eq!(actions, expected);
}
