//! A disk that was full: nothing that was acknowledged is lost, and changes are taken again once there is room.

use crate::harness::{Dice, assert_audit_is_whole, binding, tenant, version};
use crate::{QUESTION, operator};
use portolan_base::{Clock, Moment};
use portolan_ports::{
    Admission, Entry, PolicyState, PolicyStore, Principal, QuotaBook, Scope, StateSpace, StoreError,
};
use portolan_store::{SledState, SledStore};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use tempfile::TempDir;

/// A file system in memory of so many MiB; taken away with it.
struct Disk(TempDir);

impl Disk {
    /// None, said aloud, where this user may not mount.
    #[expect(clippy::print_stderr, reason = "what is skipped in silence counts as passed")]
    fn of_mib(mib: usize) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs"]);
        let mounted = mount.arg(folder.path()).stderr(Stdio::null()).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(folder));
        }
        eprintln!("SKIPPED: a full disk (no right to mount one)");
        None
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn fill(&self) {
        let mut file = File::create(self.path().join("filler")).unwrap();
        while file.write_all(&[0x55; 4096]).is_ok() {}
    }

    fn empty(&self) {
        fs::remove_file(self.path().join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(self.path()).status());
    }
}

/// Binds until it fails; gives why.
fn fails(store: &SledStore, bound: &dyn Fn(&SledStore) -> Result<(), StoreError>) -> StoreError {
    (0..10_000)
        .find_map(|_| bound(store).err())
        .expect("the disk is full")
}

#[test]
fn a_store_takes_changes_again_once_there_is_room_and_has_lost_nothing() {
    let Some(disk) = Disk::of_mib(24) else { return };
    let folder = disk.path().join("data");
    let store = SledStore::open(&folder, &Dice::seeded(1)).unwrap();
    let one = store
        .put_version(version(Scope::Platform, QUESTION, "one", 1))
        .unwrap();
    store.put_key("sk-1", operator("file"), "op", Moment(2)).unwrap();
    let acknowledged = std::cell::Cell::new(0_u64);
    let bind = |store: &SledStore| {
        let bound = store.bind(binding(&one, 3))?;
        acknowledged.set(bound.generation);
        Ok(())
    };
    bind(&store).unwrap();
    for round in 1..=3 {
        disk.fill();
        let error = fails(&store, &bind);
        assert!(matches!(error, StoreError::Io(_)), "{error}");
        let admission = || Admission {
            label: "file",
            tenants: vec![tenant("acme", "eu")],
            keys: vec![("sk-2", Principal::Operator, None)],
        };
        assert!(store.admit(admission(), None, "op", Moment(4)).is_err());
        let let_in = |key: &str| store.authenticate(key).unwrap().is_some();
        assert!(
            let_in("sk-1") && !let_in("sk-2"),
            "nothing of a change that failed counts"
        );

        disk.empty();
        let before = acknowledged.get();
        bind(&store).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let history = store.history(&Scope::Platform, QUESTION).unwrap();
        let newest = history.last().unwrap().generation;
        assert_eq!(newest, acknowledged.get());
        assert!(
            newest > before,
            "{before} was acknowledged, and the next is {newest}"
        );
        assert_eq!(store.audit(1).unwrap()[0].action, "policy.activate");
        assert!(let_in("sk-1") && !let_in("sk-2"));
        let lines = store.audit(usize::MAX).unwrap().len();
        assert_audit_is_whole(&store, lines);
        assert!(
            lines as u64 >= 2 + newest,
            "{lines} lines tell of {newest} bindings and more"
        );
    }
    let admission = Admission {
        label: "file",
        tenants: vec![tenant("acme", "eu")],
        keys: vec![("sk-2", Principal::Operator, None)],
    };
    assert_eq!(store.admit(admission, None, "op", Moment(5)).unwrap(), 1);
    let (history, audit) = (
        store.history(&Scope::Platform, QUESTION).unwrap(),
        store.audit(9).unwrap(),
    );
    drop(store);
    let store = SledStore::open(&folder, &Dice::seeded(1)).unwrap();
    assert_eq!(store.history(&Scope::Platform, QUESTION).unwrap(), history);
    assert_eq!(store.audit(9).unwrap(), audit);
    assert!(store.authenticate("sk-2").unwrap().is_some() && store.authenticate("sk-1").unwrap().is_none());
    drop(store);
}

struct Still;

impl Clock for Still {
    fn now(&self) -> Moment {
        Moment(0)
    }
}

fn state_in(folder: &Path) -> SledState {
    SledState::open(folder, QuotaBook::default(), Arc::new(Still)).unwrap()
}

#[test]
fn policy_state_is_written_again_once_there_is_room_and_has_lost_nothing() {
    let Some(disk) = Disk::of_mib(24) else { return };
    let folder = disk.path().join("state");
    let state = state_in(&folder);
    let space = StateSpace {
        scope: Scope::Platform,
        policy: "p".into(),
    };
    let keys: Vec<String> = (0..4_000).map(|n| format!("session-{n:032}")).collect();
    let add_to_all = || {
        for key in &keys {
            state.add(&space, key, 1, Moment(0));
        }
    };
    add_to_all();
    state.flush().unwrap();
    let mut sum = 1;
    for round in 1..=3 {
        disk.fill();
        let error = (0..10_000).find_map(|_| {
            add_to_all();
            sum += 1;
            state.flush().err()
        });
        let error = error.expect("the disk is full");
        assert!(matches!(error, StoreError::Io(_)), "{error}");
        assert!(state.flush().is_err(), "it is full still");
        assert_eq!(state.get(&space, &keys[0], Moment(0)), Some(sum), "calls go on");

        disk.empty();
        assert!(state.set(
            &space,
            Entry {
                key: "round",
                value: round,
                ttl: None
            },
            Moment(0)
        ));
        state
            .flush()
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        state.flush().unwrap();
    }
    drop(state);
    let folders = || {
        fs::read_dir(&folder)
            .unwrap()
            .flatten()
            .filter(|entry| entry.path().is_dir())
    };
    assert_eq!(folders().count(), 1, "what was given up is gone");
    let state = state_in(&folder);
    assert_eq!(state.get(&space, "round", Moment(0)), Some(3));
    assert!(
        keys.iter()
            .all(|key| state.get(&space, key, Moment(0)) == Some(sum))
    );
}
