//! Policy state across restarts, threads and quotas, and its size on disk.

use super::*;
use portolan_base::TenantName;
use portolan_ports::Scope;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

#[derive(Default)]
struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> Moment {
        Moment(self.0.load(Ordering::Relaxed))
    }
}

fn space(tenant: &str, policy: &str) -> StateSpace {
    StateSpace {
        scope: Scope::Tenant(TenantName::new(tenant).unwrap()),
        policy: policy.into(),
    }
}

fn open(folder: &Path, clock: &Arc<TestClock>) -> SledState {
    let clock: Arc<dyn Clock> = clock.clone();
    SledState::open(folder, StateQuota::default(), clock).unwrap()
}

fn entry(key: &str, value: u64, ttl: Option<Duration>) -> Entry<'_> {
    Entry { key, value, ttl }
}

#[test]
fn a_restart_brings_back_what_lives_to_whom_it_belongs() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let platform = StateSpace {
        scope: Scope::Platform,
        policy: "p".into(),
    };
    let spaces = [space("a", "p"), space("a", "q"), space("b", "p"), platform];
    let state = open(folder.path(), &clock);
    for (i, space) in spaces.iter().enumerate() {
        assert!(state.set(space, entry("k", i as u64, None), Moment(0)));
        assert_eq!(state.add(space, "sum", 2, Moment(0)), 2);
    }
    assert!(state.set(
        &spaces[0],
        entry("brief", 7, Some(Duration::from_micros(50))),
        Moment(0)
    ));
    drop(state);

    clock.0.store(49, Ordering::Relaxed);
    let state = open(folder.path(), &clock);
    for (i, space) in spaces.iter().enumerate() {
        assert_eq!(state.get(space, "k", Moment(49)), Some(i as u64), "{space:?}");
        assert_eq!(state.add(space, "sum", 3, Moment(49)), 5, "{space:?}");
    }
    assert_eq!(state.get(&spaces[0], "brief", Moment(49)), Some(7));
    assert_eq!(state.get(&spaces[0], "brief", Moment(50)), None);
    assert_eq!(
        state.get(&spaces[1], "brief", Moment(49)),
        None,
        "another policy saw it"
    );
    state.close();

    clock.0.store(50, Ordering::Relaxed);
    let state = open(folder.path(), &clock);
    assert_eq!(state.get(&spaces[0], "brief", Moment(50)), None);
    assert_eq!(state.get(&spaces[3], "sum", Moment(50)), Some(5));
}

#[test]
fn closing_frees_the_folder_and_calls_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let a = space("a", "p");
    let first = open(folder.path(), &clock);
    first.add(&a, "k", 1, Moment(0));
    first.close();
    assert_eq!(first.add(&a, "k", 1, Moment(0)), 2);
    let second = open(folder.path(), &clock);
    assert_eq!(second.get(&a, "k", Moment(0)), Some(1));
}

#[test]
fn sums_from_many_threads_lose_nothing_while_they_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let a = space("a", "p");
    let state = open(folder.path(), &clock);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50_000 {
                    state.add(&a, "k", 1, Moment(0));
                }
            });
        }
    });
    drop(state);
    assert_eq!(open(folder.path(), &clock).get(&a, "k", Moment(0)), Some(200_000));
}

#[test]
fn the_quota_holds_and_ended_keys_leave_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let a = space("a", "p");
    let state = open(folder.path(), &clock);
    for i in 0..5_000_u64 {
        let stored = state.set(
            &a,
            entry(&format!("k{i}"), i, Some(Duration::from_micros(9))),
            Moment(0),
        );
        assert_eq!(stored, i < 4096, "key {i}");
    }
    drop(state);
    clock.0.store(9, Ordering::Relaxed);
    drop(open(folder.path(), &clock));
    let db = open_db(folder.path()).unwrap();
    assert_eq!(
        db.open_tree("a/p").unwrap().len(),
        0,
        "ended keys are still on disk"
    );
}

/// Two million writes over 40,000 keys of ten tenants.
#[test]
fn two_million_writes_leave_a_bounded_file() {
    const KEYS: u64 = 4_000;
    const WRITES: u64 = 2_000_000;
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let state = open(folder.path(), &clock);
    let spaces: Vec<StateSpace> = (0..10).map(|i| space(&format!("t{i}"), "p")).collect();
    let keys: Vec<String> = (0..KEYS).map(|i| format!("session-{i:032}")).collect();
    let begun = Instant::now();
    for i in 0..WRITES {
        let mixed = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
        let (space, key) = (
            &spaces[(mixed % 10) as usize],
            &keys[(mixed / 10 % KEYS) as usize],
        );
        state.add(space, key, 1, Moment(0));
    }
    let took = begun.elapsed();
    drop(state);
    let live = 10 * KEYS * (40 + 16);
    let db = open_db(folder.path()).unwrap();
    let disk = db.size_on_disk().unwrap();
    let per_write = took.as_nanos() / u128::from(WRITES);
    println!("{WRITES} writes, {per_write} ns each; {live} bytes live, {disk} on disk");
    // sled keeps whole segments of rewritten pages until it needs them again.
    assert!(disk <= 24 * live, "{disk} bytes on disk for {live}");
}
