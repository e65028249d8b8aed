//! What a stored event says of its blocks' chain: their size, and what it depends on beyond tokens.

use crate::index::MAX_GROUPS;
use crate::index::event::{ExtraKey, Stored};
use portolan_base::{BlockHash, GroupKind, INDEX_BLOCK_TOKENS};

/// Tokens that each of the event's blocks stands for; none when the event does not fit together.
pub(super) fn tokens_of_a_block(stored: &Stored) -> Option<usize> {
    let (blocks, tokens) = (stored.hashes.len(), stored.tokens.len());
    let block_tokens = usize::try_from(stored.block_tokens).ok()?;
    let per_block = match stored.group.kind {
        GroupKind::State if blocks == 1 => tokens,
        _ => block_tokens,
    };
    let fits = blocks.checked_mul(per_block) == Some(tokens)
        && (stored.extra.is_empty() || stored.extra.len() == blocks);
    let cut = block_tokens > 0 && per_block > 0 && per_block.is_multiple_of(INDEX_BLOCK_TOKENS);
    (fits && cut && stored.group.number < MAX_GROUPS).then_some(per_block)
}

pub(super) fn salt(stored: &Stored) -> Option<&str> {
    stored.extra.first()?.iter().find_map(|extra| match extra {
        ExtraKey::Salt(salt) => Some(salt.as_str()),
        _ => None,
    })
}

/// An adapter changes every block's KV; in a chain it is enough to change the beginning.
pub(super) fn with_lora(root: BlockHash, stored: &Stored) -> BlockHash {
    stored
        .lora
        .as_ref()
        .map_or(root, |name| root.with_extra(name.as_bytes()))
}

pub(super) fn with_extra(chain: BlockHash, extra: &ExtraKey) -> BlockHash {
    match extra {
        // In the root already.
        ExtraKey::Salt(_) => chain,
        ExtraKey::Media(id, at) => chain.with_extra(id.as_bytes()).with_extra(&at.to_le_bytes()),
        ExtraKey::Other(bytes) => chain.with_extra(bytes),
    }
}
