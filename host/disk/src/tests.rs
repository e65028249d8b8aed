//! Files that are whole, torn, foreign, forgotten, too many.

use super::*;
use crate::file::{self, SumKey};
use portolan_base::kv::{KvDtype, KvLayout};
use portolan_base::{
    BlockHash, BlockId, Bytes, Dependency, ModelName, Moment, Provenance, Scope, TenantName,
};
use portolan_kv::tier::BlockTier;
use portolan_kv::{BlockKv, Kept, PoolBlock, PoolConfig, Selector};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NOW: Moment = Moment(5_000_000);
const KEY: SumKey = SumKey([3; 32]);

fn tenant(name: &str) -> Scope {
    Scope::Tenant(TenantName::new(name).unwrap())
}

fn block(n: u8, size: usize) -> Arc<PoolBlock> {
    let dependency = Dependency {
        kind: "document".to_owned(),
        name: "d".to_owned(),
        version: "1".to_owned(),
    };
    Arc::new(PoolBlock {
        id: BlockId([n; 16]),
        parent: (n > 1).then(|| BlockId([n - 1; 16])),
        hashes: vec![BlockHash(u64::from(n))],
        about: Arc::new(Provenance {
            scope: tenant("acme"),
            dependencies: [dependency].into(),
            ..Provenance::public(ModelName::new("m").unwrap(), 1)
        }),
        rebuild: Duration::from_millis(7),
        kv: BlockKv {
            attention: vec![vec![n; size].into(), vec![n + 100; size / 2].into()],
            snapshot: Some(vec![vec![n + 50; size].into()]),
        },
    })
}

fn layout(version: u64) -> KvLayout {
    KvLayout {
        model: ModelName::new("m").unwrap(),
        model_version: version,
        dtype: KvDtype::F32,
        block_tokens: 64,
        window: None,
        layers: Vec::new(),
    }
}

fn config(folder: &Path) -> DiskConfig {
    DiskConfig {
        folder: folder.to_owned(),
        model: ModelName::new("m").unwrap(),
        realm: Realm::of(&layout(1), [&b"probe"[..]]),
        secret: [7; 32],
        pool: PoolConfig::of(Bytes(1 << 20)),
        queue: Bytes(1 << 20),
        landing: LandingConfig::NONE,
        secure_delete: false,
    }
}

fn open(folder: &TempDir) -> DiskTier {
    DiskTier::open(config(folder.path())).unwrap()
}

/// The files of the tier's only realm.
fn files(folder: &TempDir) -> Vec<PathBuf> {
    let realms: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(realms.len(), 1, "{realms:?}");
    let mut files: Vec<_> = std::fs::read_dir(&realms[0])
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

fn has(tier: &DiskTier, n: u8) -> bool {
    let block = block(n, 0);
    tier.holds(&block.id, block.parent, &[], NOW).is_some()
}

fn read(tier: &DiskTier, n: u8) -> Option<Arc<PoolBlock>> {
    tier.read(&BlockId([n; 16]), NOW)
}

#[test]
fn a_block_comes_back_as_it_was_before_and_after_it_is_written_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let tier = open(&folder);
    assert!(tier.offer(block(1, 1000), NOW).taken);
    assert_eq!(read(&tier, 1), Some(block(1, 1000)));
    tier.settle();
    assert_eq!(read(&tier, 1), Some(block(1, 1000)));
    assert!(tier.offer(block(2, 1000), NOW).taken);
    drop(tier);
    let tier = open(&folder);
    assert_eq!(
        (read(&tier, 1), read(&tier, 2)),
        (Some(block(1, 1000)), Some(block(2, 1000)))
    );
    assert!(has(&tier, 2) && !has(&tier, 3));
    assert_eq!(tier.usage().tenants[0].scope, tenant("acme"));
    assert!(tier.offer(block(1, 1000), NOW).taken);
    tier.settle();
    assert_eq!(files(&folder).len(), 2, "what lies there is not written again");
}

#[test]
fn a_file_cut_or_changed_anywhere_is_no_block() {
    let mut whole = Vec::new();
    let small = block(1, 40);
    file::write(&mut whole, &small, NOW, KEY).unwrap();
    let read = |bytes: &[u8], key| {
        file::read(&mut &bytes[..], bytes.len() as u64, key).map(|(block, at)| (Arc::new(block), at))
    };
    assert_eq!(read(&whole, KEY).unwrap(), (Arc::clone(&small), NOW));
    for end in 0..whole.len() {
        assert!(read(&whole[..end], KEY).is_err(), "cut at {end}");
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            assert!(read(&damaged, KEY).is_err(), "bit {bit} of byte {at}");
        }
    }
    let longer: Vec<u8> = whole.iter().copied().chain([0]).collect();
    assert!(read(&longer, KEY).is_err());
    assert!(read(&whole, SumKey([4; 32])).is_err(), "written by someone else");
}

#[test]
fn a_torn_file_on_disk_is_dropped_when_it_is_found_or_read() {
    let folder = tempfile::tempdir().unwrap();
    let length = {
        let tier = open(&folder);
        (1..=3).for_each(|n| assert!(tier.offer(block(n, 400), NOW).taken));
        tier.settle();
        std::fs::metadata(&files(&folder)[0]).unwrap().len()
    };
    let paths = files(&folder);
    let truncate = |path: &Path, to| {
        std::fs::File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_len(to)
            .unwrap();
    };
    truncate(&paths[0], length - 1);
    // The scan reads heads only: damage in a body is found when the block is wanted.
    let mut bytes = std::fs::read(&paths[1]).unwrap();
    let at = bytes.len() - 40;
    bytes[at] ^= 1;
    std::fs::write(&paths[1], bytes).unwrap();
    std::fs::write(paths[0].with_file_name("stray.kv"), b"x").unwrap();
    std::fs::write(paths[0].with_extension("part"), b"half").unwrap();
    let tier = open(&folder);
    assert_eq!((has(&tier, 1), has(&tier, 2), has(&tier, 3)), (false, true, true));
    assert_eq!((read(&tier, 2), read(&tier, 3)), (None, Some(block(3, 400))));
    assert!(!has(&tier, 2));
    tier.settle();
    assert_eq!(files(&folder), [paths[2].clone()]);
    assert_eq!(tier.usage().damaged, 3);
    truncate(&paths[2], 10);
    assert_eq!(read(&tier, 3), None, "damaged while the tier runs");
}

#[test]
fn what_was_forgotten_cannot_be_found_nor_comes_back_with_a_restart() {
    for secure_delete in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let start = || {
            DiskTier::open(DiskConfig {
                secure_delete,
                ..config(folder.path())
            })
            .unwrap()
        };
        let tier = start();
        (1..=3).for_each(|n| assert!(tier.offer(block(n, 400), NOW).taken));
        tier.settle();
        let gone = tier.invalidate(&Selector::Block(BlockId([2; 16])), &[]);
        assert_eq!(gone.len(), 2, "and the block on top of it");
        assert!(has(&tier, 1) && !has(&tier, 2) && read(&tier, 3).is_none());
        // As after a power cut: nothing is left to do for the process that follows.
        std::mem::forget(tier);
        let tier = start();
        assert!(has(&tier, 1) && !has(&tier, 2) && !has(&tier, 3));
        // Taken and forgotten before it was written.
        assert!(tier.offer(block(4, 400), NOW).taken);
        tier.invalidate(&Selector::Scope(tenant("acme")), &[]);
        tier.settle();
        assert!(files(&folder).is_empty(), "{:?}", files(&folder));
        assert_eq!(tier.usage().used, Bytes(0));
    }
}

#[test]
fn the_budget_holds_on_disk_too_and_a_full_queue_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let one = block(1, 1000).size();
    let start = |queue| {
        DiskTier::open(DiskConfig {
            pool: PoolConfig::of(Bytes(one.0 * 2)),
            queue: Bytes(queue),
            ..config(folder.path())
        })
        .unwrap()
    };
    let tier = start(1 << 20);
    let gone: Vec<_> = [1, 11, 21]
        .into_iter()
        .flat_map(|n| tier.offer(block(n, 1000), NOW).gone)
        .collect();
    assert_eq!((gone.len(), gone[0].id), (1, BlockId([1; 16])));
    tier.settle();
    assert_eq!(files(&folder).len(), 2);
    drop(tier);
    let tier = start(100);
    assert_eq!(tier.usage().blocks, 2);
    assert!(!tier.offer(block(31, 1000), NOW).taken);
    assert_eq!(tier.usage().refused, 1);
}

#[test]
fn another_realm_finds_nothing_and_clears_up() {
    let folder = tempfile::tempdir().unwrap();
    let tier = open(&folder);
    assert!(tier.offer(block(1, 100), NOW).taken);
    drop(tier);
    let realms = [
        Realm::of(&layout(2), [&b"probe"[..]]),
        Realm::of(&layout(1), [&b"prob"[..], b"e"]),
    ];
    for realm in realms {
        let tier = DiskTier::open(DiskConfig {
            realm,
            ..config(folder.path())
        });
        assert!(!has(&tier.unwrap(), 1));
        assert_eq!(files(&folder), Vec::<PathBuf>::new());
    }
    let stranger = DiskConfig {
        secret: [8; 32],
        ..config(folder.path())
    };
    assert!(open(&folder).offer(block(1, 100), NOW).taken);
    assert!(
        !has(&DiskTier::open(stranger).unwrap(), 1),
        "another host's secret"
    );
}

#[test]
fn a_block_that_gained_a_state_or_a_dependency_is_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let tier = open(&folder);
    let mut bare = PoolBlock::clone(&block(1, 100));
    bare.kv.snapshot = None;
    assert!(tier.offer(Arc::new(bare), NOW).taken);
    tier.settle();
    assert!(tier.offer(block(1, 100), NOW).taken);
    let mut more = PoolBlock::clone(&block(1, 100));
    let mut about = Provenance::clone(&more.about);
    about.dependencies = about
        .dependencies
        .iter()
        .cloned()
        .chain([Dependency {
            kind: "document".to_owned(),
            name: "e".to_owned(),
            version: "1".to_owned(),
        }])
        .collect();
    more.about = Arc::new(about);
    assert!(tier.offer(Arc::new(more.clone()), NOW).taken);
    drop(tier);
    assert_eq!(files(&folder).len(), 1);
    assert_eq!(read(&open(&folder), 1), Some(Arc::new(more)));
}

#[test]
fn secure_delete_leaves_no_byte_of_what_was_forgotten() {
    use std::io::Read;
    let folder = tempfile::tempdir().unwrap();
    let tier = DiskTier::open(DiskConfig {
        secure_delete: true,
        ..config(folder.path())
    })
    .unwrap();
    assert!(tier.offer(block(1, 90_000), NOW).taken);
    tier.settle();
    // An open file shows what becomes of the bytes after the name is gone.
    let mut open = std::fs::File::open(&files(&folder)[0]).unwrap();
    let length = open.metadata().unwrap().len();
    assert_eq!(tier.invalidate(&Selector::All, &[]).len(), 1);
    tier.settle();
    let mut left = Vec::new();
    open.read_to_end(&mut left).unwrap();
    assert_eq!(left.len() as u64, length);
    assert!(left.iter().all(|byte| *byte == 0));
    assert!(files(&folder).is_empty());
}

#[test]
fn taking_waits_for_room_in_the_queue_and_no_longer_than_told() {
    let folder = tempfile::tempdir().unwrap();
    let one = block(1, 4000).kv.size();
    let tier = DiskTier::open(DiskConfig {
        queue: Bytes(one.0 + one.0 / 2),
        ..config(folder.path())
    })
    .unwrap();
    let far = Instant::now() + Duration::from_secs(60);
    assert!(
        (1..=20).all(|n| tier.take(block(n, 4000), NOW, far)),
        "one after the other"
    );
    tier.settle();
    assert_eq!((tier.usage().blocks, tier.usage().refused), (20, 0));
    let past = Instant::now();
    assert!(!tier.take(block(21, 4000), NOW, past));
}

#[test]
fn what_may_not_lie_here_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let tier = open(&folder);
    tier.guard(Gate::new(|about| about.scope != tenant("acme")));
    assert!(!tier.offer(block(1, 100), NOW).taken);
    assert!(tier.take(block(1, 100), NOW, Instant::now() + Duration::from_secs(5)));
    let mut other = Arc::unwrap_or_clone(block(2, 100));
    other.parent = None;
    other.about = Arc::new(Provenance {
        scope: tenant("globex"),
        ..Provenance::public(ModelName::new("m").unwrap(), 1)
    });
    assert!(tier.offer(Arc::new(other), NOW).taken);
    tier.settle();
    assert_eq!(files(&folder).len(), 1);
}
