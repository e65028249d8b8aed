//! What an engine says of its cache, whatever its wire format: adapters translate into this and decide nothing.

use portolan_base::{Group, Tier};

/// An engine's own name of a block. What it was made from is the engine's business: here it only connects a block to
/// its children and to its removal. Of a longer hash the last eight bytes, big-endian, as engines themselves shorten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineHash(pub u64);

/// One numbered message of one source: an engine instance's rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Changes when the engine restarts. Wire formats carry none: the adapter draws one when it sees the process'
    /// start time change, or the numbers or timestamps go back.
    pub incarnation: u64,
    /// Counts from 0 within an incarnation. Batches that fill a gap come before the one that showed it.
    pub sequence: u64,
    /// What happened, in order.
    pub events: Vec<CacheEvent>,
}

/// One thing that happened to a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// Blocks were stored.
    Stored(Stored),
    /// Blocks were dropped.
    Removed(Removed),
    /// Every block was dropped.
    Cleared,
}

/// Consecutive blocks of one prompt that are held from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The block before the first; none at a prompt's beginning.
    pub parent: Option<EngineHash>,
    /// One for each block, in order.
    pub hashes: Vec<EngineHash>,
    /// Their tokens; none where blocks are copied to another tier by name. A group of recurrent states may name one block by all tokens since `parent`.
    pub tokens: Vec<u32>,
    /// Tokens in each of the engine's blocks.
    pub block_tokens: u32,
    /// What each block depends on beyond its tokens; empty when none does, else one list a block.
    pub extra: Vec<Vec<ExtraKey>>,
    /// The LoRA adapter, by name.
    pub lora: Option<String>,
    /// The cache group. Kinds that neither hold whole prefixes nor states (sliding windows, cross attention) are not
    /// for the index; adapters leave them out.
    pub group: Group,
    /// Where the bytes lie. Media unknown to the adapter, and what lies on other machines, are left out.
    pub tier: Tier,
}

/// Blocks that are held no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Which.
    pub hashes: Vec<EngineHash>,
    /// Of this group only; of every group where the engine names none.
    pub group: Option<u8>,
    /// From this tier.
    pub tier: Tier,
}

/// Something besides tokens that a block's KV depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtraKey {
    /// `cache_salt`: separates tenants. Stated at a prompt's first block.
    Salt(String),
    /// An image or sound: the identity of its content, and where in the block it begins.
    Media(String, i64),
    /// Anything else, in bytes that are equal where it is.
    Other(Vec<u8>),
}
