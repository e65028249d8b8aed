//! The pool against a naive model of it, and the cases worth telling by themselves.

use super::*;
use proptest::prelude::*;

/// A node of a small tree: the path of branches from the root.
type Path = Vec<u8>;

fn id(path: &[u8]) -> BlockId {
    let mut bytes = [0xff; 16];
    bytes[..path.len()].copy_from_slice(path);
    BlockId(bytes)
}

fn chain(path: &[u8]) -> Vec<BlockId> {
    (1..=path.len()).map(|n| id(&path[..n])).collect()
}

fn block(path: &[u8], size: usize, snapshot: Option<usize>) -> PoolBlock {
    PoolBlock {
        id: id(path),
        parent: (path.len() > 1).then(|| id(&path[..path.len() - 1])),
        hashes: Vec::new(),
        attention: vec![Buffer::from(vec![0; size])],
        snapshot: snapshot.map(|size| vec![Buffer::from(vec![0; size])]),
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert {
        path: Path,
        size: usize,
        snapshot: Option<usize>,
    },
    Lookup {
        path: Path,
    },
    Lease {
        path: Path,
    },
    Release {
        nth: usize,
    },
    Clear,
}

fn path() -> impl Strategy<Value = Path> {
    prop::collection::vec(0u8..3, 1..5)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (path(), 0usize..600, prop::option::weighted(0.4, 0usize..800))
            .prop_map(|(path, size, snapshot)| Op::Insert { path, size, snapshot }),
        4 => path().prop_map(|path| Op::Lookup { path }),
        2 => path().prop_map(|path| Op::Lease { path }),
        2 => (0usize..8).prop_map(|nth| Op::Release { nth }),
        1 => Just(Op::Clear),
    ]
}

#[derive(Clone, Debug)]
struct ModelBlock {
    path: Path,
    bytes: u64,
    snapshot: bool,
    last_use: u64,
    /// Tells a block from an earlier one of the same name.
    birth: u64,
}

/// The pool's contract, written for obviousness: one list, everything recomputed by scanning.
#[derive(Default)]
struct Model {
    budget: u64,
    needs_snapshot: bool,
    blocks: Vec<ModelBlock>,
    leases: Vec<Vec<u64>>,
    uses: u64,
}

impl Model {
    fn find(&mut self, path: &[u8]) -> Option<&mut ModelBlock> {
        self.blocks.iter_mut().find(|b| b.path == path)
    }

    fn used(&self) -> u64 {
        self.blocks.iter().map(|b| b.bytes).sum()
    }

    fn touch(&mut self, path: &[u8]) {
        self.uses += 1;
        let now = self.uses;
        if let Some(block) = self.find(path) {
            block.last_use = now;
        }
    }

    fn lookup(&mut self, path: &[u8]) -> Vec<u64> {
        let mut length = 0;
        for n in 1..=path.len() {
            let Some(block) = self.find(&path[..n]) else { break };
            let usable = block.snapshot || !self.needs_snapshot;
            length = if usable { n } else { length };
        }
        (1..=length).rev().for_each(|n| self.touch(&path[..n]));
        (1..=length)
            .filter_map(|n| self.find(&path[..n]).map(|b| b.birth))
            .collect()
    }

    /// Evicts from a copy, so that failure changes nothing; `keep` and all it hangs on stay.
    fn make_room(&mut self, bytes: u64, keep: &[u8]) -> Option<Vec<Path>> {
        let (mut blocks, mut evicted) = (self.blocks.clone(), Vec::new());
        while blocks.iter().map(|b| b.bytes).sum::<u64>() + bytes > self.budget {
            let leaf = |b: &&ModelBlock| {
                !blocks
                    .iter()
                    .any(|c| c.path.len() > b.path.len() && c.path.starts_with(&b.path))
            };
            let free = |b: &&ModelBlock| !self.leases.iter().flatten().any(|birth| *birth == b.birth);
            let victim = blocks
                .iter()
                .filter(leaf)
                .filter(free)
                .filter(|b| !keep.starts_with(&b.path));
            let victim = victim.min_by_key(|b| b.last_use)?.path.clone();
            blocks.retain(|b| b.path != victim);
            evicted.push(victim);
        }
        self.blocks = blocks;
        Some(evicted)
    }

    fn insert(&mut self, path: &[u8], size: u64, snapshot: Option<u64>) -> (bool, Vec<Path>) {
        if let Some(held) = self.find(path).cloned() {
            self.touch(path);
            let Some(growth) = snapshot.filter(|_| !held.snapshot) else {
                return (false, vec![]);
            };
            let Some(evicted) = self.make_room(growth, path) else {
                return (false, vec![]);
            };
            let own = self.find(path).unwrap();
            own.snapshot = true;
            own.bytes += growth;
            return (true, evicted);
        }
        if path.len() > 1 && self.find(&path[..path.len() - 1]).is_none() {
            return (false, vec![]);
        }
        let bytes = size + snapshot.unwrap_or(0) + BLOCK_OVERHEAD.0;
        let Some(evicted) = self.make_room(bytes, path) else {
            return (false, vec![]);
        };
        self.uses += 1;
        let (last_use, birth) = (self.uses, self.uses);
        self.blocks.push(ModelBlock {
            path: path.to_vec(),
            bytes,
            snapshot: snapshot.is_some(),
            last_use,
            birth,
        });
        (true, evicted)
    }
}

fn parents_are_held(pool: &PrefixPool) -> bool {
    pool.iter()
        .all(|b| b.parent.is_none_or(|parent| pool.entries.contains_key(&parent)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_pool_does_what_the_model_does(
        budget in 0u64..6_000, needs_snapshot: bool, ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut pool = PrefixPool::new(Bytes(budget), needs_snapshot);
        let mut model = Model { budget, needs_snapshot, ..Model::default() };
        let mut leases = Vec::new();
        for op in ops {
            match op {
                Op::Insert { path, size, snapshot } => {
                    let done = pool.insert(block(&path, size, snapshot));
                    let (added, evicted) = model.insert(&path, size as u64, snapshot.map(|n| n as u64));
                    prop_assert_eq!(done.added, added);
                    let ids: Vec<_> = done.evicted.iter().map(|b| b.id).collect();
                    prop_assert_eq!(ids, evicted.iter().map(|p| id(p)).collect::<Vec<_>>());
                }
                Op::Lookup { path } => {
                    prop_assert_eq!(pool.lookup(&chain(&path)).blocks.len(), model.lookup(&path).len());
                }
                Op::Lease { path } => {
                    leases.push(pool.lookup(&chain(&path)));
                    let births = model.lookup(&path);
                    model.leases.push(births);
                }
                Op::Release { nth } if nth < leases.len() => {
                    leases.remove(nth);
                    model.leases.remove(nth);
                }
                Op::Release { .. } => {}
                Op::Clear => {
                    prop_assert_eq!(pool.clear().len(), model.blocks.len());
                    model.blocks.clear();
                }
            }
            prop_assert_eq!(pool.used(), Bytes(model.used()));
            prop_assert!(pool.used() <= pool.budget());
            prop_assert_eq!(pool.blocks(), model.blocks.len());
            prop_assert!(parents_are_held(&pool));
        }
    }
}

#[test]
fn a_hybrid_hit_ends_at_the_last_snapshot() {
    let mut pool = PrefixPool::new(Bytes(1 << 20), true);
    for (path, snapshot) in [(&[0][..], None), (&[0, 1], Some(64)), (&[0, 1, 2], None)] {
        assert!(pool.insert(block(path, 100, snapshot)).added);
    }
    assert_eq!(pool.lookup(&chain(&[0, 1, 2])).blocks.len(), 2);
    assert!(
        pool.insert(block(&[0, 1, 2], 100, Some(64))).added,
        "the snapshot it lacked"
    );
    assert!(!pool.insert(block(&[0, 1, 2], 100, Some(64))).added);
    assert_eq!(pool.lookup(&chain(&[0, 1, 2])).blocks.len(), 3);
    assert_eq!(pool.lookup(&chain(&[1, 1, 2])).blocks.len(), 0);
}

#[test]
fn a_leased_block_stays_and_a_block_that_finds_no_room_evicts_nothing() {
    let one = block(&[0], 1000, None).size();
    let mut pool = PrefixPool::new(Bytes(one.0 * 2), false);
    pool.insert(block(&[0], 1000, None));
    pool.insert(block(&[1], 1000, None));
    let lease = pool.lookup(&chain(&[0]));
    assert!(
        !pool.insert(block(&[2], 2000, None)).added,
        "one free block is not enough"
    );
    assert_eq!(pool.blocks(), 2, "the free block was given back");
    let done = pool.insert(block(&[2], 1000, None));
    assert_eq!(
        done.evicted.iter().map(|b| b.id).collect::<Vec<_>>(),
        [id(&[1])],
        "younger, but not leased"
    );
    drop(lease);
    assert_eq!(pool.insert(block(&[3], 1000, None)).evicted[0].id, id(&[0]));
}

#[test]
fn a_lease_taken_before_the_snapshot_came_still_holds_the_block() {
    let one = block(&[0], 1000, Some(100)).size();
    let mut pool = PrefixPool::new(one, false);
    pool.insert(block(&[0], 1000, None));
    let lease = pool.lookup(&chain(&[0]));
    assert!(pool.insert(block(&[0], 1000, Some(100))).added);
    assert!(!pool.insert(block(&[1], 1000, None)).added);
    drop(lease);
    assert!(pool.insert(block(&[1], 1000, None)).added);
}

#[test]
fn a_block_without_its_parent_is_not_taken() {
    let mut pool = PrefixPool::new(Bytes(1 << 20), false);
    assert!(!pool.insert(block(&[0, 1], 10, None)).added);
    assert_eq!(pool.used(), Bytes(0));
}
