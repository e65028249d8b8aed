//! Pools of models whose attention has a window.

use super::*;
use crate::BLOCK_OVERHEAD;
use crate::pool::{PoolConfig, Selector};
use portolan_base::{Bytes, Dependency, ModelName, TenantKey};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;

const BLOCK: u32 = 4;
const NOW: Moment = Moment(1_000_000);

fn chain(len: usize) -> Vec<BlockId> {
    let tokens: Vec<u32> = (0..len as u32 * BLOCK).collect();
    BlockId::chain(&TenantKey::derive(&[1; 32], "t", "m", 1), &tokens, BLOCK as usize)
}

fn on(version: &str) -> Provenance {
    let dependency = Dependency {
        kind: "document".to_owned(),
        name: "x".to_owned(),
        version: version.to_owned(),
    };
    Provenance {
        scope: portolan_base::Scope::Tenant(portolan_base::TenantName::new("acme").unwrap()),
        dependencies: [dependency].into(),
        ..Provenance::public(ModelName::new("m").unwrap(), 1)
    }
}

fn acme() -> Provenance {
    Provenance {
        dependencies: [].into(),
        ..on("1")
    }
}

fn block(chain: &[BlockId], place: usize) -> PoolBlock {
    PoolBlock {
        id: chain[place],
        parent: place.checked_sub(1).map(|before| chain[before]),
        hashes: Vec::new(),
        about: Arc::new(acme()),
        rebuild: Duration::from_millis(1),
        kv: BlockKv::default(),
    }
}

fn config(blocks: u64, tokens: u32, sinks: u32) -> PoolConfig {
    let window = KvWindow { tokens, sinks };
    PoolConfig {
        window: Some(BlockWindow { window, block: BLOCK }),
        ..PoolConfig::of(Bytes(blocks * BLOCK_OVERHEAD.0))
    }
}

fn pool(blocks: u64, tokens: u32, sinks: u32) -> PrefixPool {
    PrefixPool::new(config(blocks, tokens, sinks))
}

/// A pool of four blocks, after a prompt of twenty.
fn after_twenty(chain: &[BlockId]) -> PrefixPool {
    let mut pool = pool(4, 6, 1);
    for place in 0..20 {
        assert!(
            pool.insert_after(&chain[..place], block(chain, place), NOW).added,
            "{place}"
        );
        let held = pool.lease_needed(&chain[..=place], &[], NOW);
        assert_eq!(held.len, place + 1);
    }
    pool
}

fn places(held: &HeldBlocks) -> Vec<usize> {
    held.blocks.iter().map(|(place, _)| *place).collect()
}

fn assert_empty(pool: &PrefixPool) {
    assert_eq!((pool.blocks(), pool.used()), (0, Bytes(0)));
    assert!(pool.children.is_empty() && pool.missing.is_empty(), "{pool:?}");
}

#[test]
fn a_hit_needs_the_first_blocks_and_the_latest_and_leases_no_other() {
    let chain = chain(8);
    // Five tokens reach one block back, and one token into the block before: two blocks.
    let mut pool = pool(8, 6, 1);
    for place in 0..8 {
        assert!(
            pool.insert_after(&chain[..place], block(&chain, place), NOW)
                .added
        );
    }
    let held = pool.lookup_needed(&chain, &acme(), NOW);
    assert_eq!((held.len, places(&held)), (8, vec![0, 6, 7]));
    assert_eq!(pool.lookup_needed(&chain[..1], &acme(), NOW).len, 1);
    let counts = pool.tenants().next().unwrap().counts;
    assert_eq!((counts.hits, counts.misses), (9, 0));
}

#[test]
fn what_fell_out_of_the_window_makes_room_and_nothing_is_lost_by_it() {
    let chain = chain(20);
    let mut pool = after_twenty(&chain);
    assert_eq!(pool.blocks(), 4);
    assert!(pool.used() <= pool.budget());
    assert_eq!(
        pool.lease_needed(&chain[..10], &[], NOW).len,
        1,
        "its latest blocks are gone"
    );
    assert_eq!(pool.invalidate(&Selector::All).len(), 4);
    assert_empty(&pool);
}

#[test]
fn an_order_reaches_what_was_computed_on_top_over_blocks_that_are_not_held() {
    let chain = chain(20);
    for root in [0, 5, 18] {
        let mut pool = after_twenty(&chain);
        pool.invalidate(&Selector::Block(chain[root]));
        assert_eq!(pool.lease_needed(&chain, &[], NOW).len, usize::from(root > 0));
        pool.invalidate(&Selector::Block(chain[0]));
        assert_empty(&pool);
    }
}

#[test]
fn blocks_that_came_without_those_before_them_are_reached_too() {
    let chain = chain(20);
    let mut pool = pool(4, 6, 1);
    for place in [0, 18, 19] {
        assert!(
            pool.insert_after(&chain[..place], block(&chain, place), NOW)
                .added
        );
    }
    assert_eq!(pool.lease_needed(&chain, &[], NOW).len, 20);
    assert_eq!(pool.forget(&chain[7..8]).len(), 2);
    assert_eq!(pool.forget(&chain[..1]).len(), 1);
    assert_empty(&pool);
}

#[test]
fn what_a_user_depends_on_binds_the_blocks_it_needs_and_those_beyond() {
    let chain = chain(20);
    let mut pool = after_twenty(&chain);
    assert_eq!(pool.lookup_needed(&chain[..19], &on("1"), NOW).len, 19);
    let by = on("2").dependencies[0].clone();
    pool.invalidate(&Selector::Outdated { by, of: None });
    assert_empty(&pool);
}

#[test]
fn a_block_outside_the_window_grows_too_old_without_those_beyond_it() {
    let chain = chain(8);
    let mut pool = PrefixPool::<BlockKv>::new(PoolConfig {
        time_to_live: Some(Duration::from_secs(10)),
        ..config(8, 6, 1)
    });
    for place in 0..8 {
        assert!(
            pool.insert_after(&chain[..place], block(&chain, place), NOW)
                .added
        );
    }
    let later = NOW + Duration::from_secs(9);
    assert_eq!(pool.lookup_needed(&chain, &acme(), later).len, 8);
    let gone = pool.expire(NOW + Duration::from_secs(10));
    assert_eq!(gone.len(), 5);
    assert_eq!(pool.lookup_needed(&chain, &acme(), later).len, 8);
    assert_eq!(pool.expire(later + Duration::from_secs(10)).len(), 3);
    assert_empty(&pool);
}

#[test]
fn a_block_that_does_not_fit_leaves_the_pool_as_it_was() {
    let chain = chain(20);
    let mut pool = after_twenty(&chain);
    let _leases = pool.lease_needed(&chain, &[], NOW);
    let mut large = block(&chain, 19);
    large.id = BlockId([7; 16]);
    large.kv.attention = vec![vec![0; 2 * BLOCK_OVERHEAD.0 as usize].into()];
    let inserted = pool.insert_after(&chain[..19], large, NOW);
    assert!(!inserted.added && inserted.evicted.is_empty());
    assert_eq!(pool.blocks(), 4);
    pool.forget(&chain[..1]);
    assert_empty(&pool);
}

proptest! {
    /// Against the definition: the longest prefix all of whose needed blocks are held.
    #[test]
    fn the_longest_usable_prefix_is_found(
        held in prop::collection::btree_set(0usize..24, 0..24),
        tokens in 1u32..30,
        sinks in 0u32..10,
    ) {
        let chain = chain(24);
        let mut pool = pool(24, tokens, sinks);
        for place in &held {
            prop_assert!(pool.insert_after(&chain[..*place], block(&chain, *place), NOW).added);
        }
        let needed = |len: usize| -> BTreeSet<usize> {
            // The next token's view, token by token.
            let next = len as u32 * BLOCK;
            (0..next)
                .filter(|key| *key < sinks || next - key < tokens)
                .map(|key| (key / BLOCK) as usize)
                .collect()
        };
        let expected = (0..=24).rev().find(|len| needed(*len).is_subset(&held)).unwrap();
        let found = pool.lookup_needed(&chain, &acme(), NOW);
        // A window narrower than a block may need nothing at all: then any length will do.
        prop_assert!(found.len == expected || needed(expected).is_empty(), "{} of {expected}", found.len);
        let leased: BTreeSet<usize> = places(&found).into_iter().collect();
        prop_assert!(needed(found.len).is_subset(&leased));
        pool.forget(&chain[..1]);
        assert_empty(&pool);
    }
}
