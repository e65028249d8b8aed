//! KV that is handed to another instance, and KV that is taken from one.

use super::Shared;
use super::cache::{Computed, Names};
use super::decode::{keep_blocks, unpack};
use super::prefill::recurrent_pieces;
use crate::BLOCK_TOKENS;
use crate::network::ForwardError;
use crate::network::state::{LayerState, SequenceState};
use bytes::Bytes;
use portolan_base::kv::LayerKv;
use portolan_base::{BlockId, Dependency, TenantKey, Tokens};
use portolan_kv::BlockKv;
use portolan_ports::kvset::piece_id;
use portolan_ports::{EngineError, HeldPrefix, KeepJob, KvPiece};
use std::ops::Range;

/// The longest prefix that what depends `on` these may use, with everything that going on from it needs.
pub(super) fn kept(shared: &Shared, key: &TenantKey, tokens: &[u32], on: &[Dependency]) -> HeldPrefix {
    let chain = BlockId::chain(key, tokens, BLOCK_TOKENS as usize);
    let held = shared.cache.lease_chain(&chain, on);
    let end = held.len as u32 * BLOCK_TOKENS;
    let mut pieces = shared.cache.attention_pieces(&held.blocks);
    let last = held.blocks.last().filter(|(index, _)| index + 1 == held.len);
    let states = last.and_then(|(_, block)| block.kv.snapshot.as_ref());
    for (layer, bytes) in recurrent_layers(shared).zip(states.into_iter().flatten()) {
        pieces.push(KvPiece {
            id: piece_id(layer, end, Tokens(0)),
            bytes: bytes.clone(),
        });
    }
    HeldPrefix { tokens: end, pieces }
}

/// Keeps a prefix: the blocks the cache lacks, and the recurrent states with the last of them.
pub(super) fn keep(shared: &Shared, job: &KeepJob) -> Tokens {
    let count = job.tokens.len() as u32;
    let fits = job.kv.layout() == &shared.description.layout && job.kv.tokens() == count;
    if !fits || count == 0 || !count.is_multiple_of(BLOCK_TOKENS) {
        return Tokens(0);
    }
    let past = job.kv.past();
    let since = past.map_or_else(|| shared.cache.epoch(), |past| past.since);
    let names = Names::of(&job.key, &job.tokens, &job.about, since);
    let state = unpack(shared, &job.kv);
    if let Err(error) = keep_state(shared, &names, &state) {
        tracing::warn!(instance = %shared.description.instance, %error, "KV that was handed over is not kept");
        return Tokens(0);
    }
    Tokens(shared.cache.lease(&names).len as u32 * BLOCK_TOKENS)
}

fn keep_state(shared: &Shared, names: &Names, state: &SequenceState) -> Result<(), EngineError> {
    keep_blocks(shared, names, state)?;
    if shared.description.layout.is_hybrid() {
        let last = state.tokens - BLOCK_TOKENS as usize..state.tokens;
        let kv = BlockKv {
            attention: attention_pieces(state, last)?,
            snapshot: Some(recurrent_pieces(state)?),
        };
        let rebuild = shared.meter.prefill_time(BLOCK_TOKENS as usize);
        shared
            .cache
            .store(names, names.len() - 1, Computed { kv, rebuild });
    }
    Ok(())
}

fn attention_pieces(state: &SequenceState, tokens: Range<usize>) -> Result<Vec<Bytes>, ForwardError> {
    let piece = |layer: &LayerState| match layer {
        LayerState::Attention(state) => Some(state.piece(tokens.clone())),
        LayerState::Recurrent(_) => None,
    };
    state.layers.iter().filter_map(piece).collect()
}

fn recurrent_layers(shared: &Shared) -> impl Iterator<Item = u16> {
    (0u16..)
        .zip(&shared.description.layout.layers)
        .filter(|(_, layer)| matches!(layer, LayerKv::Recurrent { .. }))
        .map(|(index, _)| index)
}
