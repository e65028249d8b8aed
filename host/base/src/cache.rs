//! The parts of an instance's cache that are told apart: ranks, cache groups, tiers.

use serde::{Deserialize, Serialize};

/// Where a block's bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// The engine's own memory.
    Device,
    /// The host's memory.
    Host,
    /// Files.
    Disk,
}

/// What a cache group keeps, and so when it is of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupKind {
    /// KV of each block: a prefix is of use up to its first missing block.
    Attention,
    /// Recurrent state at a block's end: of use at exactly that length.
    State,
}

/// One cache group of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Group {
    /// The engine's number of the group; indexes tell the first 14 apart.
    pub number: u8,
    /// What it keeps.
    pub kind: GroupKind,
}

impl Group {
    /// The only group of a model with full attention alone.
    pub const ATTENTION: Self = Self {
        number: 0,
        kind: GroupKind::Attention,
    };
}

/// One part of an instance's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CachePart {
    /// The data-parallel rank; 0 where there is one.
    pub rank: u16,
    /// The cache group.
    pub group: Group,
    /// The tier.
    pub tier: Tier,
}

impl CachePart {
    /// The engine memory of an instance with one rank and full attention alone.
    pub const DEVICE: Self = Self {
        rank: 0,
        group: Group::ATTENTION,
        tier: Tier::Device,
    };
}
