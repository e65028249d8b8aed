//! Sets that grow, come back after a restart, are torn, forgotten, too old, too many.

use super::file::scan;
use super::*;
use crate::{DiskConfig, DiskTier, Realm};
use portolan_base::kv::{KvDtype, KvLayout, LandedChunk, LandingId, PieceId};
use portolan_base::{BlockId, Bytes, Dependency, ModelName, Moment, Provenance, Scope, TenantName};
use portolan_kv::tier::BlockTier;
use portolan_kv::{PoolConfig, Selector};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

const NOW: Moment = Moment(5_000_000);
const SET: LandingId = LandingId([1; 16]);
const OTHER: LandingId = LandingId([2; 16]);
const CHUNK: usize = 1000;

/// The layers of nothing.
const NONE: [u16; 0] = [];

fn config(folder: &Path, budget: u64) -> DiskConfig {
    let layout = KvLayout {
        model: ModelName::new("m").unwrap(),
        model_version: 1,
        dtype: KvDtype::F32,
        block_tokens: 64,
        window: None,
        layers: Vec::new(),
    };
    DiskConfig {
        folder: folder.to_owned(),
        model: ModelName::new("m").unwrap(),
        realm: Realm::of(&layout, [&b"probe"[..]]),
        secret: [7; 32],
        pool: PoolConfig::of(Bytes(1 << 20)),
        queue: Bytes(1 << 20),
        landing: LandingConfig {
            budget: Bytes(budget),
            time_to_live: Duration::from_secs(60),
        },
        secure_delete: true,
    }
}

fn tier(folder: &TempDir) -> DiskTier {
    DiskTier::open(config(folder.path(), 1 << 20)).unwrap()
}

fn about(tenant: &str, version: &str) -> Arc<Provenance> {
    let dependency = Dependency {
        kind: "document".to_owned(),
        name: "d".to_owned(),
        version: version.to_owned(),
    };
    let tenant = TenantName::new(tenant).unwrap();
    Arc::new(Provenance {
        dependencies: [dependency].into(),
        ..Provenance::of(tenant, ModelName::new("m").unwrap(), 1)
    })
}

fn open(tier: &DiskTier, set: LandingId) -> OpenSet {
    tier.landed(set, &about("acme", "1"), NOW).unwrap()
}

fn chunk(n: u8) -> (LandedChunk, Vec<u8>) {
    let bytes = vec![n; CHUNK];
    let chunk = LandedChunk {
        piece: PieceId {
            layer: u16::from(n),
            tokens: 0..64,
        },
        piece_len: 3000,
        offset: 1000,
        len: CHUNK as u32,
        digest: LandedChunk::digest_of(&bytes),
    };
    (chunk, bytes)
}

fn land(set: &OpenSet, n: u8) -> bool {
    let (chunk, bytes) = chunk(n);
    set.land(chunk, &bytes, NOW)
}

/// The layers of which a chunk lies there and can be read.
fn layers(set: &OpenSet) -> Vec<u16> {
    let readable = |chunk: &LandedChunk| {
        set.read(chunk)
            .is_some_and(|bytes| bytes == vec![chunk.piece.layer as u8; CHUNK])
    };
    let mut layers: Vec<_> = set
        .chunks()
        .iter()
        .filter(|c| readable(c))
        .map(|c| c.piece.layer)
        .collect();
    layers.sort_unstable();
    layers
}

/// All files below a folder.
fn files(folder: &TempDir) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder.path()).unwrap() {
        let inner = fs::read_dir(entry.unwrap().path()).unwrap();
        files.extend(inner.map(|entry| entry.unwrap().path()));
    }
    files
}

#[test]
fn what_landed_is_there_at_once_and_after_a_restart_until_the_set_came_whole() {
    let folder = tempfile::tempdir().unwrap();
    let first = tier(&folder);
    let set = open(&first, SET);
    assert!(land(&set, 1) && land(&set, 2) && land(&set, 2));
    assert_eq!(layers(&set), [1, 2]);
    assert_eq!(layers(&open(&first, OTHER)), NONE);
    drop((set, first));
    let second = tier(&folder);
    let set = open(&second, SET);
    assert_eq!(layers(&set), [1, 2]);
    assert!(land(&set, 3), "it goes on from there");
    drop((set, second));
    let third = tier(&folder);
    let set = open(&third, SET);
    assert_eq!(layers(&set), [1, 2, 3]);
    assert!(third.landed_bytes().0 >= 3 * CHUNK as u64);
    set.clear();
    third.settle();
    assert_eq!(
        (layers(&set), files(&folder), third.landed_bytes()),
        (vec![], Vec::<PathBuf>::new(), Bytes(0))
    );
    assert!(land(&set, 4), "the next one begins anew");
    assert_eq!(layers(&set), [4]);
}

#[test]
fn a_file_cut_anywhere_loses_its_end_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let first = tier(&folder);
    let set = open(&first, SET);
    assert!((1..=3).all(|n| land(&set, n)));
    drop((set, first));
    let path = files(&folder).remove(0);
    let whole = fs::read(&path).unwrap();
    let record = CHUNK + 60;
    for length in (0..whole.len()).step_by(37) {
        fs::write(&path, &whole[..length]).unwrap();
        let tier = tier(&folder);
        let set = open(&tier, SET);
        let left = layers(&set);
        assert!(left == [1, 2, 3][..left.len()], "{length}: {left:?}");
        assert!(
            left.len() + 1 >= length.saturating_sub(300) / (record + 20),
            "{length}: {left:?}"
        );
        let known = left.len();
        assert!(land(&set, 9), "{length}: it goes on behind what is sound");
        assert_eq!(layers(&set).len(), known + 1);
        set.clear();
        drop((set, tier));
        fs::write(&path, &whole).unwrap();
    }
}

#[test]
fn a_changed_byte_is_never_given_out() {
    let folder = tempfile::tempdir().unwrap();
    let first = tier(&folder);
    let set = open(&first, SET);
    assert!(land(&set, 1) && land(&set, 2));
    drop((set, first));
    let path = files(&folder).remove(0);
    let whole = fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(13) {
        let mut bytes = whole.clone();
        bytes[at] ^= 8;
        fs::write(&path, &bytes).unwrap();
        let tier = tier(&folder);
        let set = open(&tier, SET);
        let listed = set.chunks();
        let sound = listed.iter().filter_map(|chunk| Some((chunk, set.read(chunk)?)));
        for (chunk, bytes) in sound {
            assert_eq!(bytes, vec![chunk.piece.layer as u8; CHUNK], "byte {at}");
        }
        assert!(layers(&set).len() < 2, "byte {at} is in one of them");
        assert!(
            set.chunks().len() < 2,
            "what was found damaged is not named again"
        );
        set.clear();
        drop((set, tier));
        fs::write(&path, &whole).unwrap();
    }
}

#[test]
fn files_of_another_host_or_place_are_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let first = tier(&folder);
    assert!(land(&open(&first, SET), 1));
    drop(first);
    let strange = DiskConfig {
        secret: [8; 32],
        ..config(folder.path(), 1 << 20)
    };
    let tier = DiskTier::open(strange).unwrap();
    assert_eq!(layers(&open(&tier, SET)), NONE);
    assert!(files(&folder).is_empty());
    assert!(
        scan(
            &mut std::io::Cursor::new(b"no set at all"),
            13,
            crate::file::SumKey([0; 32])
        )
        .is_err()
    );
}

#[test]
fn an_order_to_forget_reaches_what_landed_and_what_is_about_to_also_after_a_restart() {
    let orders = [
        Selector::All,
        Selector::Scope(about("acme", "1").scope.clone()),
        Selector::Block(BlockId([9; 16])),
        Selector::Outdated {
            by: about("acme", "2").dependencies[0].clone(),
            of: None,
        },
    ];
    for order in orders {
        let folder = tempfile::tempdir().unwrap();
        let first = tier(&folder);
        let set = open(&first, SET);
        assert!(land(&set, 1));
        let path = files(&folder).remove(0);
        let kept_open = fs::File::open(&path).unwrap();
        first.invalidate(&order, &[]);
        assert_eq!(layers(&set), NONE, "{order:?}");
        assert!(!land(&set, 2), "{order:?}: what is under way is not kept");
        first.settle();
        assert!(files(&folder).is_empty(), "{order:?}");
        let mut left = Vec::new();
        std::io::Read::read_to_end(&mut &kept_open, &mut left).unwrap();
        assert!(
            left.iter().all(|byte| *byte == 0),
            "{order:?}: its bytes were overwritten"
        );
        drop((set, first));
        assert_eq!(layers(&open(&tier(&folder), SET)), NONE, "{order:?}");
    }
}

#[test]
fn an_order_about_others_leaves_it() {
    let folder = tempfile::tempdir().unwrap();
    let tier = tier(&folder);
    let set = open(&tier, SET);
    assert!(land(&set, 1));
    let same = about("acme", "1").dependencies[0].clone();
    let others = Scope::Tenant(TenantName::new("other").unwrap());
    for order in [
        Selector::Scope(others.clone()),
        Selector::Outdated { by: same, of: None },
        Selector::Outdated {
            by: about("acme", "2").dependencies[0].clone(),
            of: Some(others),
        },
    ] {
        tier.invalidate(&order, &[]);
        assert_eq!(layers(&set), [1], "{order:?}");
    }
}

#[test]
fn what_nobody_asked_for_in_time_goes_also_when_the_time_passed_in_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let first = tier(&folder);
    let set = open(&first, SET);
    assert!(land(&set, 1));
    first.expire(NOW + Duration::from_secs(3600));
    assert_eq!(layers(&set), [1], "a transfer uses it");
    drop(set);
    first.expire(NOW + Duration::from_secs(59));
    assert_eq!(layers(&open(&first, SET)), [1]);
    drop(first);
    let second = tier(&folder);
    second.expire(NOW + Duration::from_secs(60));
    assert_eq!(layers(&open(&second, SET)), NONE);
    second.settle();
    assert!(files(&folder).is_empty());
}

#[test]
fn the_budget_holds_and_the_set_that_was_idle_longest_makes_room() {
    let folder = tempfile::tempdir().unwrap();
    let budget = 4 * (CHUNK as u64 + 128) + 500;
    let tier = DiskTier::open(config(folder.path(), budget)).unwrap();
    let (old, new) = (open(&tier, OTHER), open(&tier, SET));
    assert!(land(&old, 1) && land(&old, 2) && land(&new, 3));
    assert!(!(4..9).all(|n| land(&new, n)), "both are in use");
    assert!(tier.landed_bytes().0 <= budget);
    assert_eq!(layers(&old), [1, 2]);
    drop(old);
    assert!(land(&new, 9), "the other made room");
    assert_eq!(layers(&open(&tier, OTHER)), NONE);
    assert!(tier.landed_bytes().0 <= budget);
}

#[test]
fn nothing_lands_where_nothing_may() {
    let folder = tempfile::tempdir().unwrap();
    let first = tier(&folder);
    assert!(land(&open(&first, SET), 1));
    drop(first);
    let tier = DiskTier::open(config(folder.path(), 0)).unwrap();
    assert!(tier.landed(SET, &about("acme", "1"), NOW).is_none());
    assert!(files(&folder).is_empty(), "what was there is gone");
}

#[test]
fn what_may_not_lie_here_does_not_land() {
    let folder = tempfile::tempdir().unwrap();
    let tier = tier(&folder);
    tier.guard(crate::Gate::new(|about| {
        about.dependencies.iter().any(|d| d.version == "2")
    }));
    assert!(tier.landed(SET, &about("acme", "1"), NOW).is_none());
    assert!(tier.landed(SET, &about("acme", "2"), NOW).is_some());
}
