//! The index against a naive model of it, and the cases worth telling by themselves.

use super::*;
use proptest::prelude::*;

fn hashes(values: &[u64]) -> Vec<BlockHash> {
    values.iter().copied().map(BlockHash).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Stored(u32, Vec<u64>),
    Removed(u32, Vec<u64>),
    Clear(u32),
    Matches(Vec<u64>),
}

fn op() -> impl Strategy<Value = Op> {
    let holder = 0u32..4;
    let blocks = || prop::collection::vec(0u64..12, 0..6);
    prop_oneof![
        6 => (holder.clone(), blocks()).prop_map(|(h, b)| Op::Stored(h, b)),
        2 => (holder.clone(), blocks()).prop_map(|(h, b)| Op::Removed(h, b)),
        1 => holder.prop_map(Op::Clear),
        4 => blocks().prop_map(Op::Matches),
    ]
}

struct Known {
    hash: u64,
    holders: Vec<u32>,
    asked_for: bool,
}

/// The index' contract, written for obviousness: `known` is in the order in which blocks are considered.
#[derive(Default)]
struct Model {
    budget: u64,
    known: Vec<Known>,
}

impl Model {
    fn used(&self) -> u64 {
        self.known
            .iter()
            .map(|k| ENTRY_SIZE.0 + HOLDER_SIZE.0 * k.holders.len() as u64)
            .sum()
    }

    fn stored(&mut self, holder: u32, blocks: &[u64]) {
        for hash in blocks.iter().rev() {
            match self.known.iter_mut().find(|k| k.hash == *hash) {
                Some(known) => {
                    known.asked_for = true;
                    known.holders.retain(|h| *h != holder);
                    known.holders.push(holder);
                }
                None => self.known.push(Known {
                    hash: *hash,
                    holders: vec![holder],
                    asked_for: false,
                }),
            }
        }
        while self.used() > self.budget {
            let mut first = self.known.remove(0);
            if std::mem::take(&mut first.asked_for) {
                self.known.push(first);
            }
        }
    }

    fn removed(&mut self, holder: u32, gone: impl Fn(u64) -> bool) {
        for known in self.known.iter_mut().filter(|k| gone(k.hash)) {
            known.holders.retain(|h| *h != holder);
        }
        self.known.retain(|k| !k.holders.is_empty());
    }

    fn holds(&self, holder: u32, hash: u64) -> bool {
        self.known
            .iter()
            .any(|k| k.hash == hash && k.holders.contains(&holder))
    }

    fn matches(&mut self, chain: &[u64]) -> Vec<(u32, usize)> {
        let prefix = |holder| {
            (
                holder,
                chain.iter().take_while(|hash| self.holds(holder, **hash)).count(),
            )
        };
        let mut found: Vec<_> = (0..4).map(prefix).filter(|(_, blocks)| *blocks > 0).collect();
        found.sort_by_key(|(holder, blocks)| (std::cmp::Reverse(*blocks), *holder));
        let longest = found.first().map_or(0, |(_, blocks)| *blocks);
        self.known
            .iter_mut()
            .filter(|k| chain[..longest].contains(&k.hash))
            .for_each(|k| k.asked_for = true);
        found
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_index_does_what_the_model_does(budget in 0u64..2_000, ops in prop::collection::vec(op(), 1..100)) {
        let mut index = PrefixIndex::new(Bytes(budget));
        let mut model = Model { budget, ..Model::default() };
        for op in ops {
            match op {
                Op::Stored(holder, blocks) => {
                    index.stored(holder, &hashes(&blocks));
                    model.stored(holder, &blocks);
                }
                Op::Removed(holder, blocks) => {
                    index.removed(holder, &hashes(&blocks));
                    model.removed(holder, |hash| blocks.contains(&hash));
                }
                Op::Clear(holder) => {
                    index.clear(holder);
                    model.removed(holder, |_| true);
                }
                Op::Matches(chain) => prop_assert_eq!(index.matches(&hashes(&chain)), model.matches(&chain)),
            }
            prop_assert_eq!(index.used(), Bytes(model.used()));
            prop_assert!(index.used() <= index.budget());
            prop_assert_eq!((index.blocks(), index.queue.len()), (model.known.len(), model.known.len()));
        }
    }
}

#[test]
fn a_prefix_with_a_gap_counts_up_to_the_gap() {
    let mut index = PrefixIndex::new(Bytes(1 << 20));
    let chain = hashes(&[1, 2, 3, 4]);
    index.stored(0, &chain);
    index.stored(1, &chain[..3]);
    index.stored(2, &chain[1..]);
    assert_eq!(index.matches(&chain), [(0, 4), (1, 3)]);
    index.removed(0, &chain[1..2]);
    assert_eq!(index.matches(&chain), [(1, 3), (0, 1)]);
    assert_eq!(index.matches(&[]), []);
}

#[test]
fn a_busy_prefix_outlives_younger_blocks_nobody_asks_for() {
    let mut index = PrefixIndex::new(Bytes((ENTRY_SIZE + HOLDER_SIZE).0 * 10));
    let busy = hashes(&[1, 2]);
    index.stored(0, &busy);
    for other in 100..200 {
        index.stored(0, &[BlockHash(other)]);
        assert_eq!(index.matches(&busy), [(0, 2)]);
    }
    assert_eq!(index.blocks(), 10);
}

#[test]
fn a_chain_too_long_for_the_budget_keeps_its_beginning() {
    let mut index = PrefixIndex::new(Bytes((ENTRY_SIZE + HOLDER_SIZE).0 * 3));
    let chain = hashes(&[1, 2, 3, 4, 5]);
    index.stored(0, &chain);
    assert_eq!(index.matches(&chain), [(0, 3)]);
}
