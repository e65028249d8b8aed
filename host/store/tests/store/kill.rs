//! What was acknowledged survives `kill -9`. The test binary starts itself as the process that is killed.

use crate::harness::{Dice, assert_audit_is_whole, binding, version};
use portolan_base::{Clock, Moment, Random};
use portolan_policy::QuestionKind;
use portolan_ports::{
    BindingRecord, Entry, PolicyState, PolicyStore, QuotaBook, Scope, StateSpace, VersionRecord,
};
use portolan_store::{SledState, SledStore};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

const FOLDER: &str = "PORTOLAN_TEST_STORE_FOLDER";
const ROUND: &str = "PORTOLAN_TEST_STORE_ROUND";
const VERSION: &str = "acknowledged-version ";
const BINDING: &str = "acknowledged-binding ";
/// A torn change shows in one round of about ten; sixteen rounds take about four seconds.
const ROUNDS: u64 = 16;

/// Not a test by itself: writes until it is killed, and says what was acknowledged.
#[test]
fn write_until_killed() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let round = std::env::var(ROUND).unwrap();
    let store = SledStore::open(Path::new(&folder), &Dice::seeded(1)).unwrap();
    let mut out = std::io::stdout().lock();
    for n in 0.. {
        let question = QuestionKind::ALL[n % 4];
        let record = store
            .put_version(version(Scope::Platform, question, &format!("{round}-{n}"), 1))
            .unwrap();
        writeln!(out, "\n{VERSION}{}", serde_json::to_string(&record).unwrap()).unwrap();
        let bound = store.bind(binding(&record, 2)).unwrap();
        writeln!(out, "\n{BINDING}{}", serde_json::to_string(&bound).unwrap()).unwrap();
        if n % 5 == 4 {
            store
                .unbind(&Scope::Platform, question, "op", "", Moment(3))
                .unwrap();
        }
    }
}

#[derive(Default)]
struct Acknowledged {
    versions: Vec<VersionRecord>,
    bindings: Vec<BindingRecord>,
}

impl Acknowledged {
    fn hear(&mut self, line: &str) {
        if let Some(record) = line.strip_prefix(VERSION) {
            self.versions.push(serde_json::from_str(record).unwrap());
        } else if let Some(record) = line.strip_prefix(BINDING) {
            self.bindings.push(serde_json::from_str(record).unwrap());
        }
    }

    fn len(&self) -> usize {
        self.versions.len() + self.bindings.len()
    }
}

fn start(folder: &Path, round: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "kill::write_until_killed",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(FOLDER, folder)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let dice = Dice::seeded(20_260_101);
    let mut acknowledged = Acknowledged::default();
    for round in 0..ROUNDS {
        let mut child = start(folder.path(), round);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let enough = acknowledged.len() + 5 + (dice.next_u64() % 20) as usize;
        while acknowledged.len() < enough {
            acknowledged.hear(&lines.next().expect("the writer ended by itself").unwrap());
        }
        // Where in its next write the writer is hit differs from round to round.
        for _ in 0..dice.next_u64() % 2_000_000 {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success());
        // What it managed to say before it died counts too. A line torn by the kill was not said.
        let rest: Vec<String> = lines.map_while(Result::ok).collect();
        for line in rest.iter().filter(|line| line.ends_with('}')) {
            acknowledged.hear(line);
        }
        check(folder.path(), &acknowledged);
    }
}

fn check(folder: &Path, acknowledged: &Acknowledged) {
    let store = SledStore::open(folder, &Dice::seeded(1)).unwrap();
    let scope = Scope::Platform;
    let (mut versions, mut history) = (Vec::new(), Vec::new());
    for question in QuestionKind::ALL {
        versions.extend(store.versions(&scope, question).unwrap());
        let made = store.history(&scope, question).unwrap().into_iter();
        // As it was when it was acknowledged: some were unbound since.
        history.extend(made.map(|binding| BindingRecord {
            ended: None,
            ..binding
        }));
    }
    for record in &acknowledged.versions {
        assert!(versions.contains(record), "lost {record:?}");
    }
    for record in &acknowledged.bindings {
        assert!(history.contains(record), "lost {record:?}");
    }
    for record in &versions {
        assert_eq!(
            store.component(&record.sha256).unwrap(),
            format!("component {}", record.name)
        );
        let compiled = store.compiled(&record.sha256).unwrap().unwrap();
        assert_eq!(compiled, format!("artefact of {}", record.name));
    }
    assert_each_change_is_whole(&store, &versions, &history);
}

/// Record, history, binding in force and audit line of each change are all there or all absent.
fn assert_each_change_is_whole(store: &SledStore, versions: &[VersionRecord], history: &[BindingRecord]) {
    let log = store.audit(usize::MAX).unwrap();
    let mut in_force: BTreeMap<QuestionKind, String> = BTreeMap::new();
    let of = |action: &str| log.iter().filter(|line| line.action == action).count();
    assert_eq!(of("policy.put"), versions.len());
    assert_eq!(of("policy.activate"), history.len());
    for line in log.iter().rev() {
        let question = QuestionKind::ALL
            .into_iter()
            .find(|q| line.subject.contains(q.as_str()))
            .unwrap();
        match line.action.as_str() {
            "policy.activate" => drop(in_force.insert(question, line.subject.clone())),
            "policy.unbind" => drop(in_force.remove(&question)),
            _ => {}
        }
    }
    let bindings = store.bindings().unwrap();
    let found: BTreeMap<_, _> = bindings.into_iter().map(|b| (b.question, b.subject())).collect();
    assert_eq!(found, in_force, "the bindings in force are what the log says");
    assert_audit_is_whole(store, log.len());
}

const STATE_FOLDER: &str = "PORTOLAN_TEST_STATE_FOLDER";
const FLUSHED: &str = "flushed ";
/// So many that the disk is begun anew every second or third flush.
const STATE_KEYS: u64 = 12_000;

struct Still;

impl Clock for Still {
    fn now(&self) -> Moment {
        Moment(0)
    }
}

fn open_state(folder: &Path) -> SledState {
    SledState::open(folder, QuotaBook::default(), Arc::new(Still)).unwrap()
}

fn state_space() -> StateSpace {
    StateSpace {
        scope: Scope::Platform,
        policy: "p".into(),
    }
}

/// Not a test by itself: writes policy state until it is killed, and says what was flushed.
#[test]
fn write_state_until_killed() {
    let Ok(folder) = std::env::var(STATE_FOLDER) else {
        return;
    };
    let first: u64 = std::env::var(ROUND).unwrap().parse().unwrap();
    let state = open_state(Path::new(&folder));
    let mut out = std::io::stdout().lock();
    for value in first.. {
        for key in 0..STATE_KEYS {
            let key = format!("key-{key}");
            let entry = Entry {
                key: &key,
                value,
                ttl: None,
            };
            assert!(state.set(&state_space(), entry, Moment(0)));
        }
        state.flush().unwrap();
        writeln!(out, "\n{FLUSHED}{value}.").unwrap();
    }
}

#[test]
fn state_that_was_flushed_survives_kill_9_while_the_disk_is_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let dice = Dice::seeded(20_260_102);
    let mut flushed = 0;
    for _ in 0..8 {
        let test = "kill::write_state_until_killed";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(STATE_FOLDER, folder.path())
            .env(ROUND, (flushed + 1).to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut hear = |line: &str| {
            let value = line.strip_prefix(FLUSHED).and_then(|rest| rest.strip_suffix('.'));
            flushed = value.map_or(flushed, |value| value.parse().unwrap());
            value.is_some()
        };
        let mut heard = 0;
        while heard < 2 + dice.next_u64() % 3 {
            heard += u64::from(hear(&lines.next().expect("the writer ended by itself").unwrap()));
        }
        for _ in 0..dice.next_u64() % 20_000_000 {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success());
        for line in lines.map_while(Result::ok) {
            hear(&line);
        }
        let state = open_state(folder.path());
        for key in 0..STATE_KEYS {
            let found = state.get(&state_space(), &format!("key-{key}"), Moment(0));
            assert!(
                found.is_some_and(|found| found >= flushed),
                "key {key}: {found:?} after {flushed}"
            );
        }
    }
    let current = std::fs::read_to_string(folder.path().join("current")).unwrap();
    assert!(
        current.parse::<u64>().unwrap() > 1,
        "the disk was never begun anew"
    );
}
