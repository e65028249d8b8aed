//! Signatures at the desk, over the fakes of store, loader and keys.

use crate::policies::tests::{active, by, desk_over, routing, upload};
use crate::policies::{Activation, DeskError, PolicyDesk, RollBack, TrialOrder, Upload};
use portolan_decide::TrialStage;
use portolan_ports::{FakeSignatures, MemoryStore, PolicyStore};
use std::sync::Arc;

const KEY_A: &str = "aaaaaaaaaaaaaaaa";
const KEY_B: &str = "bbbbbbbbbbbbbbbb";

fn desk(store: &Arc<MemoryStore>, trusted: &[&str]) -> PolicyDesk {
    desk_over(store).demanding(Arc::new(FakeSignatures {
        trusted: trusted.iter().map(|&key| key.to_owned()).collect(),
    }))
}

fn line(key: &str, digit: &str) -> String {
    format!("portolan-signature-1 ed25519 {key} {}", digit.repeat(128))
}

fn signed(component: &str, signature: &str) -> Upload {
    Upload {
        signature: signature.to_owned(),
        ..upload(routing(), component)
    }
}

fn code(result: Result<impl std::fmt::Debug, DeskError>) -> String {
    match result {
        Err(DeskError::Rejected(report)) => {
            assert!(!report.ok);
            assert!(!report.findings[0].help.is_empty());
            report.findings[0].code.clone()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_upload_without_a_good_signature_leaves_nothing() {
    let store = Arc::new(MemoryStore::new());
    let desk = desk(&store, &[KEY_A]);
    for (signature, expected) in [
        (String::new(), "unsigned"),
        (line(KEY_B, "1"), "unknown-key"),
        (line(KEY_A, "0"), "bad-signature"),
        (line(KEY_A, "1")[..100].to_owned(), "bad-signature"),
        ("# nothing".to_owned(), "bad-signature"),
    ] {
        assert_eq!(code(desk.upload(signed("ok:1", &signature), &by())), expected);
        assert_eq!(code(desk.push(signed("ok:1", &signature), &by())), expected);
    }
    assert!(store.audit(9).unwrap().is_empty());
    let both = format!("{}\n{}", line(KEY_B, "1"), line(KEY_A, "1"));
    let uploaded = desk.upload(signed("ok:1", &both), &by()).unwrap();
    assert_eq!(
        uploaded.version.signatures.len(),
        2,
        "one good one is enough, all are kept"
    );
}

#[test]
fn the_kept_signature_counts_when_the_same_bytes_come_again() {
    let store = Arc::new(MemoryStore::new());
    let first = desk(&store, &[KEY_A]);
    let version = first
        .push(signed("ok:1", &line(KEY_A, "1")), &by())
        .unwrap()
        .version;
    first.upload(signed("ok:1", ""), &by()).unwrap();

    let rotated = desk(&store, &[KEY_B]);
    assert_eq!(code(rotated.upload(signed("ok:1", ""), &by())), "unknown-key");
    let again = rotated
        .push(signed("ok:1", &line(KEY_B, "2")), &by())
        .unwrap()
        .version;
    assert_eq!(again.signatures.len(), version.signatures.len() + 1);
    assert_eq!(again.at, version.at, "the version is the same");
    assert_eq!(store.audit(1).unwrap()[0].action, "policy.sign");
    let kept = rotated.versions(&routing()).unwrap();
    assert_eq!(kept, [again]);
}

#[test]
fn a_key_that_is_trusted_no_more_leaves_what_is_active_and_stops_every_way_back() {
    let store = Arc::new(MemoryStore::new());
    let before = desk(&store, &[KEY_A, KEY_B]);
    let old = before.upload(signed("ok:1", &line(KEY_A, "1")), &by()).unwrap();
    let old = old.version.sha256;
    let new = before.upload(signed("ok:2", &line(KEY_B, "1")), &by()).unwrap();
    let other = before.push(signed("ok:3", &line(KEY_A, "1")), &by()).unwrap();

    let after = desk(&store, &[KEY_B]);
    assert!(
        after.restore().unwrap().distrusted.is_empty(),
        "bound by the key that stays"
    );
    let activation = |sha256: &str| Activation {
        slot: routing(),
        sha256: sha256.to_owned(),
        config: None,
        budget: None,
        reuse: None,
    };
    let trial = TrialOrder {
        slot: routing(),
        sha256: Some(other.version.sha256),
        stage: TrialStage::Shadow,
        config: None,
        budget: None,
        reuse: None,
    };
    let back = RollBack {
        slot: routing(),
        to: None,
    };
    assert_eq!(code(after.activate(activation(&old), &by())), "unknown-key");
    assert_eq!(code(after.try_out(trial.clone(), &by())), "unknown-key");
    assert_eq!(code(after.roll_back(&back, &by())), "unknown-key");
    assert_eq!(active(&after, &routing()), Some(new.version.sha256.clone()));

    before.try_out(trial, &by()).unwrap();
    assert_eq!(code(after.promote(&routing(), &by())), "unknown-key");
    before.withdraw(&routing(), &by()).unwrap();

    let neither = desk(&store, &[]);
    let restored = neither.restore().unwrap();
    assert_eq!(
        restored.active,
        std::slice::from_ref(&new.binding),
        "it stays in force"
    );
    assert_eq!(restored.distrusted, [new.binding]);
    assert_eq!(active(&neither, &routing()), Some(new.version.sha256));
    neither.disable(&routing(), &by()).unwrap();
    assert_eq!(code(neither.enable(&routing(), &by())), "unknown-key");
}
