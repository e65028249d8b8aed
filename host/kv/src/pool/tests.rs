//! The cases worth telling by themselves; `model.rs` holds the pool against a naive model of it, `reuse.rs` against LRU
//! on a trace.

mod model;
mod reuse;

use super::*;
use crate::block::BLOCK_OVERHEAD;
use bytes::Bytes as Buffer;
use portolan_base::{ModelName, TenantName};

const NOW: Moment = Moment(1_000_000);

fn id(path: &[u8]) -> BlockId {
    let mut bytes = [0xff; 16];
    bytes[..path.len()].copy_from_slice(path);
    BlockId(bytes)
}

fn chain(path: &[u8]) -> Vec<BlockId> {
    (1..=path.len()).map(|n| id(&path[..n])).collect()
}

fn scope(name: &str) -> Scope {
    Scope::Tenant(TenantName::new(name).unwrap())
}

fn on(kind: &str, version: &str) -> Dependency {
    Dependency {
        kind: kind.to_owned(),
        name: "x".to_owned(),
        version: version.to_owned(),
    }
}

fn about(scope: Scope, dependencies: &[Dependency]) -> Provenance {
    Provenance {
        scope,
        dependencies: dependencies.into(),
        ..Provenance::public(ModelName::new("m").unwrap(), 1)
    }
}

fn acme() -> Provenance {
    about(scope("acme"), &[])
}

fn block_of(about: Provenance, path: &[u8], size: usize) -> PoolBlock {
    PoolBlock {
        id: id(path),
        parent: (path.len() > 1).then(|| id(&path[..path.len() - 1])),
        hashes: Vec::new(),
        about: Arc::new(about),
        rebuild: Duration::from_millis(1),
        kv: BlockKv {
            attention: vec![Buffer::from(vec![0; size])],
            snapshot: None,
        },
    }
}

fn block(path: &[u8], size: usize, snapshot: Option<usize>) -> PoolBlock {
    let mut block = block_of(acme(), path, size);
    block.kv.snapshot = snapshot.map(|size| vec![Buffer::from(vec![0; size])]);
    block
}

fn pool(budget: Bytes) -> PrefixPool {
    PrefixPool::new(PoolConfig::of(budget))
}

fn ids<K>(blocks: &[Arc<PoolBlock<K>>]) -> Vec<BlockId> {
    blocks.iter().map(|block| block.id).collect()
}

#[test]
fn a_hybrid_hit_ends_at_the_last_snapshot() {
    let mut pool = PrefixPool::new(PoolConfig {
        reuse: Reuse::Snapshots,
        ..PoolConfig::of(Bytes(1 << 20))
    });
    for (path, snapshot) in [(&[0][..], None), (&[0, 1], Some(64)), (&[0, 1, 2], None)] {
        assert!(pool.insert(block(path, 100, snapshot), NOW).added);
    }
    let found = |pool: &mut PrefixPool, path: &[u8]| pool.lookup(&chain(path), &acme(), NOW).blocks.len();
    assert_eq!(found(&mut pool, &[0, 1, 2]), 2);
    let done = pool.insert(block(&[0, 1, 2], 100, Some(64)), NOW);
    assert!(done.added, "the snapshot it lacked");
    assert!(!pool.insert(block(&[0, 1, 2], 100, Some(64)), NOW).added);
    assert_eq!(found(&mut pool, &[0, 1, 2]), 3);
    assert_eq!(found(&mut pool, &[1, 1, 2]), 0);
    let counts = pool.tenants().next().unwrap().counts;
    assert_eq!((counts.hits, counts.misses), (5, 4));
}

#[test]
fn a_leased_block_stays_and_a_block_that_finds_no_room_evicts_nothing() {
    let one = block(&[0], 1000, None).size();
    let mut pool = pool(Bytes(one.0 * 2));
    pool.insert(block(&[0], 1000, None), NOW);
    pool.insert(block(&[1], 1000, None), NOW);
    let lease = pool.lease(&chain(&[0]), &[], NOW);
    let done = pool.insert(block(&[2], 2000, None), NOW);
    assert!(!done.added, "one free block is not enough");
    assert_eq!(pool.blocks(), 2, "the free block was given back");
    let done = pool.insert(block(&[2], 1000, None), NOW);
    assert_eq!(ids(&done.evicted), [id(&[1])], "younger, but not leased");
    drop(lease);
    assert_eq!(pool.insert(block(&[3], 1000, None), NOW).evicted[0].id, id(&[0]));
}

#[test]
fn a_lease_taken_before_the_snapshot_came_still_holds_the_block() {
    let one = block(&[0], 1000, Some(100)).size();
    let mut pool = pool(one);
    pool.insert(block(&[0], 1000, None), NOW);
    let lease = pool.lease(&chain(&[0]), &[], NOW);
    assert!(pool.insert(block(&[0], 1000, Some(100)), NOW).added);
    assert!(!pool.insert(block(&[1], 1000, None), NOW).added);
    drop(lease);
    assert!(pool.insert(block(&[1], 1000, None), NOW).added);
}

#[test]
fn a_block_without_its_parent_is_taken_by_lower_tiers_only() {
    let mut upper = pool(Bytes(1 << 20));
    assert!(!upper.insert(block(&[0, 1], 10, None), NOW).added);
    assert_eq!(upper.used(), Bytes(0));
    let mut lower = PrefixPool::new(PoolConfig {
        parents: Parents::Elsewhere,
        ..PoolConfig::of(Bytes(1 << 20))
    });
    assert!(lower.insert(block(&[0, 1], 10, None), NOW).added);
    assert!(lower.find(&id(&[0, 1]), Some(id(&[0])), NOW).is_some());
    assert!(
        lower.find(&id(&[0, 1]), None, NOW).is_none(),
        "only after its parent"
    );
    assert_eq!(
        ids(&lower.forget(&[id(&[0])])),
        [id(&[0, 1])],
        "it goes with its parent"
    );
}

#[test]
fn reused_blocks_and_dear_ones_stay_longer() {
    let one = block(&[0], 1000, None).size();
    let mut pool = pool(Bytes(one.0 * 4));
    for n in 0..4 {
        pool.insert(block(&[n], 1000, None), NOW);
    }
    pool.lookup(&chain(&[0]), &acme(), NOW);
    pool.lookup(&chain(&[1]), &acme(), NOW);
    // Blocks 2 and 3 were never reused; block 0 is due by use before block 1, and block 4 comes after both.
    let evicted: Vec<_> = (4..8)
        .flat_map(|n| ids(&pool.insert(block(&[n], 1000, None), NOW).evicted))
        .collect();
    assert_eq!(evicted[..2], [id(&[2]), id(&[3])]);

    let mut dear = block(&[0], 1000, None);
    dear.rebuild = Duration::from_millis(50);
    let mut pool = PrefixPool::new(PoolConfig::of(Bytes(one.0 * 4)));
    pool.insert(dear, NOW);
    (1..4).for_each(|n| drop(pool.insert(block(&[n], 1000, None), NOW)));
    (0..4).for_each(|n| drop(pool.lookup(&chain(&[n]), &acme(), NOW)));
    let done = pool.insert(block(&[4], 1000, None), NOW);
    assert_eq!(ids(&done.evicted), [id(&[1])], "the oldest of all costs most");
}

#[test]
fn a_tenant_takes_no_room_from_others_beneath_their_share() {
    let globex = || about(scope("globex"), &[]);
    let one = block(&[0], 1000, None).size();
    let mut pool = PrefixPool::new(PoolConfig {
        shares: Shares::equal(Bytes(one.0 * 4), 2),
        ..PoolConfig::of(Bytes(one.0 * 4))
    });
    pool.insert(block(&[0], 1000, None), NOW);
    for n in 1..4 {
        assert!(
            pool.insert(block_of(globex(), &[n], 1000), NOW)
                .evicted
                .is_empty(),
            "free room is anyone's"
        );
    }
    let done = pool.insert(block_of(globex(), &[4], 1000), NOW);
    assert_eq!(
        ids(&done.evicted),
        [id(&[1])],
        "its own, though another's is older"
    );
    let done = pool.insert(block(&[5], 1000, None), NOW);
    assert_eq!(ids(&done.evicted), [id(&[2])], "what was lent comes back");
    let lease = pool.lease(&chain(&[0]), &[], NOW);
    let other = pool.lease(&chain(&[5]), &[], NOW);
    assert!(
        !pool.insert(block(&[6], 1000, None), NOW).added,
        "all of its own is leased"
    );
    drop((lease, other));
    let used: Vec<_> = pool
        .tenants()
        .map(|part| (part.blocks, part.counts.evicted))
        .collect();
    assert_eq!(used, [(2, 0), (2, 2)]);
}

#[test]
fn what_depends_on_another_version_is_gone_with_all_that_follows() {
    let doc = |version| about(scope("acme"), &[on("document", version)]);
    let mut pool = pool(Bytes(1 << 20));
    pool.insert(block(&[0], 10, None), NOW);
    pool.insert(block_of(doc("1"), &[0, 1], 10), NOW);
    pool.insert(block(&[0, 1, 2], 10, None), NOW);
    pool.insert(block_of(doc("2"), &[0, 3], 10), NOW);
    let globex = Provenance {
        scope: scope("globex"),
        ..doc("1")
    };
    pool.insert(block_of(globex, &[7], 10), NOW);
    let lease = pool.lease(&chain(&[0, 1, 2]), &[], NOW);
    let order = Selector::Outdated {
        by: on("document", "2"),
        of: Some(scope("acme")),
    };
    let gone = pool.invalidate(&order);
    assert_eq!(ids(&gone), [id(&[0, 1, 2]), id(&[0, 1])]);
    assert_eq!(lease.blocks.len(), 3, "whoever reads goes on reading");
    assert_eq!(pool.lease(&chain(&[0, 1, 2]), &[], NOW).blocks.len(), 1);
    assert_eq!(pool.lease(&chain(&[0, 3]), &[], NOW).blocks.len(), 2);
    assert_eq!(
        pool.lease(&chain(&[7]), &[], NOW).blocks.len(),
        1,
        "another tenant's document"
    );
    assert!(pool.invalidate(&order).is_empty());
    assert_eq!(pool.invalidate(&Selector::All).len(), 3);
    assert!(pool.dependants.is_empty() && pool.children.is_empty());
    assert_eq!(pool.used(), Bytes(0));
}

#[test]
fn a_user_binds_what_it_uses_but_nothing_that_is_public() {
    let mut pool = pool(Bytes(1 << 20));
    pool.insert(block_of(about(Scope::Public, &[]), &[0], 10), NOW);
    pool.insert(block(&[0, 1], 10, None), NOW);
    let user = about(scope("acme"), &[on("document", "1")]);
    assert_eq!(pool.lookup(&chain(&[0, 1]), &user, NOW).blocks.len(), 2);
    let order = Selector::Outdated {
        by: on("document", "2"),
        of: None,
    };
    assert_eq!(ids(&pool.invalidate(&order)), [id(&[0, 1])]);
    // What a block depends on goes along when it is evicted.
    pool.insert(block(&[0, 1], 10, None), NOW);
    pool.lookup(&chain(&[0, 1]), &user, NOW);
    let moved = pool.remove(&id(&[0, 1])).unwrap();
    assert_eq!(moved.about.dependencies[..], [on("document", "1")]);
}

#[test]
fn what_nobody_uses_for_its_time_to_live_cannot_be_found_and_then_goes() {
    let mut pool = PrefixPool::new(PoolConfig {
        time_to_live: Some(Duration::from_secs(10)),
        ..PoolConfig::of(Bytes(1 << 20))
    });
    let at = |seconds: u64| Moment(seconds * 1_000_000);
    for path in [&[0][..], &[0, 1], &[2]] {
        pool.insert(block(path, 10, None), at(0));
    }
    assert_eq!(pool.lookup(&chain(&[0]), &acme(), at(5)).blocks.len(), 1);
    assert_eq!(
        pool.lookup(&chain(&[0, 1]), &acme(), at(9)).blocks.len(),
        2,
        "just inside"
    );
    assert_eq!(
        pool.lookup(&chain(&[2]), &acme(), at(10)).blocks.len(),
        0,
        "just outside"
    );
    assert!(pool.expire(at(9)).is_empty());
    assert_eq!(ids(&pool.expire(at(10))), [id(&[2])]);
    assert_eq!(pool.expire(at(19)).len(), 2);
    assert_eq!((pool.blocks(), pool.used()), (0, Bytes(0)));
    assert!(pool.by_time.is_empty());
}

#[test]
fn a_block_that_depends_on_too_much_is_not_reused() {
    let mut pool = pool(Bytes(1 << 20));
    pool.insert(block(&[0], 10, None), NOW);
    let many = |from: usize| {
        let all: Vec<_> = (from..from + 200)
            .map(|n| Dependency {
                name: n.to_string(),
                ..on("document", "1")
            })
            .collect();
        about(scope("acme"), &all)
    };
    assert_eq!(pool.lookup(&chain(&[0]), &many(0), NOW).blocks.len(), 1);
    assert_eq!(
        pool.lookup(&chain(&[0]), &many(100), NOW).blocks.len(),
        0,
        "300 together"
    );
    assert_eq!(pool.lookup(&chain(&[0]), &many(0), NOW).blocks.len(), 1);
    assert!(
        !pool.insert(block_of(many(200), &[0, 1], 10), NOW).added,
        "it would inherit 200"
    );
}

#[test]
fn what_was_used_last_is_handed_on_first_and_its_beginning_before_it() {
    let mut pool = pool(Bytes(1 << 20));
    let later = NOW + Duration::from_secs(1);
    for path in [&[1u8][..], &[1, 2], &[1, 2, 3], &[7], &[7, 8]] {
        pool.insert(block(path, 100, None), NOW);
    }
    pool.lookup(
        &chain(&[7, 8]),
        &about(scope("acme"), &[on("document", "1")]),
        later,
    );
    let order = pool.latest_first();
    assert_eq!(order, [chain(&[7, 8]), chain(&[1, 2, 3])].concat());
    let (handed, used_at) = pool.handed(&order[1]).unwrap();
    assert_eq!(used_at, later);
    assert_eq!(
        *handed.about.dependencies,
        [on("document", "1")],
        "what its users said"
    );
    assert!(pool.handed(&id(&[9])).is_none());
    assert_eq!(pool.blocks(), 5, "they stay");
}

#[test]
fn orders_of_a_scope_and_orders_but_for_some_scopes() {
    let about = |tenant: &str| Provenance {
        dependencies: [Dependency {
            kind: "document".to_owned(),
            name: "d".to_owned(),
            version: "1".to_owned(),
        }]
        .into(),
        ..Provenance::of(TenantName::new(tenant).unwrap(), ModelName::new("m").unwrap(), 1)
    };
    let block = |n: u8, parent: Option<u8>, tenant: &str| PoolBlock {
        id: BlockId([n; 16]),
        parent: parent.map(|n| BlockId([n; 16])),
        hashes: Vec::new(),
        about: Arc::new(about(tenant)),
        rebuild: Duration::from_millis(1),
        kv: BlockKv::default(),
    };
    let fresh = || {
        let mut pool = PrefixPool::new(PoolConfig::of(Bytes(1 << 20)));
        for (n, parent, tenant) in [
            (1, None, "a"),
            (2, Some(1), "a"),
            (3, None, "b"),
            (4, Some(3), "b"),
        ] {
            assert!(pool.insert(block(n, parent, tenant), Moment(0)).added);
        }
        pool
    };
    let scope = |tenant: &str| Scope::Tenant(TenantName::new(tenant).unwrap());
    let goes = |what: &Selector| {
        let mut pool = fresh();
        let would = pool.would_forget(what, &[]).len();
        let gone = pool.invalidate(what);
        assert_eq!(would, gone.len());
        let mut ids: Vec<u8> = gone.iter().map(|block| block.id.0[0]).collect();
        ids.sort_unstable();
        ids
    };
    let owned = |n: u8, tenant| Selector::Owned {
        block: BlockId([n; 16]),
        of: scope(tenant),
    };
    assert_eq!(goes(&owned(1, "a")), [1, 2]);
    assert!(goes(&owned(1, "b")).is_empty());
    let outdated = Selector::Outdated {
        by: Dependency {
            kind: "document".to_owned(),
            name: "d".to_owned(),
            version: "2".to_owned(),
        },
        of: None,
    };
    let but = |tenant| Selector::Except {
        what: Box::new(outdated.clone()),
        but: [scope(tenant)].into(),
    };
    assert_eq!(goes(&but("a")), [3, 4]);
    assert!(!but("a").covers(&block(1, None, "a")) && but("b").covers(&block(1, None, "a")));
    let these = Selector::Blocks(Arc::new([BlockId([2; 16]), BlockId([3; 16])].into()));
    assert_eq!(goes(&these), [2, 3, 4]);
    let older = Selector::Older {
        model: ModelName::new("m").unwrap(),
        version: 2,
    };
    assert_eq!(goes(&older), [1, 2, 3, 4]);
}

/// A request that names a version of a document, or two of them.
fn naming(versions: &[(&str, &str)]) -> Provenance {
    let of = |(name, version): &(&str, &str)| Dependency {
        name: (*name).to_owned(),
        ..on("document", version)
    };
    about(scope("acme"), &versions.iter().map(of).collect::<Vec<_>>())
}

#[test]
fn what_depends_on_a_document_at_another_version_is_not_used_and_makes_way() {
    let mut pool = pool(Bytes(1 << 20));
    let (old, new) = (naming(&[("a", "1")]), naming(&[("a", "2")]));
    for path in [&[0][..], &[0, 1], &[0, 1, 2]] {
        pool.insert(block_of(old.clone(), path, 10), NOW);
    }
    let found =
        |pool: &mut PrefixPool, about: &Provenance| pool.lookup(&chain(&[0, 1, 2]), about, NOW).blocks.len();
    assert_eq!(found(&mut pool, &new), 0);
    assert_eq!(found(&mut pool, &old), 3, "looking bound nothing");
    assert_eq!(found(&mut pool, &acme()), 3, "who names no version may use any");
    let chained = chain(&[0, 1, 2]);
    let on = |about: &Provenance| Arc::clone(&about.dependencies);
    assert_eq!(pool.lease(&chained, &on(&new), NOW).blocks.len(), 0);
    assert_eq!(pool.lease(&chained, &on(&old), NOW).blocks.len(), 3);
    assert_eq!(pool.run_length(&chained, &on(&new), NOW), 0);
    assert!(pool.find_for(&id(&[0]), None, &on(&new), NOW).is_none());

    assert!(
        !pool.insert(block_of(new.clone(), &[0, 1, 7], 10), NOW).added,
        "on top of what depends on another version"
    );
    let inserted = pool.insert(block_of(new.clone(), &[0], 10), NOW);
    assert!(inserted.added && inserted.evicted.is_empty());
    assert_eq!(
        set_of(&inserted.replaced),
        [id(&[0]), id(&[0, 1]), id(&[0, 1, 2])].into()
    );
    assert_eq!((found(&mut pool, &new), found(&mut pool, &old)), (1, 0));
    let order = Selector::Outdated {
        by: naming(&[("a", "2")]).dependencies[0].clone(),
        of: None,
    };
    assert!(pool.invalidate(&order).is_empty(), "it is of this version");
    assert_eq!(pool.blocks(), 1);
}

fn set_of(blocks: &[Arc<PoolBlock>]) -> HashSet<BlockId> {
    blocks.iter().map(|block| block.id).collect()
}

#[test]
fn a_prompt_that_many_share_is_shared_by_those_who_name_different_documents() {
    let mut pool = pool(Bytes(1 << 20));
    // The system prompt, then a document each.
    pool.insert(block_of(naming(&[("a", "1")]), &[0], 10), NOW);
    pool.insert(block_of(naming(&[("a", "1")]), &[0, 1], 10), NOW);
    let b = naming(&[("b", "7")]);
    assert_eq!(pool.lookup(&chain(&[0, 2]), &b, NOW).blocks.len(), 1);
    assert!(pool.insert(block_of(b.clone(), &[0, 2], 10), NOW).added);
    let both = naming(&[("a", "1"), ("b", "7")]);
    assert_eq!(pool.lookup(&chain(&[0, 2]), &both, NOW).blocks.len(), 2);
    let later = naming(&[("b", "8")]);
    assert_eq!(
        pool.lookup(&chain(&[0, 2]), &later, NOW).blocks.len(),
        0,
        "whoever used it named the version before"
    );
}

#[test]
fn no_block_depends_on_one_thing_at_two_versions() {
    let mut pool = PrefixPool::new(PoolConfig {
        parents: Parents::Elsewhere,
        ..PoolConfig::of(Bytes(1 << 20))
    });
    pool.insert(block_of(naming(&[("a", "1"), ("b", "1")]), &[0], 10), NOW);
    pool.insert(block_of(naming(&[("a", "2")]), &[0, 1], 10), NOW);
    let child = pool.see(&id(&[0, 1])).unwrap().dependencies;
    let mut names: Vec<_> = child
        .iter()
        .map(|d| (d.name.as_str(), d.version.as_str()))
        .collect();
    names.sort_unstable();
    assert_eq!(names, [("a", "2"), ("b", "1")]);
    pool.insert(block_of(about(Scope::Public, &[]), &[9], 10), NOW);
    let anyone = naming(&[("a", "5")]);
    assert_eq!(
        pool.lookup(&chain(&[9]), &anyone, NOW).blocks.len(),
        1,
        "nothing binds what is public"
    );
}
