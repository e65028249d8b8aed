//! Keys, signatures and whom they convince.

use super::*;
use crate::system::OsRandom;
use portolan_base::{Moment, TenantName};
use portolan_policy::Scope;
use portolan_ports::{Finding, Severity, Signatures, Signed, VersionSignature};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

fn tenant(name: &str) -> TenantName {
    TenantName::new(name).unwrap()
}

fn trust(required: bool, keys: &[&SecretKey]) -> Trust {
    let keys = keys.iter().map(|key| TrustedKey {
        key: key.public(),
        not_after: None,
    });
    Trust {
        required,
        keys: keys.collect(),
    }
}

fn judged(book: &KeyBook, name: &str, component: &[u8], signatures: &[VersionSignature]) -> Vec<Finding> {
    book.judge(&Signed {
        scope: &Scope::Tenant(tenant(name)),
        sha256: &digest(component),
        signatures,
        at: Moment(1_000),
    })
}

fn code(findings: &[Finding]) -> (&str, Severity) {
    assert!(!findings[0].help.is_empty(), "{findings:?}");
    (&findings[0].code, findings[0].severity)
}

#[test]
fn a_signature_is_good_for_its_bytes_its_key_and_nothing_else() {
    let (ours, theirs) = (SecretKey::draw(&OsRandom), SecretKey::draw(&OsRandom));
    let good = ours.sign(b"policy");
    let sha256 = digest(b"policy");
    assert!(ours.public().made(&good, &sha256));
    assert!(!theirs.public().made(&good, &sha256), "another key");
    assert!(!ours.public().made(&good, &digest(b"policz")), "other bytes");
    assert!(!ours.public().made(&good, &sha256[..62]), "half a digest");
    assert!(!ours.public().made(&good, ""));
    for position in [0, 63, 64, 127] {
        let mut digits = good.signature.clone().into_bytes();
        digits[position] = if digits[position] == b'0' { b'1' } else { b'0' };
        let changed = VersionSignature {
            signature: String::from_utf8(digits).unwrap(),
            ..good.clone()
        };
        assert!(!ours.public().made(&changed, &sha256), "digit {position}");
    }
    // The bare digest, without the prefix, is another message.
    let bare = ed25519_dalek::Signer::sign(&ed25519_dalek::SigningKey::from_bytes(&[7; 32]), &[1, 2, 3]);
    let bare = VersionSignature {
        key_id: good.key_id,
        signature: hex::encode(bare.to_bytes()),
    };
    assert!(!ours.public().made(&bare, &sha256));
}

#[test]
fn the_signature_is_the_one_of_the_standard() {
    // RFC 8032, 7.1, test 1: the secret key and its public key.
    let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rfc.key");
    std::fs::write(&path, format!("portolan-secret-key-1 ed25519 {seed}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let public = SecretKey::read(&path).unwrap().public().to_string();
    assert_eq!(
        public,
        "ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    );
}

#[test]
fn a_scope_that_demands_a_signature_takes_only_its_own_keys() {
    let (acme, globex) = (SecretKey::draw(&OsRandom), SecretKey::draw(&OsRandom));
    let book = KeyBook {
        platform: Trust::default(),
        tenants: BTreeMap::from([
            (tenant("acme"), trust(true, &[&acme])),
            (tenant("globex"), trust(true, &[&globex])),
        ]),
    };
    let by_acme = acme.sign(b"policy");
    assert!(judged(&book, "acme", b"policy", std::slice::from_ref(&by_acme)).is_empty());
    let error = Severity::Error;
    for (name, component, signatures, expected) in [
        ("acme", b"policy", vec![], "unsigned"),
        ("globex", b"policy", vec![by_acme.clone()], "unknown-key"),
        ("acme", b"policz", vec![by_acme.clone()], "bad-signature"),
        ("acme", b"policy", vec![globex.sign(b"policy")], "unknown-key"),
    ] {
        let findings = judged(&book, name, component, &signatures);
        assert_eq!(code(&findings), (expected, error), "{findings:?}");
    }
    // A key id that was swapped: the signature of one key under the name of another.
    let swapped = VersionSignature {
        key_id: by_acme.key_id.clone(),
        ..globex.sign(b"policy")
    };
    assert_eq!(
        code(&judged(&book, "acme", b"policy", std::slice::from_ref(&swapped))).0,
        "bad-signature"
    );
    let both = [swapped, by_acme];
    assert!(
        judged(&book, "acme", b"policy", &both).is_empty(),
        "one good one is enough"
    );
}

#[test]
fn keys_are_rotated_by_overlapping() {
    let (old, new) = (SecretKey::draw(&OsRandom), SecretKey::draw(&OsRandom));
    let mut trusted = trust(true, &[&old, &new]);
    trusted.keys[0].not_after = Some(Moment(1_000));
    let book = |trust: &Trust| KeyBook {
        platform: Trust::default(),
        tenants: BTreeMap::from([(tenant("acme"), trust.clone())]),
    };
    let (by_old, by_new) = (old.sign(b"p"), new.sign(b"p"));
    let found = judged(&book(&trusted), "acme", b"p", std::slice::from_ref(&by_old));
    assert_eq!(
        code(&found),
        ("expired-key", Severity::Error),
        "at the moment itself"
    );
    trusted.keys[0].not_after = Some(Moment(1_001));
    assert!(judged(&book(&trusted), "acme", b"p", std::slice::from_ref(&by_old)).is_empty());
    trusted.keys.remove(0);
    let found = judged(&book(&trusted), "acme", b"p", std::slice::from_ref(&by_old));
    assert_eq!(code(&found), ("unknown-key", Severity::Error));
    assert!(judged(&book(&trusted), "acme", b"p", &[by_old, by_new]).is_empty());
}

#[test]
fn where_none_is_demanded_only_a_wrong_one_is_refused() {
    let (known, stranger) = (SecretKey::draw(&OsRandom), SecretKey::draw(&OsRandom));
    let book = KeyBook {
        platform: Trust::default(),
        tenants: BTreeMap::from([(tenant("acme"), trust(false, &[&known]))]),
    };
    assert!(judged(&book, "acme", b"p", &[]).is_empty());
    let found = judged(&book, "acme", b"p", &[stranger.sign(b"p")]);
    assert_eq!(code(&found), ("unknown-key", Severity::Warning));
    let found = judged(&book, "acme", b"p", &[known.sign(b"q")]);
    assert_eq!(code(&found), ("bad-signature", Severity::Error));
    let found = judged(&book, "globex", b"p", &[known.sign(b"p")]);
    assert_eq!(
        code(&found),
        ("unknown-key", Severity::Warning),
        "a tenant without keys"
    );
}

#[test]
fn a_secret_key_is_written_once_for_its_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.key");
    let key = SecretKey::draw(&OsRandom);
    key.write(&path).unwrap();
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(SecretKey::read(&path).unwrap().public(), key.public());
    assert!(matches!(
        SecretKey::draw(&OsRandom).write(&path),
        Err(BadKey::Exists)
    ));
    assert_eq!(
        SecretKey::read(&path).unwrap().public(),
        key.public(),
        "untouched"
    );

    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(SecretKey::read(&path), Err(BadKey::Readable(0o640))));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    for bad in ["", &text[..40], &text.replace("ed25519", "rsa")] {
        std::fs::write(&path, bad).unwrap();
        assert!(matches!(SecretKey::read(&path), Err(BadKey::Secret)), "{bad:?}");
    }
}

#[test]
fn what_is_no_public_key_is_refused() {
    let good = SecretKey::draw(&OsRandom).public().to_string();
    assert_eq!(good.parse::<PublicKey>().unwrap().to_string(), good);
    let weak = format!("ed25519:01{}", "00".repeat(31));
    for bad in [
        "",
        "ed25519:",
        &good[8..],
        &good[..70],
        &weak,
        &good.replace("ed25519", "rsa"),
    ] {
        assert!(bad.parse::<PublicKey>().is_err(), "{bad}");
    }
}
