//! Store and forward on a poor link: when a transfer's chunks are kept on the receiver's disk, and which of them the next
//! transfer of the same set does not bring again.
//!
//! | when | chunks land |
//! |---|---|
//! | `Never` | never |
//! | `Always` | of every set |
//! | `WhenPoor` | of a set that would not come within its deadline, at the rate at which it comes or acknowledgements tell |
//! | | of a set that takes longer than the stall time, when the link cut a transfer in the last ten minutes |
//! | | of a set of which something landed before |
//!
//! The order of the next transfer names what landed, by digest; the holder sends heads only for what is still the same.

use blake3::Hasher;
use portolan_base::kv::{LandedChunk, LandingId, PieceId};
use portolan_ports::{KvOrder, LandedSet};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// When chunks land.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreAndForward {
    /// A transfer that breaks is lost.
    Never,
    /// When the link is too poor for what crosses it.
    #[default]
    WhenPoor,
    /// Whatever the link is like.
    Always,
}

/// How long a link that cut a transfer counts as poor: as long as a damaged set is not asked for.
pub(crate) const CUT_COUNTS: Duration = Duration::from_secs(600);

/// What is known of a transfer when it is asked whether it lands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outlook {
    /// Bytes that have not come.
    pub(crate) left: u64,
    /// Bytes a second at which they come; none: not known yet.
    pub(crate) rate: Option<u64>,
    /// Until its deadline.
    pub(crate) time_left: Duration,
    /// The link cut a transfer lately.
    pub(crate) is_cut: bool,
    /// Sending again what takes less is not worth a file.
    pub(crate) trifle: Duration,
}

impl Outlook {
    /// Whether the link is too poor for the transfer.
    pub(crate) fn is_poor(self) -> bool {
        let Some(rate) = self.rate.filter(|rate| *rate > 0) else {
            return self.is_cut && self.left > 0;
        };
        let needed = Duration::from_secs_f64(self.left as f64 / rate as f64);
        needed > self.time_left || self.is_cut && needed > self.trifle
    }
}

/// Names the set of an order: everything that has to be equal for its KV to be the same and forgotten together.
pub(crate) fn set_of(order: &KvOrder) -> LandingId {
    let mut hasher = Hasher::new_derive_key("portolan 2026 landed kv set");
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    part(order.tenant.as_str().as_bytes());
    part(order.jurisdiction.as_bytes());
    part(order.model.as_str().as_bytes());
    part(&order.model_version.to_le_bytes());
    for dependency in order.dependencies.iter() {
        part(dependency.kind.as_bytes());
        part(dependency.name.as_bytes());
        part(dependency.version.as_bytes());
    }
    for token in order.tokens.iter() {
        hasher.update(&token.to_le_bytes());
    }
    let mut id = [0; 16];
    hasher.finalize_xof().fill(&mut id);
    LandingId(id)
}

/// Where the chunks of one transfer land, and what had landed when it was ordered.
#[derive(Clone)]
pub(crate) struct Ground {
    pub(crate) set: Arc<dyn LandedSet>,
    pub(crate) before: Arc<Claims>,
}

impl Ground {
    pub(crate) fn new(set: Arc<dyn LandedSet>) -> Self {
        let before = Arc::new(Claims::of(set.chunks()));
        Self { set, before }
    }
}

impl std::fmt::Debug for Ground {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ground({:?})", self.before)
    }
}

/// Most chunks that an order names: some 10 MiB of it, 16 GiB in the smallest chunks.
pub(crate) const CLAIMS_MAX: usize = 256 << 10;

/// What a receiver says it has, by place.
#[derive(Debug, Default)]
pub(crate) struct Claims(HashMap<(PieceId, u64), LandedChunk>);

impl Claims {
    pub(crate) fn of(chunks: Vec<LandedChunk>) -> Self {
        let chunks = chunks.into_iter().take(CLAIMS_MAX);
        Self(
            chunks
                .map(|chunk| ((chunk.piece.clone(), chunk.offset), chunk))
                .collect(),
        )
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As an order names them.
    pub(crate) fn list(&self) -> Vec<LandedChunk> {
        self.0.values().cloned().collect()
    }

    /// The claim about a chunk at this place of a piece so long, if its length is right.
    pub(crate) fn at(
        &self,
        piece: &PieceId,
        piece_len: u64,
        offset: u64,
        len: usize,
    ) -> Option<&LandedChunk> {
        if self.is_empty() {
            return None;
        }
        let found = self.0.get(&(piece.clone(), offset))?;
        (found.piece_len == piece_len && found.len as usize == len).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outlook(left: u64, rate: Option<u64>) -> Outlook {
        Outlook {
            left,
            rate,
            time_left: Duration::from_secs(10),
            is_cut: false,
            trifle: Duration::from_secs(2),
        }
    }

    #[test]
    fn a_link_is_poor_when_the_deadline_comes_first() {
        assert!(!outlook(1 << 30, None).is_poor(), "nothing is known yet");
        assert!(!outlook(10_000_000, Some(1_000_000)).is_poor(), "just in time");
        assert!(outlook(10_000_001, Some(1_000_000)).is_poor());
        assert!(!outlook(0, Some(1)).is_poor());
    }

    #[test]
    fn a_link_that_cut_is_poor_for_what_takes_long_to_send_again() {
        let cut = |left, rate| Outlook {
            is_cut: true,
            ..outlook(left, rate)
        };
        assert!(cut(1, None).is_poor());
        assert!(!cut(2_000_000, Some(1_000_000)).is_poor());
        assert!(cut(2_000_001, Some(1_000_000)).is_poor());
    }
}
