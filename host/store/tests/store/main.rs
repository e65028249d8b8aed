//! The store against its promises: acknowledged is kept, damaged is told, and it behaves as its model in memory.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests are outside the functions that clippy knows as tests"
)]

mod bounds;
mod full;
mod harness;
mod kill;
mod model;
mod trust;

use harness::{Dice, binding, tenant, version};
use portolan_base::{Moment, TenantName};
use portolan_policy::QuestionKind;
use portolan_ports::{
    Admission, KeyRecord, PolicyStore, Principal, Removal, RemovalCause, Scope, StoreError, UploadTurn,
};
use portolan_store::SledStore;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

const QUESTION: QuestionKind = QuestionKind::Routing;

fn open(folder: &Path) -> SledStore {
    SledStore::open(folder, &Dice::seeded(1)).unwrap()
}

fn operator(label: &str) -> KeyRecord {
    KeyRecord {
        principal: Principal::Operator,
        label: label.into(),
        holder: None,
    }
}

#[test]
fn a_restart_comes_back_with_everything() {
    let folder = tempfile::tempdir().unwrap();
    let acme = Scope::Tenant(TenantName::new("acme").unwrap());
    let store = open(folder.path());
    let first = store
        .put_version(version(acme.clone(), QUESTION, "one", 1))
        .unwrap();
    let second = store
        .put_version(version(acme.clone(), QUESTION, "two", 2))
        .unwrap();
    let bound = store.bind(binding(&first, 3)).unwrap();
    let rebound = store.bind(binding(&second, 4)).unwrap();
    store.put_tenant(tenant("acme", "eu"), "op", Moment(5)).unwrap();
    store
        .put_key("sk-acme", operator("console"), "op", Moment(6))
        .unwrap();
    store.put_compiled(&first.sha256, b"newer").unwrap();
    let audit = store.audit(99).unwrap();
    let subkey = store.platform_secret().derive("test");
    drop(store);

    let store = open(folder.path());
    assert_eq!(
        store.versions(&acme, QUESTION).unwrap(),
        [first.clone(), second.clone()]
    );
    assert_eq!(store.versions(&Scope::Platform, QUESTION).unwrap(), []);
    assert_eq!(store.component(&first.sha256).unwrap(), "component one");
    assert_eq!(store.compiled(&first.sha256).unwrap().unwrap(), "newer");
    assert_eq!(
        store.compiled(&second.sha256).unwrap().unwrap(),
        "artefact of two"
    );
    assert_eq!(store.bindings().unwrap(), std::slice::from_ref(&rebound));
    assert_eq!(store.history(&acme, QUESTION).unwrap(), [bound, rebound]);
    assert_eq!(
        store.tenant(&TenantName::new("acme").unwrap()).unwrap(),
        Some(tenant("acme", "eu"))
    );
    assert_eq!(store.authenticate("sk-acme").unwrap(), Some(Principal::Operator));
    assert_eq!(store.authenticate("sk-acmf").unwrap(), None);
    assert_eq!(store.audit(99).unwrap(), audit);
    assert_eq!(
        audit.iter().map(|line| line.sequence).collect::<Vec<_>>(),
        [6, 5, 4, 3, 2, 1]
    );
    assert_eq!(store.platform_secret().derive("test"), subkey);
    assert_ne!(store.platform_secret().derive("other"), subkey);
}

#[test]
fn a_second_open_is_refused_until_the_first_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let error = SledStore::open(folder.path(), &Dice::seeded(1)).unwrap_err();
    assert!(matches!(error, StoreError::InUse(_)), "{error}");
    assert!(
        error.to_string().contains("over HTTP"),
        "says what to do: {error}"
    );
    drop(store);
    drop(open(folder.path()));
}

#[test]
fn storing_the_same_component_again_returns_the_first_record() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let first = store
        .put_version(version(Scope::Platform, QUESTION, "one", 1))
        .unwrap();
    let again = store
        .put_version(version(Scope::Platform, QUESTION, "one", 9))
        .unwrap();
    assert_eq!(again, first);
    assert_eq!(store.audit(9).unwrap().len(), 1);
    let elsewhere = store
        .put_version(version(Scope::Platform, QuestionKind::Cost, "one", 9))
        .unwrap();
    assert_eq!(
        (elsewhere.sha256, elsewhere.at),
        (first.sha256, Moment(9)),
        "one file, two versions"
    );
}

#[test]
fn a_damaged_component_is_told_and_mended_by_the_same_upload() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let record = store
        .put_version(version(Scope::Platform, QUESTION, "one", 1))
        .unwrap();
    let path = folder
        .path()
        .join("components")
        .join(format!("{}.wasm", record.sha256));
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(4)
        .unwrap();
    let error = store.component(&record.sha256).unwrap_err();
    assert!(
        matches!(&error, StoreError::Damaged { place, .. } if *place == path.display().to_string()),
        "{error}"
    );
    store
        .put_version(version(Scope::Platform, QUESTION, "one", 2))
        .unwrap();
    assert_eq!(store.component(&record.sha256).unwrap(), "component one");
    fs::remove_file(&path).unwrap();
    assert!(matches!(
        store.component(&record.sha256),
        Err(StoreError::NotFound(_))
    ));
}

#[test]
fn only_what_is_stored_can_be_bound_and_only_a_digest_names_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let record = store
        .put_version(version(Scope::Platform, QUESTION, "one", 1))
        .unwrap();
    let mut foreign = binding(&record, 2);
    foreign.question = QuestionKind::Cost;
    assert!(matches!(store.bind(foreign), Err(StoreError::NotFound(_))));
    assert!(matches!(
        store.unbind(&Scope::Platform, QUESTION, "op", "", Moment(2)),
        Err(StoreError::NotFound(_))
    ));
    for name in ["../secret", "", "secret", "/etc/passwd"] {
        assert!(
            matches!(store.component(name), Err(StoreError::NotFound(_))),
            "{name}"
        );
        assert!(
            matches!(store.compiled(name), Err(StoreError::NotFound(_))),
            "{name}"
        );
        assert!(
            matches!(store.put_compiled(name, b"x"), Err(StoreError::NotFound(_))),
            "{name}"
        );
    }
    assert!(matches!(
        store.put_key("", operator("none"), "op", Moment(2)),
        Err(StoreError::Invalid { .. })
    ));
    assert_eq!(
        store.audit(9).unwrap().len(),
        1,
        "what was refused is not in the log"
    );
}

#[test]
fn eight_writers_leave_an_audit_log_without_gaps() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let store = &store;
            scope.spawn(move || {
                for n in 0..5 {
                    // Half of the components are the same for every writer.
                    let name = if n % 2 == 0 {
                        format!("shared-{n}")
                    } else {
                        format!("own-{writer}-{n}")
                    };
                    let record = store
                        .put_version(version(Scope::Platform, QUESTION, &name, 1))
                        .unwrap();
                    store.bind(binding(&record, 2)).unwrap();
                }
            });
        }
    });
    drop(store);
    let store = open(folder.path());
    let versions = store.versions(&Scope::Platform, QUESTION).unwrap();
    assert_eq!(versions.len(), 3 + 8 * 2);
    for record in &versions {
        store.component(&record.sha256).unwrap();
    }
    let history = store.history(&Scope::Platform, QUESTION).unwrap();
    assert_eq!(
        history.iter().map(|b| b.generation).collect::<Vec<_>>(),
        (1..=40).collect::<Vec<_>>()
    );
    assert_eq!(store.bindings().unwrap(), history[39..]);
    harness::assert_audit_is_whole(&store, versions.len() + history.len());
}

#[test]
fn what_a_crash_left_behind_is_removed_and_what_is_recorded_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let record = store
        .put_version(version(Scope::Platform, QUESTION, "one", 1))
        .unwrap();
    drop(store);
    let orphan = "ab".repeat(32);
    let left = [
        folder.path().join("components/.writing-7"),
        folder.path().join("artefacts/.writing-0"),
        folder.path().join(format!("components/{orphan}.wasm")),
        folder.path().join(format!("artefacts/{orphan}.cwasm")),
    ];
    for path in &left {
        fs::write(path, b"half").unwrap();
    }
    let note = folder.path().join("components/README");
    fs::write(&note, b"not ours").unwrap();
    let store = open(folder.path());
    for path in &left {
        assert!(!path.exists(), "{}", path.display());
    }
    assert!(
        note.exists(),
        "a file this store did not name is none of its business"
    );
    assert_eq!(store.component(&record.sha256).unwrap(), "component one");
}

#[test]
fn a_store_that_lost_its_records_keeps_its_components() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let record = store
        .put_version(version(Scope::Platform, QUESTION, "one", 1))
        .unwrap();
    drop(store);
    fs::remove_dir_all(folder.path().join("db")).unwrap();
    let store = open(folder.path());
    assert_eq!(store.component(&record.sha256).unwrap(), "component one");
}

#[test]
fn the_secret_is_private_and_a_store_without_its_secret_does_not_open() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    let path = folder.path().join("secret");
    let secret = fs::read(&path).unwrap();
    assert_eq!(secret.len(), 32);
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    drop(open(folder.path()));
    assert_eq!(mode(), 0o600, "closed to others again");

    let refused = |bytes: Option<&[u8]>| {
        match bytes {
            Some(bytes) => fs::write(&path, bytes).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let error = SledStore::open(folder.path(), &Dice::seeded(2)).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    };
    refused(Some(&secret[..31]));
    refused(Some(&[0; 32]));
    refused(None);
    fs::write(&path, &secret).unwrap();
    drop(open(folder.path()));
}

#[test]
fn a_revoked_key_is_refused_at_once_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for (key, label) in [
        ("sk-1", "file"),
        ("sk-2", "file"),
        ("sk-3", "file"),
        ("sk-4", "hand"),
    ] {
        store.put_key(key, operator(label), "op", Moment(1)).unwrap();
    }
    let retain = |store: &SledStore, keys: &[&'static str]| {
        let named = keys.iter().map(|key| (*key, Principal::Operator, None));
        let admission = Admission {
            label: "file",
            keys: named.collect(),
            tenants: Vec::new(),
        };
        store.admit(admission, None, "op", Moment(2)).unwrap()
    };
    assert_eq!(retain(&store, &["sk-2"]), 2);
    let let_in = |store: &SledStore| {
        ["sk-1", "sk-2", "sk-3", "sk-4"].map(|key| store.authenticate(key).unwrap().is_some())
    };
    assert_eq!(let_in(&store), [false, true, false, true]);
    assert_eq!(retain(&store, &["sk-2"]), 0);
    drop(store);

    let store = open(folder.path());
    assert_eq!(let_in(&store), [false, true, false, true]);
    let lines = store.audit(2).unwrap();
    for line in &lines {
        assert_eq!(
            (line.action.as_str(), line.subject.as_str(), line.at),
            ("key.revoke", "key \"file\" of the operator", Moment(2))
        );
    }
    harness::assert_audit_is_whole(&store, 4 + 2);
    store.put_key("sk-1", operator("file"), "op", Moment(4)).unwrap();
    assert_eq!(
        let_in(&store),
        [true, true, false, true],
        "it can be let in again"
    );
}

#[test]
fn keys_are_nowhere_on_disk_and_in_no_debug_output() {
    const KEY: &str = "sk-very-secret-key-of-acme";
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.put_key(KEY, operator("console"), "op", Moment(1)).unwrap();
    let shown = format!("{store:?} {:?}", store.platform_secret());
    let secret = fs::read(folder.path().join("secret")).unwrap();
    drop(store);
    assert!(!shown.contains(KEY));
    assert!(shown.contains("PlatformSecret(..)"));
    for path in harness::files_under(folder.path()) {
        let bytes = fs::read(&path).unwrap();
        let holds = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
        assert!(!holds(KEY.as_bytes()), "{} holds the key", path.display());
        assert!(
            !holds(blake3::hash(KEY.as_bytes()).as_bytes()),
            "{} holds an unkeyed hash",
            path.display()
        );
        assert!(
            path.ends_with("secret") || !holds(&secret),
            "{} holds the secret",
            path.display()
        );
    }
}

#[test]
fn a_store_of_a_later_release_is_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    // sled's own threads hold its lock for a moment after the store was closed.
    let db = std::iter::repeat_with(|| sled::open(folder.path().join("db")))
        .take(1000)
        .find_map(|opened| {
            opened
                .inspect_err(|_| std::thread::sleep(Duration::from_millis(5)))
                .ok()
        })
        .unwrap();
    db.open_tree("meta")
        .unwrap()
        .insert("schema", br#"{"schema":1,"value":2}"#)
        .unwrap();
    db.flush().unwrap();
    drop(db);
    let error = SledStore::open(folder.path(), &Dice::seeded(1)).unwrap_err();
    assert!(
        matches!(error, StoreError::NewerSchema { found: 2, known: 1 }),
        "{error}"
    );
}

fn removal(record: &portolan_ports::VersionRecord) -> Removal {
    Removal {
        scope: record.scope.clone(),
        question: record.question,
        sha256: record.sha256.clone(),
        cause: RemovalCause::Asked,
        actor: "op".into(),
        reason: "a test".into(),
        at: Moment(9),
    }
}

#[test]
fn the_bytes_go_with_the_last_version_that_has_them_and_a_needed_version_stays() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let of = |tenant: &str| Scope::Tenant(TenantName::new(tenant).unwrap());
    let acme = store
        .put_version(version(of("acme"), QUESTION, "same", 1))
        .unwrap();
    let globex = store
        .put_version(version(of("globex"), QUESTION, "same", 2))
        .unwrap();
    assert_eq!(acme.sha256, globex.sha256);
    let bound = store.bind(binding(&globex, 3)).unwrap();
    store.remove_version(removal(&acme)).unwrap();
    assert!(store.versions(&of("acme"), QUESTION).unwrap().is_empty());
    assert_eq!(store.component(&globex.sha256).unwrap(), "component same");
    assert!(store.compiled(&globex.sha256).unwrap().is_some());
    let kept = store.remove_version(removal(&globex));
    assert!(
        matches!(&kept, Err(StoreError::InUseVersion { why, .. }) if why.contains("unbind")),
        "{kept:?}"
    );
    store
        .unbind(&bound.scope, QUESTION, "op", "not worth it", Moment(4))
        .unwrap();
    let ended = store
        .history(&bound.scope, QUESTION)
        .unwrap()
        .pop()
        .unwrap()
        .ended;
    let ended = ended.expect("a history that says when nothing was bound any more");
    assert_eq!(
        (&*ended.actor, &*ended.reason, ended.at),
        ("op", "not worth it", Moment(4))
    );
    store.remove_version(removal(&globex)).unwrap();
    assert!(matches!(
        store.component(&globex.sha256),
        Err(StoreError::NotFound(_))
    ));
    assert_eq!(store.compiled(&globex.sha256).unwrap(), None);
    for folder in ["components", "artefacts"].map(|name| folder.path().join(name)) {
        assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
    }
    assert_eq!(store.audit(1).unwrap()[0].action, "policy.remove");
    store
        .put_version(version(of("acme"), QUESTION, "same", 5))
        .unwrap();
    assert_eq!(store.component(&globex.sha256).unwrap(), "component same");
}

#[test]
fn uploads_are_counted_across_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let acme = TenantName::new("acme").unwrap();
    let store = open(folder.path());
    assert_eq!(
        store.count_upload(&acme, 1, Moment(0)).unwrap(),
        UploadTurn::Counted
    );
    drop(store);
    let store = open(folder.path());
    assert_eq!(store.uploads(&acme, Moment(1)).unwrap(), 1);
    store.take_upload_back(&acme, Moment(0)).unwrap();
    drop(store);
    let store = open(folder.path());
    assert_eq!(
        store.count_upload(&acme, 1, Moment(1)).unwrap(),
        UploadTurn::Counted,
        "what was taken back does not count after a restart either"
    );
    assert!(matches!(
        store.count_upload(&acme, 1, Moment(1)).unwrap(),
        UploadTurn::Full(_)
    ));
    let hour_later = Moment(3_660_000_000);
    assert_eq!(
        store.count_upload(&acme, 1, hour_later).unwrap(),
        UploadTurn::Counted
    );
}

#[test]
fn an_audit_line_holds_what_was_bound_before_and_since_with_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let first = store
        .put_version(version(Scope::Platform, QUESTION, "one", 1))
        .unwrap();
    let second = store
        .put_version(version(Scope::Platform, QUESTION, "two", 2))
        .unwrap();
    store.bind(binding(&first, 3)).unwrap();
    let long = portolan_ports::BindingRecord {
        config: "\u{e9}".repeat(30_000),
        ..binding(&second, 4)
    };
    store.bind(long).unwrap();
    store
        .unbind(&Scope::Platform, QUESTION, "op", "", Moment(5))
        .unwrap();
    let changes: Vec<_> = store
        .audit(3)
        .unwrap()
        .into_iter()
        .map(|line| line.change.unwrap())
        .collect();
    let [gone, rebound, bound] = &changes[..] else {
        panic!("{changes:?}")
    };
    assert_eq!(
        (&bound.previous, bound.next.as_ref()),
        (&None, Some(&first.sha256))
    );
    assert_eq!(bound.config.as_deref(), Some("{\"at\":3}"));
    assert_eq!(rebound.previous.as_ref(), Some(&first.sha256));
    assert_eq!(
        rebound.config.as_ref().map(String::len),
        Some(4096),
        "a long configuration is cut"
    );
    assert_eq!(rebound.config_sha256.as_ref().map(String::len), Some(64));
    assert_eq!(
        (gone.previous.as_ref(), &gone.next),
        (Some(&second.sha256), &None)
    );
}
