//! How much of real traffic a pool finds again: held against LRU, and by how often snapshots are kept. The tables are
//! those of `docs/kv-pool.md`; `--nocapture` prints them.

use super::*;

/// The first 1,000 requests of the Mooncake conversation trace, 12 M tokens in 342 s: names of 512-token blocks.
const TRACE: &str = include_str!("../../../../sim/tests/data/conversation_trace_1000.jsonl");

/// Tokens in one block of the trace.
const TRACE_TOKENS: u64 = 512;

fn trace() -> Vec<Vec<u64>> {
    let blocks = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        row["hash_ids"]
            .as_array()
            .unwrap()
            .iter()
            .map(|id| id.as_u64().unwrap())
            .collect()
    };
    TRACE.lines().map(blocks).collect()
}

/// KV that has a size and no bytes.
#[derive(Clone, Copy)]
struct Weight {
    attention: u64,
    snapshot: Option<u64>,
}

impl Kept for Weight {
    fn size(&self) -> Bytes {
        Bytes(self.attention + self.snapshot.unwrap_or(0))
    }
    fn has_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }
    fn completed(&self, other: Self) -> Self {
        Self {
            snapshot: other.snapshot,
            ..*self
        }
    }
}

fn name(number: u64) -> BlockId {
    BlockId(u128::from(number).to_le_bytes())
}

fn weigh(id: BlockId, parent: Option<BlockId>, kv: Weight, about: &Arc<Provenance>) -> PoolBlock<Weight> {
    PoolBlock {
        id,
        parent,
        hashes: Vec::new(),
        about: Arc::clone(about),
        rebuild: Duration::from_millis(10),
        kv,
    }
}

/// Blocks found, in thousandths of those asked for, in a pool of so many blocks.
fn ours(trace: &[Vec<u64>], blocks: u64) -> u64 {
    let about = Arc::new(acme());
    let kv = Weight {
        attention: 1 << 20,
        snapshot: None,
    };
    let size = weigh(name(0), None, kv, &about).size();
    let mut pool = PrefixPool::new(PoolConfig::of(Bytes(size.0 * blocks)));
    for request in trace {
        let chain: Vec<_> = request.iter().copied().map(name).collect();
        let _lease = pool.lookup(&chain, &about, NOW);
        let mut parent = None;
        for id in chain {
            pool.insert(weigh(id, parent.replace(id), kv, &about), NOW);
        }
    }
    let counts = pool.tenants().next().unwrap().counts;
    counts.hits * 1000 / (counts.hits + counts.misses)
}

/// The same in a pool where the least recently used block without children goes.
fn least_recently_used(trace: &[Vec<u64>], capacity: usize) -> u64 {
    #[derive(Default)]
    struct Node {
        parent: Option<u64>,
        children: usize,
        used: u64,
    }
    let (mut nodes, mut leaves) = (HashMap::<u64, Node>::new(), BTreeMap::<u64, u64>::new());
    let (mut uses, mut hits, mut asked) = (0, 0, 0);
    for request in trace {
        let found = request.iter().take_while(|id| nodes.contains_key(id)).count();
        hits += found;
        asked += request.len();
        let mut parent = None;
        for (position, id) in request.iter().enumerate() {
            uses += 1;
            if let Some(node) = nodes.get_mut(id) {
                if leaves.remove(&node.used).is_some() {
                    leaves.insert(uses, *id);
                }
                node.used = uses;
                parent = Some(*id);
                continue;
            }
            if nodes.len() >= capacity {
                let mine = |id: &u64| request[..position].contains(id);
                let Some((used, victim)) = leaves.iter().find(|(_, id)| !mine(id)).map(|(u, id)| (*u, *id))
                else {
                    break;
                };
                leaves.remove(&used);
                let above = nodes.remove(&victim).unwrap().parent;
                if let Some(node) = above.and_then(|id| nodes.get_mut(&id)) {
                    node.children -= 1;
                    if node.children == 0 {
                        leaves.insert(node.used, above.unwrap());
                    }
                }
            }
            if let Some(node) = parent.and_then(|id| nodes.get_mut(&id)) {
                node.children += 1;
                leaves.remove(&node.used);
            }
            nodes.insert(
                *id,
                Node {
                    parent,
                    children: 0,
                    used: uses,
                },
            );
            leaves.insert(uses, *id);
            parent = Some(*id);
        }
    }
    hits as u64 * 1000 / asked as u64
}

#[test]
fn the_pool_finds_no_less_than_lru() {
    let trace = trace();
    println!("| pool, M tokens | LRU, ‰ of blocks | here |\n|---:|---:|---:|");
    let mut better = 0;
    for mtokens in [1, 2, 3, 4, 6, 8] {
        let blocks = mtokens * 1_000_000 / TRACE_TOKENS;
        let (lru, ours) = (least_recently_used(&trace, blocks as usize), ours(&trace, blocks));
        println!("| {mtokens} | {lru} | {ours} |");
        assert!(ours >= lru, "{mtokens} M tokens: {ours} against {lru}");
        better += u32::from(ours > lru);
    }
    assert!(better >= 3, "better at {better} of six sizes");
}

/// Engine blocks in a block of the trace.
const BLOCKS: u64 = TRACE_TOKENS / 64;

/// KV of 64 tokens of a hybrid model of 0.8 billion weights in 32-bit floats: 6 layers of 2 heads of 256.
const ATTENTION: u64 = 64 * 6 * 2 * 2 * 256 * 4;

/// Its recurrent state: 18 layers of 16 heads of 128 × 128, and 4 columns of 6,144 channels.
const STATE: u64 = 18 * (16 * 128 * 128 + 6_144 * 4) * 4;

/// When a snapshot is kept.
#[derive(Clone, Copy)]
struct Snapshots {
    every: Option<u64>,
    at_the_end: bool,
}

/// Tokens found, in thousandths of those asked for, by a hybrid model with a pool of so many bytes.
fn hybrid(trace: &[Vec<u64>], budget: u64, when: Snapshots) -> u64 {
    let about = Arc::new(acme());
    let mut pool = PrefixPool::new(PoolConfig {
        reuse: Reuse::Snapshots,
        ..PoolConfig::of(Bytes(budget))
    });
    for request in trace {
        let parts = request
            .iter()
            .flat_map(|id| (0..BLOCKS).map(move |part| id * BLOCKS + part));
        let chain: Vec<_> = parts.map(name).collect();
        let found = pool.lookup(&chain, &about, NOW).blocks;
        let mut parent = None;
        for (index, id) in (0u64..).zip(&chain) {
            let is_last = index + 1 == chain.len() as u64;
            let kept = when.every.is_some_and(|every| (index + 1) % every == 0) || is_last && when.at_the_end;
            let kv = Weight {
                attention: ATTENTION,
                snapshot: kept.then_some(STATE),
            };
            let before = parent.replace(*id);
            if index >= found.len() as u64 {
                pool.insert(weigh(*id, before, kv, &about), NOW);
            }
        }
    }
    let counts = pool.tenants().next().unwrap().counts;
    counts.hits * 1000 / (counts.hits + counts.misses)
}

#[test]
fn without_snapshots_at_boundaries_a_hybrid_model_finds_little() {
    let trace = trace();
    let at = |every| Snapshots {
        every: Some(every),
        at_the_end: true,
    };
    println!("| snapshots | 32 GiB | 1 TiB |\n|---|---:|---:|");
    let mut rows = Vec::new();
    for (what, when) in [
        (
            "none",
            Snapshots {
                every: None,
                at_the_end: false,
            },
        ),
        (
            "at the end of the prompt",
            Snapshots {
                every: None,
                at_the_end: true,
            },
        ),
        ("every 64 tokens", at(1)),
        ("every 512", at(8)),
        ("every 4,096", at(64)),
    ] {
        let row = [32u64, 1024].map(|gib| hybrid(&trace, gib << 30, when));
        println!("| {what} | {} ‰ | {} ‰ |", row[0], row[1]);
        rows.push(row);
    }
    assert_eq!(rows[0], [0; 2], "no state, no hit");
    assert!(
        rows[3][1] > 4 * rows[1][1],
        "boundaries find what prompts share, ends only whole prompts"
    );
    assert!(
        rows[3][0] > rows[2][0] && rows[3][1] > rows[2][1],
        "snapshots must not crowd out the KV they serve"
    );
}
