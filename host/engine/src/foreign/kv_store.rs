//! KV that engines hand to the host and take from it: whole blocks in the host's memory. vLLM's come through a local
//! socket; what llama.cpp's server saves, `slots` takes apart.
//!
//! vLLM's side is the connector in `vllm-connector/`. After a prompt was computed it saves the prompt's full blocks here;
//! before one is computed it asks how much of it lies here, and takes that instead. So the host can send them to other
//! sites as it sends its own engine's KV, and what it received from there is in the engine's reach.
//!
//! | part | what it does |
//! |---|---|
//! | [`KvStore`] | blocks by name, the longest unused evicted first |
//! | `frame` | what is said over the socket, byte by byte |
//! | `parts` | blocks that several workers have in parts |
//! | `serve` | answers the connector |
//!
//! A block is named by the salt its request had and by all tokens up to its end, with the keyed hash that names the
//! host's own blocks. The salt is a keyed hash of tenant, model version and epochs that only the gateway gives out: who
//! has another salt finds nothing, and an invalidation makes what was saved before it unreachable. Blocks of salts that
//! were not given out, or that nobody may find again, are not kept.

mod frame;
mod parts;
mod serve;
#[cfg(test)]
mod tests;

pub use serve::{KvPlace, KvStoreConfig};
pub(super) use serve::{bind, run};

use super::salts::SaltBook;
use bytes::Bytes;
use parking_lot::Mutex;
use parts::{Joining, Part};
use portolan_base::kv::{KvLayout, LayerKv, PieceId};
use portolan_base::{
    BlockHash, BlockId, CachePart, Group, INDEX_BLOCK_TOKENS, Provenance, TenantKey, Tier, Tokens,
};
use portolan_ports::{HeldPrefix, KeepJob, KvEvent, KvPiece, KvSet};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::broadcast;

/// Where these blocks are, for the prefix index.
const PART: CachePart = CachePart {
    rank: 0,
    group: Group::ATTENTION,
    tier: Tier::Host,
};

/// What the operator counts.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Blocks the engine saved.
    pub(super) saved: AtomicU64,
    /// Blocks the engine took.
    pub(super) loaded: AtomicU64,
    /// Blocks that came from other sites.
    pub(super) received: AtomicU64,
    /// Blocks whose bytes were not those of their checksum, or that were gone when they were asked for.
    pub(super) refused: AtomicU64,
    /// Blocks that came and were not kept: nobody may find them again, or there is no room for even one.
    pub(super) unkept: AtomicU64,
    /// Requests that the engine's side left alone.
    pub(super) aside: AtomicU64,
    /// Whether the engine's side said that nothing will come: 0 or 1.
    pub(super) idle: AtomicU64,
}

/// One instance's blocks.
pub(super) struct KvStore {
    layout: Arc<KvLayout>,
    /// Keys the names: drawn at the start, since nobody else names these blocks.
    secret: [u8; 32],
    most: u64,
    salts: Arc<SaltBook>,
    events: broadcast::Sender<KvEvent>,
    inner: Mutex<Inner>,
    joining: Joining,
    pub(super) counts: Counts,
}

#[derive(Default)]
struct Inner {
    blocks: HashMap<BlockId, Block>,
    /// By last use, the longest unused first.
    order: BTreeMap<u64, BlockId>,
    uses: u64,
    bytes: u64,
}

/// One block: every layer's piece, one after the other.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) bytes: Bytes,
    /// CRC-32 of them, taken where they came from.
    pub(super) checksum: u32,
    used: u64,
    /// Its index blocks.
    hashes: Arc<[BlockHash]>,
}

impl Block {
    /// Whether its bytes are those of its checksum.
    pub(super) fn is_whole(&self) -> bool {
        crc32fast::hash(&self.bytes) == self.checksum
    }
}

/// Blocks as they are given: a prompt's tokens up to the end of the last, and from which block on.
pub(super) struct Given<'g> {
    pub(super) salt: &'g str,
    pub(super) tokens: &'g [u32],
    pub(super) first: usize,
    pub(super) blocks: Vec<(Bytes, u32)>,
    /// Whose they are, where whoever gives them knows; else they are whose prompt was expected to begin so.
    pub(super) about: Option<Arc<Provenance>>,
}

impl KvStore {
    /// An empty store of at most so many bytes. None for a model whose KV is not blocks of attention alone.
    pub(super) fn new(
        layout: Arc<KvLayout>,
        most: u64,
        secret: [u8; 32],
        (salts, events): (Arc<SaltBook>, broadcast::Sender<KvEvent>),
    ) -> Option<Self> {
        let attention = |layer: &LayerKv| matches!(layer, LayerKv::FullAttention { .. });
        let fits = layout.layers.iter().all(attention) && layout.window.is_none();
        let blocks = layout.block_tokens as usize;
        (fits && blocks > 0 && blocks.is_multiple_of(INDEX_BLOCK_TOKENS)).then(|| Self {
            layout,
            secret,
            most,
            salts,
            events,
            inner: Mutex::default(),
            joining: Joining::default(),
            counts: Counts::default(),
        })
    }

    /// Shapes of the blocks.
    pub(super) fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The same, to keep.
    pub(super) fn shared_layout(&self) -> Arc<KvLayout> {
        Arc::clone(&self.layout)
    }

    /// Tokens in a block.
    pub(super) fn block_tokens(&self) -> usize {
        self.layout.block_tokens as usize
    }

    /// Bytes of one block.
    pub(super) fn block_bytes(&self) -> usize {
        let block = Tokens(self.layout.block_tokens);
        usize::try_from(self.layout.bytes_to_move(block, Tokens(0)).0).unwrap_or(usize::MAX)
    }

    /// Blocks that lack a part.
    pub(super) fn waiting(&self) -> usize {
        self.joining.waiting()
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.inner.lock().bytes
    }

    fn names(&self, salt: &str, tokens: &[u32]) -> Vec<BlockId> {
        let key = TenantKey::derive(&self.secret, salt, "", 0);
        BlockId::chain(&key, tokens, self.block_tokens())
    }

    /// How many of the prompt's blocks lie here, from the first on.
    pub(super) fn find(&self, salt: &str, tokens: &[u32]) -> usize {
        let names = self.names(salt, tokens);
        let mut inner = self.inner.lock();
        let found = names
            .iter()
            .take_while(|name| inner.blocks.contains_key(name))
            .count();
        inner.touch(&names[..found]);
        found
    }

    /// The prompt's blocks from `first` on, as far as they lie here.
    pub(super) fn take(&self, salt: &str, tokens: &[u32], first: usize) -> Vec<Block> {
        let names = self.names(salt, tokens);
        let mut inner = self.inner.lock();
        let found = names
            .iter()
            .skip(first)
            .map_while(|name| inner.blocks.get(name).cloned());
        let found: Vec<_> = found.collect();
        inner.touch(&names[..names.len().min(first + found.len())]);
        found
    }

    /// Keeps blocks, and tells the index. How many of them lie here afterwards; none whose salt nobody may find again.
    pub(super) fn put(&self, given: Given<'_>) -> usize {
        let came = given.blocks.len();
        let kept = self.put_found(given);
        self.counts.unkept.fetch_add((came - kept) as u64, Relaxed);
        kept
    }

    fn put_found(&self, given: Given<'_>) -> usize {
        let Some(root) = self.salts.root(Some(given.salt)) else {
            return 0;
        };
        let names = self.names(given.salt, given.tokens);
        let hashes: Vec<_> = root.extend(given.tokens).collect();
        let per_block = self.block_tokens() / INDEX_BLOCK_TOKENS;
        let (mut kept, mut stored, mut evicted) = (0, Vec::new(), Vec::new());
        let mut inner = self.inner.lock();
        for ((at, name), (bytes, checksum)) in names.iter().enumerate().skip(given.first).zip(given.blocks) {
            if bytes.len() as u64 > self.most {
                break;
            }
            kept += 1;
            if inner.blocks.contains_key(name) {
                continue;
            }
            let (before, own) = (at * per_block, (at + 1) * per_block);
            let own: Arc<[BlockHash]> = hashes[before..own].into();
            stored.push(KvEvent::Stored {
                part: PART,
                parent: before.checked_sub(1).map(|last| hashes[last]),
                blocks: own.to_vec(),
                about: given.about.clone(),
            });
            inner.insert(*name, (bytes, checksum), own);
            evicted.extend(inner.shrink(self.most));
        }
        inner.touch(&names[..names.len().min(given.first + kept)]);
        drop(inner);
        if !evicted.is_empty() {
            stored.push(KvEvent::Removed {
                part: PART,
                blocks: evicted,
            });
        }
        // Nobody may listen.
        stored.into_iter().for_each(|event| drop(self.events.send(event)));
        kept
    }

    /// Keeps one worker's parts of blocks: the blocks of which they were the last parts. How many those are.
    fn put_parts(&self, given: Given<'_>, of: (Part, u64)) -> usize {
        let (names, pieces) = (self.names(given.salt, given.tokens), self.pieces());
        let mut whole = Vec::new();
        let mut first = None;
        for ((at, name), (bytes, _)) in names.iter().enumerate().skip(given.first).zip(given.blocks) {
            let joined = self.joining.take(*name, of, bytes, &pieces);
            // Only those that follow each other are of use together.
            if let Some(block) = joined
                && first.is_none_or(|first| first + whole.len() == at)
            {
                first.get_or_insert(at);
                let checksum = crc32fast::hash(&block);
                whole.push((block, checksum));
            }
        }
        match first {
            None => 0,
            Some(first) => self.put(Given {
                first,
                blocks: whole,
                ..given
            }),
        }
    }

    /// Bytes of each layer's piece of a block.
    fn pieces(&self) -> Vec<usize> {
        let layers = self.layout.layers.len() as u16;
        (0..layers).map(|layer| self.piece_bytes(layer)).collect()
    }

    /// The blocks of a prompt as pieces, for another site. A block whose bytes are no longer those of its checksum ends
    /// them.
    pub(super) fn kept(&self, key: &TenantKey, tokens: &[u32]) -> HeldPrefix {
        let blocks = self.take(&key.cache_salt(), tokens, 0);
        let whole: Vec<_> = blocks.iter().take_while(|block| block.is_whole()).collect();
        let refused = (blocks.len() - whole.len()) as u64;
        self.counts.refused.fetch_add(refused, Relaxed);
        let step = self.layout.block_tokens;
        let pieces = (0u32..).zip(&whole).flat_map(|(at, block)| {
            let mut begin = 0;
            (0u16..).zip(&self.layout.layers).map(move |(layer, _)| {
                let size = self.piece_bytes(layer);
                begin += size;
                KvPiece {
                    id: PieceId {
                        layer,
                        tokens: at * step..(at + 1) * step,
                    },
                    bytes: block.bytes.slice(begin - size..begin),
                }
            })
        });
        HeldPrefix {
            pieces: pieces.collect(),
            tokens: whole.len() as u32 * step,
        }
    }

    /// Keeps what came from another site. How many of the tokens lie here afterwards.
    pub(super) fn keep(&self, job: &KeepJob) -> Tokens {
        let salt = job.key.cache_salt();
        let Some(blocks) = self.joined(&job.kv) else {
            return Tokens(0);
        };
        self.salts.learn(&portolan_ports::CacheSalt {
            text: salt.as_str().into(),
            root: Some(BlockHash::root(&job.key.without_public())),
        });
        let kept = self.put(Given {
            salt: &salt,
            tokens: &job.tokens,
            first: 0,
            blocks,
            about: Some(Arc::clone(&job.about)),
        });
        self.counts.received.fetch_add(kept as u64, Relaxed);
        Tokens(kept as u32 * self.layout.block_tokens)
    }

    /// The blocks of a set; none where its pieces are not those of blocks: they were cut for another engine.
    fn joined(&self, kv: &KvSet) -> Option<Vec<(Bytes, u32)>> {
        let step = self.layout.block_tokens;
        let blocks = kv.tokens() / step;
        let joined = (0..blocks).map(|at| {
            let mut bytes = Vec::with_capacity(self.block_bytes());
            for layer in 0..self.layout.layers.len() as u16 {
                let piece = kv.layer(layer).get(at as usize)?;
                let own = piece.id.tokens == (at * step..(at + 1) * step);
                (own && piece.bytes.len() == self.piece_bytes(layer)).then_some(())?;
                bytes.extend_from_slice(&piece.bytes);
            }
            let checksum = crc32fast::hash(&bytes);
            Some((Bytes::from(bytes), checksum))
        });
        joined.collect()
    }

    /// Bytes of one layer's piece of a block.
    fn piece_bytes(&self, layer: u16) -> usize {
        let block = Tokens(self.layout.block_tokens);
        let bytes = self.layout.piece_bytes(layer, block).unwrap_or_default().0;
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

impl Inner {
    fn insert(&mut self, name: BlockId, (bytes, checksum): (Bytes, u32), hashes: Arc<[BlockHash]>) {
        self.bytes += bytes.len() as u64;
        self.uses += 1;
        self.order.insert(self.uses, name);
        let block = Block {
            bytes,
            checksum,
            used: self.uses,
            hashes,
        };
        self.blocks.insert(name, block);
    }

    /// Notes that a prompt's blocks were used: its first last, so that no block goes before those that need it.
    fn touch(&mut self, names: &[BlockId]) {
        for name in names.iter().rev() {
            let Some(block) = self.blocks.get_mut(name) else {
                continue;
            };
            self.uses += 1;
            self.order.remove(&block.used);
            block.used = self.uses;
            self.order.insert(self.uses, *name);
        }
    }

    /// Drops the longest unused until there are at most so many bytes; their index blocks.
    fn shrink(&mut self, most: u64) -> Vec<BlockHash> {
        let mut gone = Vec::new();
        while self.bytes > most
            && let Some((_, name)) = self.order.pop_first()
        {
            if let Some(block) = self.blocks.remove(&name) {
                self.bytes -= block.bytes.len() as u64;
                gone.extend(block.hashes.iter());
            }
        }
        gone
    }
}
