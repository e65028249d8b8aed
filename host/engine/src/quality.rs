//! What it costs an answer when the KV it is computed from is not the KV that was computed.
//!
//! A text is cut into excerpts. The first half of each is a prompt: its KV is computed block by block, as prefill does,
//! then goes through what a transfer would do to it, piece by piece. The second half is computed from that, as it
//! stands, and each of its tokens says how likely the next one was. The same with the KV as it was computed is what
//! everything is compared with. A window is no matter of transfer: with it the whole excerpt is computed.

mod mode;
mod score;

pub use mode::{KvMode, KvModeError};
pub use score::QualityRow;

use crate::BLOCK_TOKENS;
use crate::generate::{never_stop, next_piece};
use crate::load::LoadedModel;
use crate::network::Network;
use crate::network::state::{LayerState, SequenceState};
use portolan_base::kv::KvLayout;
use portolan_base::{ModelName, Tokens};
use portolan_ports::EngineError;
use portolan_ports::kvset::piece_id;
use score::{Guess, Score};
use serde::Serialize;

/// Fewest tokens of an excerpt: a block of prompt, and as many to be scored.
const EXCERPT_MIN: usize = 2 * BLOCK_TOKENS as usize;

/// How well a model continues a text from KV of several kinds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QualityReport {
    /// Tokens of each excerpt; the last one may be shorter.
    pub context_tokens: usize,
    /// Tokens whose KV was a prompt's, all excerpts together.
    pub prompt_tokens: usize,
    /// Tokens that were predicted.
    pub scored_tokens: usize,
    /// One entry a mode, the exact KV first.
    pub modes: Vec<QualityRow>,
}

/// Reads `text`, a sequence of tokens, in excerpts of `context` tokens, and scores it under each of `modes`.
///
/// # Errors
/// [`EngineError::BadJob`] when the text or the excerpts are too short, or an excerpt does not fit the model;
/// [`EngineError::Broken`] when the model does not run.
pub fn quality(
    model: &LoadedModel,
    text: &[u32],
    context: Tokens,
    modes: &[KvMode],
) -> Result<QualityReport, EngineError> {
    let context = context.0 as usize;
    check(model, text, context)?;
    let network = &model.network;
    let name = ModelName::new("quality").map_err(|e| EngineError::Broken(e.to_string()))?;
    let layout = model.layout(name, 1);
    let mut modes: Vec<_> = std::iter::once(KvMode::Exact)
        .chain(modes.iter().copied())
        .map(|mode| (mode, Score::default()))
        .collect();
    let mut prompt_tokens = 0;
    for excerpt in text
        .chunks(context)
        .filter(|excerpt| excerpt.len() >= EXCERPT_MIN)
    {
        let (prompt, rest) = excerpt.split_at(prompt_of(excerpt.len()));
        prompt_tokens += prompt.len();
        let exact = prefilled(network, network.fresh_state(), prompt)?;
        let mut reference = None;
        for (mode, score) in &mut modes {
            let (state, bytes) = match mode {
                KvMode::Window(window) => {
                    let layers = network.layer_kv();
                    let state = prefilled(network, SequenceState::new(&layers, Some(*window)), prompt)?;
                    let bytes = state.layers.iter().map(attention_bytes).sum();
                    (state, bytes)
                }
                _ => carried(network, &layout, &exact, *mode)?,
            };
            let guesses = continued(network, state, rest)?;
            let reference: &Vec<Guess> = reference.get_or_insert_with(|| guesses.clone());
            score.add(&guesses, reference, bytes);
        }
    }
    Ok(QualityReport {
        context_tokens: context,
        prompt_tokens,
        scored_tokens: modes.first().map_or(0, |(_, score)| score.tokens()),
        modes: modes
            .iter()
            .map(|(mode, score)| score.row(*mode, prompt_tokens))
            .collect(),
    })
}

fn check(model: &LoadedModel, text: &[u32], context: usize) -> Result<(), EngineError> {
    let bad = |reason: String| Err(EngineError::BadJob(reason));
    let most = model.context_tokens().0 as usize;
    if context < EXCERPT_MIN || context > most {
        return bad(format!(
            "excerpts of {context} tokens; from {EXCERPT_MIN} to {most} are possible"
        ));
    }
    if text.len() < EXCERPT_MIN {
        return bad(format!(
            "the text has {} tokens; at least {EXCERPT_MIN} are needed",
            text.len()
        ));
    }
    match text.iter().find(|token| **token >= model.vocabulary()) {
        Some(token) => bad(format!(
            "token {token} is not below the vocabulary's {}",
            model.vocabulary()
        )),
        None => Ok(()),
    }
}

/// Half of an excerpt, in whole blocks, at least one.
fn prompt_of(excerpt: usize) -> usize {
    let block = BLOCK_TOKENS as usize;
    (excerpt / 2 / block).max(1) * block
}

fn prefilled(
    network: &Network,
    mut state: SequenceState,
    tokens: &[u32],
) -> Result<SequenceState, EngineError> {
    while state.tokens < tokens.len() {
        let piece = next_piece(state.tokens, tokens.len());
        network.run(&tokens[piece], &mut state, &mut never_stop)?;
    }
    Ok(state)
}

/// A state made of the pieces of another, each after it went through `mode`; and the bytes of attention KV that crossed.
fn carried(
    network: &Network,
    layout: &KvLayout,
    from: &SequenceState,
    mode: KvMode,
) -> Result<(SequenceState, u64), EngineError> {
    let (mut to, mut crossed) = (network.fresh_state(), 0);
    for (index, (from_layer, layer)) in (0u16..).zip(from.layers.iter().zip(&mut to.layers)) {
        match from_layer {
            LayerState::Recurrent(state) => layer.restore(0, &state.piece()?),
            LayerState::Attention(state) => {
                let mut start = 0;
                while start < from.tokens {
                    let tokens = next_piece(start, from.tokens);
                    let id = piece_id(index, start as u32, Tokens(tokens.len() as u32));
                    let (piece, bytes) = mode.carry(layout, &id, state.piece(tokens.clone())?)?;
                    crossed += bytes;
                    layer.restore(start, &piece);
                    start = tokens.end;
                }
            }
        }
    }
    to.tokens = from.tokens;
    Ok((to, crossed))
}

fn attention_bytes(layer: &LayerState) -> u64 {
    match layer {
        LayerState::Attention(state) => state.bytes(),
        LayerState::Recurrent(_) => 0,
    }
}

/// What the model thinks of each token of `rest` but the first, having seen all before it.
fn continued(network: &Network, mut state: SequenceState, rest: &[u32]) -> Result<Vec<Guess>, EngineError> {
    let begun = state.tokens;
    let mut guesses = Vec::with_capacity(rest.len());
    while state.tokens < begun + rest.len() {
        let done = state.tokens - begun;
        let piece = next_piece(state.tokens, begun + rest.len()).len();
        let stream = network.run(&rest[done..done + piece], &mut state, &mut never_stop)?;
        let logits = network.logits(&stream)?;
        let nexts = rest[done + 1..].iter();
        guesses.extend(logits.rows().zip(nexts).map(|(row, next)| Guess::of(row, *next)));
    }
    Ok(guesses)
}
