//! Policy state across restarts, threads and quotas, and its size on disk.

use super::*;
use portolan_base::TenantName;
use portolan_ports::Quotas;
use std::collections::BTreeMap;
use std::path::PathBuf;
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
    open_with(folder, Quotas::default(), clock)
}

fn open_with(folder: &Path, quotas: Quotas, clock: &Arc<TestClock>) -> SledState {
    let clock: Arc<dyn Clock> = clock.clone();
    SledState::open(folder, QuotaBook::new(quotas, BTreeMap::new()), clock).unwrap()
}

/// Bytes that the files below a folder take. Files that vanish meanwhile take none.
fn disk_usage(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let kind = entry.metadata().ok()?;
            Some(if kind.is_dir() {
                disk_usage(&entry.path())
            } else {
                kind.len()
            })
        })
        .sum()
}

/// The folders of generations.
fn generations(folder: &Path) -> Vec<PathBuf> {
    let paths = files::paths(folder).unwrap().into_iter();
    paths.filter(|path| path.is_dir()).collect()
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
fn the_policies_of_a_tenant_share_its_quota_and_ended_keys_leave_memory_and_disk() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let quotas = Quotas {
        state_keys: 300,
        ..Quotas::default()
    };
    let (one, two, other) = (space("a", "p"), space("a", "q"), space("b", "p"));
    let state = open_with(folder.path(), quotas, &clock);
    let brief = Some(Duration::from_micros(9));
    for i in 0..350_u64 {
        let stored = state.set(&one, entry(&format!("k{i}"), i, brief), Moment(0));
        assert_eq!(stored, i < 300, "key {i}");
    }
    assert!(
        !state.set(&two, entry("mine", 1, None), Moment(0)),
        "the tenant's quota is used up"
    );
    assert!(
        state.set(&other, entry("mine", 1, None), Moment(0)),
        "another tenant has its own"
    );
    state.flush().unwrap();

    clock.0.store(9, Ordering::Relaxed);
    assert!(
        !state.set(&two, entry("mine", 1, None), Moment(9)),
        "the other policy's keys are still there"
    );
    state.flush().unwrap();
    assert!(
        state.set(&two, entry("mine", 1, None), Moment(9)),
        "ended keys made room"
    );
    assert_eq!(state.used(&one.scope).keys, 1);
    drop(state);
    let state = open_with(folder.path(), quotas, &clock);
    assert_eq!(state.used(&one.scope), StateUsed { keys: 1, bytes: 20 });
    assert_eq!(state.get(&two, "mine", Moment(9)), Some(1));
    assert_eq!(
        state.get(&one, "k1", Moment(0)),
        None,
        "an ended key came back from disk"
    );
}

#[test]
fn a_flush_is_on_disk_when_it_returns_and_a_closed_state_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let copy = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let a = space("a", "p");
    let state = open(folder.path(), &clock);
    for i in 0..500 {
        state.set(&a, entry(&format!("k{i}"), i, None), Moment(0));
    }
    state.flush().unwrap();
    // What another process would find now.
    for generation in generations(folder.path()) {
        let to = copy.path().join(generation.file_name().unwrap());
        std::fs::create_dir_all(to.join("blobs")).unwrap();
        for file in files::paths(&generation)
            .unwrap()
            .into_iter()
            .filter(|f| f.is_file())
        {
            std::fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
        }
    }
    std::fs::copy(folder.path().join("current"), copy.path().join("current")).unwrap();
    let found = open(copy.path(), &clock);
    assert!((0..500).all(|i| found.get(&a, &format!("k{i}"), Moment(0)) == Some(i)));
    state.close();
    assert!(state.flush().is_err());
}

#[test]
fn what_a_crash_left_of_a_new_generation_is_removed_and_the_one_that_counts_stays() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let a = space("a", "p");
    let state = open(folder.path(), &clock);
    state.set(&a, entry("k", 7, None), Moment(0));
    drop(state);
    let torn = folder.path().join("2");
    std::fs::create_dir(&torn).unwrap();
    std::fs::write(torn.join("db"), b"half of it").unwrap();
    let state = open(folder.path(), &clock);
    assert_eq!(state.get(&a, "k", Moment(0)), Some(7));
    assert_eq!(generations(folder.path()), [folder.path().join("1")]);
    drop(state);
    std::fs::write(folder.path().join("current"), b"seven").unwrap();
    let clock: Arc<dyn Clock> = clock;
    let damaged = SledState::open(folder.path(), QuotaBook::default(), clock);
    assert!(matches!(damaged, Err(StoreError::Damaged { .. })), "{damaged:?}");
}

#[test]
fn state_that_ended_leaves_a_small_disk_behind() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let state = open(folder.path(), &clock);
    for tenant in 0..8 {
        let space = space(&format!("t{tenant}"), "p");
        for i in 0..8_000 {
            let ttl = Some(Duration::from_micros(9));
            assert!(state.set(&space, entry(&format!("session-{i:032}"), i, ttl), Moment(0)));
        }
    }
    state.flush().unwrap();
    let full = disk_usage(folder.path());
    clock.0.store(9, Ordering::Relaxed);
    for tenant in 0..8 {
        state.set(
            &space(&format!("t{tenant}"), "p"),
            entry("last", 1, None),
            Moment(9),
        );
    }
    drop(state);
    let left = disk_usage(folder.path());
    assert!(full > 3 << 20 && left < 1 << 20, "{full} bytes, then {left}");
}

#[test]
fn two_million_writes_leave_at_most_three_times_what_lives() {
    write_much(2_000_000);
}

#[test]
#[ignore = "takes a minute; run it with --ignored --nocapture, in a release build"]
fn ten_million_writes_leave_at_most_three_times_what_lives() {
    write_much(10_000_000);
}

/// Writes over 40,000 keys of ten tenants, and looks at the disk after each flush.
fn write_much(writes: u64) {
    const KEYS: u64 = 4_000;
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let state = open(folder.path(), &clock);
    let spaces: Vec<StateSpace> = (0..10).map(|i| space(&format!("t{i}"), "p")).collect();
    let keys: Vec<String> = (0..KEYS).map(|i| format!("session-{i:032}")).collect();
    let mut took: Vec<u32> = Vec::new();
    for i in 0..writes {
        let mixed = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
        let (space, key) = (
            &spaces[(mixed % 10) as usize],
            &keys[(mixed / 10 % KEYS) as usize],
        );
        let begun = Instant::now();
        state.add(space, key, 1, Moment(0));
        took.push(begun.elapsed().as_nanos() as u32);
    }
    drop(state);
    let live = 10 * KEYS * (40 + 16);
    let disk = disk_usage(folder.path());
    took.sort_unstable();
    let nth = |permille: usize| took[took.len() / 1000 * permille];
    println!(
        "{writes} writes, median {} ns, p99.9 {} ns; {live} bytes live, {disk} on disk, {:.2} times",
        nth(500),
        nth(999),
        disk as f64 / live as f64
    );
    assert!(disk <= 3 * live, "{disk} bytes on disk for {live}");

    let state = open(folder.path(), &clock);
    let sums = spaces
        .iter()
        .flat_map(|space| keys.iter().map(|key| state.get(space, key, Moment(0))));
    assert_eq!(
        sums.flatten().sum::<u64>(),
        writes,
        "every write is there after a restart"
    );
}
