//! Blocks that move down and up, and orders that come meanwhile.

use super::*;
use crate::pool::{PoolConfig, Reuse};
use bytes::Bytes as Buffer;
use parking_lot::Mutex;
use portolan_base::{Dependency, ModelName, TenantName};
use std::collections::HashSet;

const NOW: Moment = Moment(0);
const KIB: u64 = 1 << 10;

fn about(tenant: &str, version: &str) -> Arc<Provenance> {
    let dependency = Dependency {
        kind: "document".to_owned(),
        name: "d".to_owned(),
        version: version.to_owned(),
    };
    Arc::new(Provenance {
        dependencies: [dependency].into(),
        ..Provenance::of(TenantName::new(tenant).unwrap(), ModelName::new("m").unwrap(), 1)
    })
}

fn id(n: u8) -> BlockId {
    BlockId([n; 16])
}

/// Block `n` after block `n - 1`.
fn block(n: u8) -> PoolBlock {
    PoolBlock {
        id: id(n),
        parent: (n > 1).then(|| id(n - 1)),
        hashes: vec![BlockHash(u64::from(n))],
        about: about("acme", "1"),
        rebuild: Duration::from_millis(1),
        kv: BlockKv {
            attention: vec![Buffer::from(vec![n; KIB as usize])],
            snapshot: None,
        },
    }
}

fn host(blocks: u64) -> Arc<HostTier> {
    Arc::new(HostTier::new(PoolConfig::of(Bytes(block(1).size().0 * blocks))))
}

fn ids(below: &Below) -> usize {
    below.blocks().len()
}

fn outdated(version: &str) -> Selector {
    Selector::Outdated {
        by: about("acme", version).dependencies[0].clone(),
        of: None,
    }
}

/// A pool above, and what its listeners were told.
#[derive(Default)]
struct Above {
    holds: Mutex<Vec<PoolBlock>>,
    left: Mutex<Vec<Left>>,
}

impl Top for Above {
    fn invalidate(&self, what: &Selector, others: &[BlockId]) -> Vec<Left> {
        let gone = self.would_forget(what, others);
        let goes = |b: &PoolBlock| gone.iter().any(|(id, _)| *id == b.id);
        let mut holds = self.holds.lock();
        let left = holds.iter().filter(|b| goes(b)).map(Left::from).collect();
        holds.retain(|b| !goes(b));
        left
    }
    fn would_forget(&self, what: &Selector, others: &[BlockId]) -> Vec<(BlockId, Bytes)> {
        let holds = self.holds.lock();
        let goes = |b: &&PoolBlock| what.covers(b) || b.parent.is_some_and(|parent| others.contains(&parent));
        holds.iter().filter(goes).map(|b| (b.id, b.size())).collect()
    }
    fn holds(&self, id: &BlockId) -> bool {
        self.holds.lock().iter().any(|block| block.id == *id)
    }
    fn left(&self, blocks: &[Left]) {
        self.left.lock().extend_from_slice(blocks);
    }
}

#[test]
fn a_block_falls_to_the_first_tier_with_room_and_comes_back_whole() {
    let (upper, lower) = (host(2), host(2));
    let tiers = Tiers::new(vec![upper.clone(), lower.clone()]);
    let above = Arc::new(Above::default());
    let top: Arc<dyn Top> = above.clone();
    tiers.attach(Arc::downgrade(&top));
    for n in 1..=4 {
        let gone = tiers.demote(Arc::new(block(n)), &tiers.open(), NOW);
        assert!(gone.is_empty(), "{n}");
    }
    let chain: Vec<_> = (1..=5).map(id).collect();
    let below = tiers.below(&chain, 0, &block(1).about, NOW);
    assert_eq!(ids(&below), 4);
    assert_eq!((upper.usage().blocks, lower.usage().blocks), (2, 2));
    for found in below.blocks() {
        let read = tiers.read(found, NOW).unwrap();
        assert_eq!(read.kv.attention[0], vec![read.id.0[0]; KIB as usize]);
    }
    assert_eq!(
        (upper.usage().blocks, lower.usage().blocks),
        (0, 0),
        "who reads it holds it"
    );
    let counts = |tier: &HostTier| {
        let tenant = tier.usage().tenants[0].counts;
        (tenant.hits, tenant.misses)
    };
    assert_eq!((counts(&upper), counts(&lower)), ((2, 3), (2, 1)));

    let gone: Vec<_> = (1..=5)
        .flat_map(|n| tiers.demote(Arc::new(block(n)), &tiers.open(), NOW))
        .collect();
    assert_eq!(gone.len(), 1, "four fit");
    tiers.left(&gone);
    assert_eq!(*above.left.lock(), gone);
}

#[test]
fn what_was_computed_on_a_block_that_went_meanwhile_does_not_arrive() {
    let tiers = Tiers::new(vec![host(9)]);
    let acme = about("acme", "1").scope.clone();
    let globex = about("globex", "1").scope.clone();
    let owned = |of: &Scope| Selector::Owned {
        block: id(1),
        of: of.clone(),
    };
    let but = |of: &Scope| Selector::Except {
        what: Box::new(Selector::Block(id(1))),
        but: [of.clone()].into(),
    };
    let named = Selector::Blocks(Arc::new([id(1)].into()));
    let (beneath, elsewhere) = ([id(1), id(2)], [id(5), id(6)]);
    for order in [Selector::Block(id(1)), named, owned(&acme), but(&globex)] {
        let epoch = tiers.epoch();
        tiers.invalidate(&order);
        assert!(!tiers.open().allows(&block(3), &beneath, epoch), "{order:?}");
        assert!(tiers.open().allows(&block(3), &elsewhere, epoch), "{order:?}");
        assert!(
            tiers.open().allows(&block(3), &beneath, tiers.epoch()),
            "computed anew"
        );
    }
    for order in [owned(&globex), but(&acme)] {
        let epoch = tiers.epoch();
        tiers.invalidate(&order);
        assert!(
            tiers.open().allows(&block(3), &beneath, epoch),
            "{order:?} is about another's"
        );
    }
}

#[test]
fn an_order_reaches_pools_tiers_and_what_is_on_its_way() {
    let tier = host(9);
    let tiers = Tiers::new(vec![tier.clone()]);
    let above = Arc::new(Above::default());
    let top: Arc<dyn Top> = above.clone();
    tiers.attach(Arc::downgrade(&top));
    above.holds.lock().push(block(1));
    tiers.demote(Arc::new(block(2)), &tiers.open(), NOW);
    let (epoch, on_its_way) = (tiers.epoch(), block(3));
    assert_eq!(tiers.would_forget(&outdated("2")).blocks, 2);
    assert_eq!(tiers.invalidate(&outdated("2")).blocks, 2);
    assert_eq!(tier.usage().blocks, 0);
    assert!(above.holds.lock().is_empty());
    assert!(!tiers.open().allows(&on_its_way, &[], epoch));
    assert!(
        tiers.open().allows(&on_its_way, &[], tiers.epoch()),
        "what begins afterwards"
    );
    let other = PoolBlock {
        about: about("acme", "2"),
        ..block(3)
    };
    assert!(
        tiers.open().allows(&other, &[], epoch),
        "the order is not about it"
    );
    for _ in 0..2000 {
        tiers.invalidate(&Selector::Block(id(99)));
    }
    assert!(
        !tiers.open().allows(&other, &[], epoch),
        "too many orders to tell"
    );
}

#[test]
fn what_was_computed_on_top_of_a_forgotten_block_goes_wherever_it_lies() {
    let tier = host(9);
    let tiers = Tiers::new(vec![tier.clone()]);
    let above = Arc::new(Above::default());
    let top: Arc<dyn Top> = above.clone();
    tiers.attach(Arc::downgrade(&top));
    // Blocks 1 and 3 above, 2 below.
    above.holds.lock().extend([block(1), block(3)]);
    tiers.demote(Arc::new(block(2)), &tiers.open(), NOW);
    let (would, did) = (
        tiers.would_forget(&Selector::Block(id(1))),
        tiers.invalidate(&Selector::Block(id(1))),
    );
    assert_eq!((would, did.blocks), (did, 3));
    assert_eq!(did.bytes, Bytes(3 * block(1).size().0));
    assert!(above.holds.lock().is_empty() && tier.usage().blocks == 0);
}

#[test]
fn reading_is_chosen_where_it_is_cheaper_and_a_prefix_may_end() {
    let fast = Reading {
        a_block: Duration::from_millis(1),
        a_mib: Duration::ZERO,
    };
    let slow = Reading {
        a_block: Duration::from_millis(30),
        ..fast
    };
    let lying = |has_snapshot| Lying {
        bytes: Bytes(1 << 20),
        has_snapshot,
    };
    let compute = Duration::from_millis(10);
    let run = |parts: &[(Reading, bool)]| -> Vec<_> { parts.iter().map(|(r, s)| (lying(*s), *r)).collect() };
    let any = |parts: &[(Reading, bool)]| worth_reading(&run(parts), compute, Reuse::AnyBlock);
    assert_eq!(any(&[(fast, false); 3]), 3);
    assert_eq!(any(&[(slow, false); 3]), 0);
    assert_eq!(
        any(&[(fast, false), (slow, false), (fast, false)]),
        1,
        "the third saves less than the second costs"
    );
    let mut long = vec![(fast, false), (slow, false)];
    long.extend([(fast, false); 3]);
    assert_eq!(any(&long), 5, "three more save enough");
    let hybrid = |parts: &[(Reading, bool)]| worth_reading(&run(parts), compute, Reuse::Snapshots);
    assert_eq!(hybrid(&[(fast, false), (fast, true), (fast, false)]), 2);
    assert_eq!(hybrid(&[(fast, false); 3]), 0);
    let by_size = Reading {
        a_block: Duration::ZERO,
        a_mib: Duration::from_millis(9),
    };
    assert_eq!(by_size.time(Bytes(1 << 21)), Duration::from_millis(18));
}

#[test]
fn what_is_not_trusted_is_not_given_and_what_is_too_old_is_not_taken() {
    let tier = host(9);
    let tiers = Tiers::new(vec![tier]);
    tiers.demote(Arc::new(block(1)), &tiers.open(), NOW);
    let below = |now| ids(&tiers.below(&[id(1)], 0, &block(1).about, now));
    assert_eq!(below(Moment(u64::MAX)), 1, "where nobody says otherwise");
    tiers.trust_until(Moment(5));
    assert_eq!((below(Moment(4)), below(Moment(5))), (1, 0));
    tiers.trust_until(Moment(0));
    assert_eq!(below(Moment(0)), 0);
    tiers.trust_until(Moment(9));

    let older = |version| Selector::Older {
        model: block(1).about.model.clone(),
        version,
    };
    assert_eq!(tiers.invalidate(&older(1)).blocks, 0);
    assert_eq!(tiers.would_forget(&older(2)).blocks, 1);
    assert_eq!(tiers.invalidate(&older(2)).blocks, 1);
    assert!(
        !tiers.open().allows(&block(1), &[], tiers.epoch()),
        "a request that began before finishes"
    );
    assert_eq!(below(Moment(4)), 0);
}

#[test]
fn what_depends_on_another_version_is_not_given_and_makes_way_in_a_tier() {
    let (upper, lower) = (host(9), host(9));
    let tiers = Tiers::new(vec![upper, lower]);
    for n in 1..=2 {
        tiers.demote(Arc::new(block(n)), &tiers.open(), NOW);
    }
    let newer = |n| PoolBlock {
        about: about("acme", "2"),
        ..block(n)
    };
    let found = |version: &str| ids(&tiers.below(&[id(1), id(2)], 0, &about("acme", version), NOW));
    assert_eq!((found("1"), found("2")), (2, 0));
    let gone = tiers.demote(Arc::new(newer(1)), &tiers.open(), NOW);
    assert_eq!(
        gone.iter().map(|left| left.id).collect::<HashSet<_>>(),
        [id(1), id(2)].into()
    );
    assert_eq!((found("1"), found("2")), (0, 1));
    tiers.demote(Arc::new(newer(2)), &tiers.open(), NOW);
    assert_eq!((found("1"), found("2")), (0, 2));
}

#[test]
fn what_was_computed_on_top_of_a_forgotten_block_goes_from_tiers_above_it_too() {
    let (upper, lower) = (host(9), host(9));
    let tiers = Tiers::new(vec![upper.clone(), lower.clone()]);
    // 2 lies below, 1 and 3 above it.
    lower.offer(Arc::new(block(2)), NOW);
    upper.offer(Arc::new(block(1)), NOW);
    upper.offer(Arc::new(block(3)), NOW);
    let order = Selector::Block(id(1));
    let (would, did) = (tiers.would_forget(&order), tiers.invalidate(&order));
    assert_eq!((would, did.blocks), (did, 3));
    assert_eq!((upper.usage().blocks, lower.usage().blocks), (0, 0));
}

#[test]
fn an_order_about_a_block_reaches_what_may_have_been_computed_on_it_across_a_gap() {
    let of = |tenant: &str, n: u8, parent: Option<u8>| {
        Arc::new(PoolBlock {
            id: id(n),
            parent: parent.map(id),
            about: about(tenant, "1"),
            ..block(1)
        })
    };
    let fresh = || {
        let tier = host(20);
        let tiers = Tiers::new(vec![tier.clone()]);
        let above = Arc::new(Above::default());
        let top: Arc<dyn Top> = above.clone();
        tiers.attach(Arc::downgrade(&top));
        // Of 1-2-3-4 the second block lies nowhere. 5-6 is whole, 6 on disk and 5 above; 8 was computed on 7, which lies
        // nowhere either, by another tenant.
        for (tenant, n, parent) in [
            ("acme", 1, None),
            ("acme", 3, Some(2)),
            ("acme", 4, Some(3)),
            ("acme", 6, Some(5)),
            ("globex", 8, Some(7)),
        ] {
            tier.offer(of(tenant, n, parent), NOW);
        }
        above.holds.lock().push(PoolBlock::clone(&of("acme", 5, None)));
        (tiers, tier, above)
    };
    let left = |order: &Selector| {
        let (tiers, tier, _above) = fresh();
        let would = tiers.would_forget(order);
        assert_eq!(would, tiers.invalidate(order), "{order:?}");
        let mut ids = Vec::new();
        tier.each(&mut |card| ids.push(card.id.0[0]));
        ids.sort_unstable();
        ids
    };
    let owned = |block: u8, tenant| Selector::Owned {
        block: id(block),
        of: about(tenant, "1").scope.clone(),
    };
    assert_eq!(
        left(&Selector::Block(id(1))),
        [6],
        "whoever's: nobody knows what 8 lay on"
    );
    assert_eq!(left(&owned(1, "acme")), [6, 8]);
    assert_eq!(left(&owned(7, "globex")), [1, 3, 4, 6]);
    assert_eq!(
        left(&Selector::Block(id(5))),
        [1],
        "and 6, which is known to lie on it"
    );
    let other = Selector::Outdated {
        by: Dependency {
            name: "e".to_owned(),
            ..about("acme", "2").dependencies[0].clone()
        },
        of: None,
    };
    assert_eq!(left(&other), [1, 3, 4, 6, 8], "other orders reach what they name");
    let (tiers, tier, _above) = fresh();
    tiers.evict(&[id(1)].into());
    assert_eq!(tier.usage().blocks, 4, "nor does room");
}
