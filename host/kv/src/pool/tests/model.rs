//! The pool against its contract, written for obviousness: one list, everything recomputed by scanning.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A node of a small tree: the path of branches from the root. The first branch is also the tenant.
type Path = Vec<u8>;

#[derive(Clone, Debug)]
enum Op {
    Insert {
        path: Path,
        size: usize,
        snapshot: Option<usize>,
        version: u8,
    },
    Lookup {
        path: Path,
        version: u8,
    },
    Lease {
        path: Path,
    },
    Release {
        nth: usize,
    },
    Forget(Path),
    ForgetTenant(u8),
    Outdate(u8),
    Wait(u64),
}

fn path() -> impl Strategy<Value = Path> {
    prop::collection::vec(0u8..3, 1..5)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        24 => (path(), 0usize..600, prop::option::weighted(0.4, 0usize..800), 0u8..3)
            .prop_map(|(path, size, snapshot, version)| Op::Insert { path, size, snapshot, version }),
        8 => (path(), 0u8..3).prop_map(|(path, version)| Op::Lookup { path, version }),
        4 => path().prop_map(|path| Op::Lease { path }),
        4 => (0usize..8).prop_map(|nth| Op::Release { nth }),
        1 => path().prop_map(Op::Forget),
        1 => (0u8..3).prop_map(Op::ForgetTenant),
        1 => (0u8..3).prop_map(Op::Outdate),
        2 => (1u64..8).prop_map(Op::Wait),
    ]
}

fn tenant(branch: u8) -> Scope {
    scope(["acme", "globex", "initech"][usize::from(branch)])
}

/// Version 0 stands for no dependency.
fn user(path: &[u8], version: u8) -> Provenance {
    let on = (version > 0).then(|| on("document", &version.to_string()));
    about(tenant(path[0]), on.as_slice())
}

/// Whether a block of these versions is not for who names this one.
fn disagree(versions: &BTreeSet<u8>, named: u8) -> bool {
    named > 0 && versions.iter().any(|version| *version != named)
}

#[derive(Clone, Debug)]
struct ModelBlock {
    path: Path,
    bytes: u64,
    snapshot: bool,
    versions: BTreeSet<u8>,
    due: Due,
    used_at: Moment,
    reuses: u32,
    /// Tells a block from an earlier one of the same name.
    birth: u64,
}

struct Model {
    config: PoolConfig,
    blocks: Vec<ModelBlock>,
    leases: Vec<Vec<u64>>,
    turnover: u64,
    uses: u64,
    now: Moment,
}

impl Model {
    fn find(&mut self, path: &[u8]) -> Option<&mut ModelBlock> {
        self.blocks.iter_mut().find(|b| b.path == path)
    }

    fn worth(&self) -> Worth {
        let mut worth = Worth::default();
        for block in &self.blocks {
            worth.add(Duration::from_millis(1), Bytes(block.bytes));
        }
        worth
    }

    fn touch(&mut self, path: &[u8], reuses: u32) {
        self.uses += 1;
        let (worth, budget) = (self.worth(), self.config.budget);
        let (used, turnover, now) = (self.uses, self.turnover, self.now);
        if let Some(block) = self.find(path) {
            block.reuses += reuses;
            let credit = worth.credit(budget, block.reuses, Duration::from_millis(1), Bytes(block.bytes));
            block.due = Due {
                at: turnover + credit,
                used,
            };
            block.used_at = now;
        }
    }

    fn lookup(&mut self, path: &[u8], version: Option<u8>) -> Vec<u64> {
        let (now, live, reuse) = (self.now, self.config.time_to_live, self.config.reuse);
        let mut length = 0;
        for n in 1..=path.len() {
            let Some(block) = self.find(&path[..n]) else { break };
            if version.is_some_and(|version| disagree(&block.versions, version)) {
                break;
            }
            if live.is_some_and(|live| now.since(block.used_at) >= live) {
                break;
            }
            length = if block.snapshot || reuse == Reuse::AnyBlock {
                n
            } else {
                length
            };
        }
        for n in 1..=length {
            if let Some(version) = version {
                self.find(&path[..n])
                    .unwrap()
                    .versions
                    .extend(Some(version).filter(|v| *v > 0));
            }
            self.touch(&path[..n], u32::from(version.is_some()));
        }
        (1..=length)
            .filter_map(|n| self.find(&path[..n]).map(|b| b.birth))
            .collect()
    }

    fn used(blocks: &[ModelBlock], of: Option<u8>) -> u64 {
        let counted = blocks.iter().filter(|b| of.is_none_or(|of| b.path[0] == of));
        counted.map(|b| b.bytes).sum()
    }

    /// Evicts from a copy, so that failure changes nothing; `keep` and all it hangs on stay.
    fn make_room(&mut self, bytes: u64, keep: &[u8]) -> Option<Vec<Path>> {
        let (mut blocks, mut evicted) = (self.blocks.clone(), Vec::new());
        let share = self.config.shares.usual.0;
        while Self::used(&blocks, None) + bytes > self.config.budget.0 {
            let has_child = |b: &ModelBlock| {
                blocks
                    .iter()
                    .any(|c| c.path.len() > b.path.len() && c.path.starts_with(&b.path))
            };
            let leased = |b: &ModelBlock| self.leases.iter().flatten().any(|birth| *birth == b.birth);
            let free: Vec<&ModelBlock> = blocks
                .iter()
                .filter(|b| !has_child(b) && !leased(b) && !keep.starts_with(&b.path))
                .collect();
            let above = |b: &&&ModelBlock| Self::used(&blocks, Some(b.path[0])) > share;
            let victim = if Self::used(&blocks, Some(keep[0])) + bytes > share {
                free.iter().filter(|b| b.path[0] == keep[0]).min_by_key(|b| b.due)
            } else {
                free.iter()
                    .filter(above)
                    .min_by_key(|b| b.due)
                    .or(free.iter().min_by_key(|b| b.due))
            };
            let victim = victim?.path.clone();
            blocks.retain(|b| b.path != victim);
            evicted.push(victim);
        }
        self.blocks = blocks;
        Some(evicted)
    }

    fn insert(&mut self, path: &[u8], size: u64, snapshot: Option<u64>, version: u8) -> (bool, Vec<Path>) {
        let versions: BTreeSet<u8> = Some(version).filter(|v| *v > 0).into_iter().collect();
        if self
            .find(path)
            .is_some_and(|held| disagree(&held.versions, version))
        {
            self.blocks.retain(|block| !block.path.starts_with(path));
        }
        if let Some(held) = self.find(path) {
            held.versions.extend(versions);
            let held = held.clone();
            self.touch(path, 0);
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
        let parent = &path[..path.len() - 1];
        let inherited = self.find(parent).map(|parent| parent.versions.clone());
        if !parent.is_empty() && inherited.is_none() {
            return (false, vec![]);
        }
        if inherited.as_ref().is_some_and(|theirs| disagree(theirs, version)) {
            return (false, vec![]);
        }
        let bytes = size + snapshot.unwrap_or(0) + BLOCK_OVERHEAD.0;
        let Some(evicted) = self.make_room(bytes, path) else {
            return (false, vec![]);
        };
        self.touch(parent, 0);
        if parent.is_empty() {
            self.uses -= 1;
        }
        self.turnover += bytes;
        self.uses += 1;
        self.blocks.push(ModelBlock {
            path: path.to_vec(),
            bytes,
            snapshot: snapshot.is_some(),
            versions: versions
                .into_iter()
                .chain(inherited.unwrap_or_default())
                .collect(),
            due: Due {
                at: self.turnover,
                used: self.uses,
            },
            used_at: self.now,
            reuses: 0,
            birth: self.uses,
        });
        (true, evicted)
    }

    /// Forgets blocks and all that begins with them.
    fn forget(&mut self, gone: impl Fn(&ModelBlock) -> bool) -> BTreeSet<BlockId> {
        let roots: Vec<Path> = self
            .blocks
            .iter()
            .filter(|b| gone(b))
            .map(|b| b.path.clone())
            .collect();
        let goes = |b: &ModelBlock| roots.iter().any(|root| b.path.starts_with(root));
        let ids = self
            .blocks
            .iter()
            .filter(|b| goes(b))
            .map(|b| id(&b.path))
            .collect();
        self.blocks.retain(|b| !goes(b));
        ids
    }
}

fn set(blocks: &[Arc<PoolBlock>]) -> BTreeSet<BlockId> {
    blocks.iter().map(|block| block.id).collect()
}

fn is_consistent(pool: &PrefixPool) -> bool {
    let held = |id: &BlockId| pool.entries.contains_key(id);
    let tenants: u64 = pool.tenants().map(|part| part.used.0).sum();
    let leaves: usize = pool.tenants.parts().iter().map(|part| part.leaves.len()).sum();
    let childless = pool
        .entries
        .keys()
        .filter(|id| !pool.children.contains_key(id))
        .count();
    pool.iter()
        .all(|seen| seen.block.parent.is_none_or(|parent| held(&parent)))
        && tenants == pool.used().0
        && leaves == childless
        && pool.used() <= pool.budget()
        && pool.by_time.len() == pool.blocks()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_pool_does_what_the_model_does(
        budget in 0u64..9_000,
        promised in 0u64..4_000,
        hybrid: bool,
        ops in prop::collection::vec(op(), 1..150),
    ) {
        let config = PoolConfig {
            budget: Bytes(budget),
            shares: Shares { usual: Bytes(promised), ..Shares::default() },
            reuse: if hybrid { Reuse::Snapshots } else { Reuse::AnyBlock },
            parents: Parents::Held,
            time_to_live: Some(Duration::from_secs(20)),
            window: None,
        };
        let mut pool = PrefixPool::new(config.clone());
        let mut model = Model { config, blocks: vec![], leases: vec![], turnover: 0, uses: 0, now: NOW };
        let mut leases = Vec::new();
        for op in ops {
            let now = model.now;
            match op {
                Op::Insert { path, size, snapshot, version } => {
                    let mut new = block(&path, size, snapshot);
                    new.about = Arc::new(user(&path, version));
                    let done = pool.insert(new, now);
                    let (added, evicted) = model.insert(&path, size as u64, snapshot.map(|n| n as u64), version);
                    prop_assert_eq!(done.added, added);
                    prop_assert_eq!(ids(&done.evicted), evicted.iter().map(|p| id(p)).collect::<Vec<_>>());
                }
                Op::Lookup { path, version } => {
                    let found = pool.lookup(&chain(&path), &user(&path, version), now);
                    prop_assert_eq!(found.blocks.len(), model.lookup(&path, Some(version)).len());
                }
                Op::Lease { path } => {
                    leases.push(pool.lease(&chain(&path), &[], now));
                    let births = model.lookup(&path, None);
                    model.leases.push(births);
                }
                Op::Release { nth } if nth < leases.len() => {
                    leases.remove(nth);
                    model.leases.remove(nth);
                }
                Op::Release { .. } => {}
                Op::Forget(path) => {
                    let gone = pool.invalidate(&Selector::Block(id(&path)));
                    prop_assert_eq!(set(&gone), model.forget(|b| b.path == path));
                }
                Op::ForgetTenant(branch) => {
                    let gone = pool.invalidate(&Selector::Scope(tenant(branch)));
                    prop_assert_eq!(set(&gone), model.forget(|b| b.path[0] == branch));
                }
                Op::Outdate(version) => {
                    let by = on("document", &version.to_string());
                    let gone = pool.invalidate(&Selector::Outdated { by, of: None });
                    prop_assert_eq!(set(&gone), model.forget(|b| b.versions.iter().any(|v| *v != version)));
                }
                Op::Wait(seconds) => {
                    model.now = Moment(now.0 + seconds * 1_000_000);
                    let (now, live) = (model.now, Duration::from_secs(20));
                    let gone = pool.expire(now);
                    prop_assert_eq!(set(&gone), model.forget(|b| now.since(b.used_at) >= live));
                }
            }
            prop_assert_eq!(pool.used(), Bytes(Model::used(&model.blocks, None)));
            prop_assert_eq!(pool.blocks(), model.blocks.len());
            prop_assert!(is_consistent(&pool));
        }
    }
}
